# Installs what training needs and this machine lacks: the NVIDIA driver, pip, torch, the user's requirements. Runs as root with bash, on Debian
# or Ubuntu where something is missing; what is there already is left alone. It may be run again.
#
# SEERD_PYTHON  interpreter that trains: a path, or a name on PATH
# SEERD_TORCH   1: that interpreter must have torch
# SEERD_SOURCE  the user's source; its requirements.txt is installed if it has one
#
# CUDA's libraries come with torch's wheels; the machine itself needs only the driver.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C.UTF-8
# The image is for this one job: Debian's reserve about the system's Python (PEP 668) does not concern it.
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

DRIVER=570 # of Ubuntu's branches for servers: Maxwell to Blackwell, so not the K80 of P2

say() { echo "==> $*"; }
fail() { echo "provision: $*"; exit 1; }

updated=
install_packages() {
  command -v apt-get >/dev/null || fail "$* must be installed, and this system has no apt-get: take a Debian or Ubuntu image, or one that has it"
  # A fresh instance may be updating itself: wait for its lock.
  [ -n "$updated" ] || apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 update -q
  updated=1
  apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 install -q -y --no-install-recommends "$@"
}

await_boot() {
  command -v cloud-init >/dev/null || return 0
  say "waiting for cloud-init"
  timeout 600 cloud-init status --wait || true
}

gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true; }

need_driver() {
  if [ "$(gpus)" -gt 0 ]; then
    say "driver: $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1) is there, with $(gpus) GPUs"
    return
  fi
  . /etc/os-release
  say "driver: installing NVIDIA's on $PRETTY_NAME"
  case $ID in
  ubuntu)
    # Signed modules for this very kernel where Ubuntu has them, else they are built.
    flavour=$(uname -r | sed 's/.*-//')
    install_packages "linux-modules-nvidia-$DRIVER-server-$flavour" "nvidia-headless-no-dkms-$DRIVER-server" "nvidia-utils-$DRIVER-server" ||
      install_packages "linux-headers-$(uname -r)" "nvidia-headless-$DRIVER-server" "nvidia-utils-$DRIVER-server"
    ;;
  debian)
    sed -i -E 's/^(deb .* main)$/\1 contrib non-free non-free-firmware/; s/^(Components: main)$/\1 contrib non-free non-free-firmware/' \
      /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true
    updated=
    install_packages "linux-headers-$(uname -r)" nvidia-kernel-dkms nvidia-smi libcuda1
    ;;
  *) fail "there is no NVIDIA driver, and seerd installs it on Debian and Ubuntu only; this is $PRETTY_NAME" ;;
  esac
  modprobe -r nouveau 2>/dev/null || true
  modprobe nvidia || fail "the driver was installed, but its module does not load: $(modprobe nvidia 2>&1 | tail -n 1)"
  [ "$(gpus)" -gt 0 ] || fail "the driver was installed, but nvidia-smi lists no GPU: $(nvidia-smi 2>&1 | tail -n 1)"
}

need_python() {
  command -v "$SEERD_PYTHON" >/dev/null && return
  [ "$SEERD_PYTHON" = python3 ] || fail "there is no $SEERD_PYTHON: a command in [train] setup comes later; take a base image that has it"
  say "python: installing python3"
  install_packages python3
}

run_pip() {
  if ! "$SEERD_PYTHON" -m pip --version >/dev/null 2>&1; then
    say "pip: installing it"
    install_packages python3-pip
  fi
  "$SEERD_PYTHON" -m pip "$@"
}

need_torch() {
  [ "$SEERD_TORCH" = 1 ] || return 0
  # Importing it takes long, and is for check.sh.
  if found=$("$SEERD_PYTHON" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null); then
    say "torch: $found is there"
    return
  fi
  if grep -qiE '^torch([^a-z0-9_-]|$)' "$SEERD_SOURCE/requirements.txt" 2>/dev/null; then
    say "torch: requirements.txt names it"
    return
  fi
  say "torch: installing it"
  run_pip install --quiet torch
}

need_requirements() {
  [ -f "$SEERD_SOURCE/requirements.txt" ] || return 0
  say "requirements.txt: $(grep -cE '^[[:space:]]*[^#[:space:]]' "$SEERD_SOURCE/requirements.txt" || true) lines"
  (cd "$SEERD_SOURCE" && run_pip install --quiet -r requirements.txt)
}

await_boot
need_driver
need_python
need_torch
need_requirements
