# Installs what training needs and this machine lacks: the NVIDIA driver, pip, torch, the user's requirements. Runs as root with bash, on Debian
# or Ubuntu where something is missing; what is there already is left alone. It may be run again.
#
# SEERD_PYTHON    interpreter that trains: a path, or a name on PATH
# SEERD_TORCH     1: that interpreter must have torch
# SEERD_SOURCE    the user's source; its requirements.txt is installed if it has one
# SEERD_NVSWITCH  1: the image is for machines with NVSwitch, so it must have the fabric manager
#
# CUDA's libraries come with torch's wheels; the machine itself needs only the driver and, where its GPUs are behind NVSwitches, the fabric manager.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C.UTF-8
# The image is for this one job: Debian's reserve about the system's Python (PEP 668) does not concern it.
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

# Of Ubuntu's branches for servers: Maxwell to Blackwell, so not the K80 of P2. NVIDIA mends it until June 2028
# (docs.nvidia.com/datacenter/tesla/drivers/620/supported-drivers-and-cuda-toolkit-versions.html).
DRIVER=580
APT_PERIODIC=/etc/apt/apt.conf.d/99seerd
UPGRADES=(apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service unattended-upgrades.service)
SWITCHES=/usr/local/lib/seerd/has-nvswitch
FABRIC_UNIT=/etc/systemd/system/nvidia-fabricmanager.service
PCI=/sys/bus/pci/devices

say() { echo "==> $*"; }
fail() { echo "provision: $*"; exit 1; }

updated= installed=
update_lists() {
  # A fresh instance may be updating itself: wait for its lock.
  [ -n "$updated" ] || apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 update -q
  updated=1
}

install_packages() {
  command -v apt-get >/dev/null || fail "$* must be installed, and this system has no apt-get: take a Debian or Ubuntu image, or one that has it"
  update_lists
  apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 install -q -y --no-install-recommends "$@"
}

await_boot() {
  command -v cloud-init >/dev/null || return 0
  say "waiting for cloud-init"
  timeout 600 cloud-init status --wait || true
}

# An upgrade of the driver's libraries under the loaded module breaks NVML for whoever asks next, in the middle of a run
# (github.com/lyulyul/shine-cluster/issues/30). First of all, since one may be about to begin on a fresh instance.
stop_upgrades() {
  command -v apt-get >/dev/null || return 0
  say "upgrades: turned off, of this image's instances too"
  printf 'APT::Periodic::%s "0";\n' Enable Update-Package-Lists Unattended-Upgrade >$APT_PERIODIC
  # check.sh tells which of them could not be masked.
  systemctl mask "${UPGRADES[@]}" || true
  # One that is at work is let finish: install_packages waits for its lock.
  systemctl stop apt-daily.timer apt-daily-upgrade.timer 2>/dev/null || true
}

# What is installed of the driver, the fabric manager and the kernel that they were built for stays as it is.
hold_packages() {
  command -v apt-mark >/dev/null || return 0
  local held
  mapfile -t held < <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' '*nvidia*' libcuda1 'linux-image-*' 'linux-headers-*' 'linux-modules-*' \
    linux-aws 'linux-aws-*' 2>/dev/null | sed -n 's/^installed //p' | sort -u)
  [ ${#held[@]} -gt 0 ] || return 0
  apt-mark hold "${held[@]}" >/dev/null
  say "held: ${#held[@]} packages of driver and kernel"
}

gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true; }

driver() { nvidia-smi -i 0 --query-gpu=driver_version --format=csv,noheader; }
fabric_manager() { nv-fabricmanager --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true; }

# Whether there is a GPU older than Turing, whose first has PCI id 1e00: NVIDIA's open kernel modules do not know those, as they need the
# processor that came with Turing. Blackwell is known to the open ones alone (docs.nvidia.com/datacenter/tesla/driver-installation-guide/
# kernel-modules.html, pci-ids.ucw.cz/read/PC/10de).
old_gpus() {
  local device
  for device in "$PCI"/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
    case $(cat "$device/class") in 0x03*) [ $(($(cat "$device/device"))) -ge $((0x1e00)) ] || return 0 ;; esac
  done
  return 1
}

need_driver() {
  if [ "$(gpus)" -gt 0 ]; then
    say "driver: $(driver) is there, with $(gpus) GPUs"
    return
  fi
  . /etc/os-release
  local open=-open
  old_gpus && open=
  say "driver: installing NVIDIA's on $PRETTY_NAME, with its ${open:+open }kernel modules"
  case $ID in
  ubuntu)
    # Signed modules for this very kernel where Ubuntu has them, else they are built.
    install_packages "linux-modules-nvidia-$DRIVER-server$open-$(uname -r)" "nvidia-headless-no-dkms-$DRIVER-server$open" "nvidia-utils-$DRIVER-server" ||
      install_packages "linux-headers-$(uname -r)" "nvidia-headless-$DRIVER-server$open" "nvidia-utils-$DRIVER-server"
    ;;
  debian)
    sed -i -E 's/^(deb .* main)$/\1 contrib non-free non-free-firmware/; s/^(Components: main)$/\1 contrib non-free non-free-firmware/' \
      /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true
    updated=
    install_packages "linux-headers-$(uname -r)" "nvidia${open}-kernel-dkms" nvidia-smi libcuda1
    ;;
  *) fail "there is no NVIDIA driver, and seerd installs it on Debian and Ubuntu only; this is $PRETTY_NAME" ;;
  esac
  installed=1
  modprobe -r nouveau 2>/dev/null || true
  modprobe nvidia || fail "the driver was installed, but its module does not load: $(modprobe nvidia 2>&1 | tail -n 1)"
  [ "$(gpus)" -gt 0 ] || fail "the driver was installed, but nvidia-smi lists no GPU: $(nvidia-smi 2>&1 | tail -n 1)"
}

# GPUs behind NVSwitches (p4d, p4de, p5, p6) cannot be used before a fabric manager of exactly the driver's version has set the switches up: CUDA
# ends with error 802, "system not yet initialized" (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide,
# github.com/dstackai/dstack/issues/2348). It comes with a driver that is installed here, since an image is often made on a cheaper type.
need_fabric_manager() {
  local version found package exact=
  version=$(driver)
  found=$(fabric_manager)
  if [ "$found" = "$version" ]; then
    say "fabric manager: $found is there"
  elif [ -n "$installed$found" ] || [ "$SEERD_NVSWITCH" = 1 ] || $SWITCHES; then
    if command -v apt-get >/dev/null; then update_lists; fi
    for package in "nvidia-fabricmanager-${version%%.*}" nvidia-fabricmanager; do
      exact=$(apt-cache madison "$package" 2>/dev/null | awk -v version="$version" '$3 == version || index($3, version "-") == 1 { print $3; exit }') || true
      [ -z "$exact" ] || break
    done
    if [ -n "$exact" ]; then
      say "fabric manager: installing $exact"
      install_packages --allow-change-held-packages --allow-downgrades "$package=$exact"
    elif [ -n "$found" ] || [ "$SEERD_NVSWITCH" = 1 ] || $SWITCHES; then
      fail "no package has a fabric manager of the driver's version $version${found:+, and the one that is there is $found}: without it the GPUs of" \
        "p4d, p4de, p5 and p6 cannot be used (CUDA error 802); take a base image that has both, as AWS's Deep Learning images do"
    else
      say "fabric manager: no package has $version, so this image is not for p4d, p4de, p5 and p6"
    fi
  fi
  command -v nv-fabricmanager >/dev/null || return 0
  # Without NVSwitches it would fail and leave the system degraded. A condition that does not hold is no failure, and is asked in milliseconds
  # (freedesktop.org/software/systemd/man/latest/systemd.service.html, ExecCondition).
  mkdir -p "$FABRIC_UNIT.d"
  printf '[Service]\nExecCondition=%s\n' $SWITCHES >"$FABRIC_UNIT.d/seerd.conf"
  systemctl daemon-reload
  systemctl unmask nvidia-fabricmanager.service
  systemctl enable nvidia-fabricmanager.service
  if $SWITCHES; then
    systemctl restart nvidia-fabricmanager.service || fail "the fabric manager $(fabric_manager) does not start; journalctl -u nvidia-fabricmanager says why:" \
      "$(journalctl -q -n 1 -o cat -u nvidia-fabricmanager 2>/dev/null)"
  fi
}

# A program that says by its exit status whether this machine has NVSwitches: NVIDIA's bridges up to Hopper's, or the InfiniBand controllers by
# which Blackwell's are managed (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide, "Systems using fourth generation NVSwitches").
write_switches() {
  mkdir -p "${SWITCHES%/*}"
  cat >$SWITCHES <<'END'
#!/bin/sh
for device in /sys/bus/pci/devices/*; do
  case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr '\n' ' ') in "0x10de 0x0680"* | "0x15b3 0x0207"*) exit 0 ;; esac
done
exit 1
END
  chmod 755 $SWITCHES
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
stop_upgrades
write_switches
need_driver
need_fabric_manager
hold_packages
need_python
need_torch
need_requirements
