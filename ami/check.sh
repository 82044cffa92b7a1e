# Whether this machine can train: GPUs that nvidia-smi lists, kernel modules and fabric manager that go with them, no upgrades in the middle of a run,
# a torch that can use each GPU, room on the disk. Runs as root with bash, after provision.sh, changes nothing.
#
# SEERD_PYTHON     interpreter that trains
# SEERD_TORCH      1: that interpreter must have torch with CUDA
# SEERD_GPUS       how many GPUs this type of instance has
# SEERD_FREE_GB    the least that must be free on the root disk
# SEERD_NVSWITCH   1: the image is for machines with NVSwitch
# SEERD_BLACKWELL  1: the image is for machines with Blackwell GPUs
set -euo pipefail
say() { echo "==> $*"; }
fail() { echo "check: $*"; exit 1; }

listing=$(nvidia-smi -L 2>&1) || fail "nvidia-smi ended with exit status $?: $(tail -n 1 <<<"$listing")"
found=$(grep -c '^GPU ' <<<"$listing" || true)
[ "$found" -ge "$SEERD_GPUS" ] || fail "nvidia-smi lists $found GPUs where $SEERD_GPUS are expected"
say "GPUs: $(head -n 1 <<<"$listing" | sed -E 's/^GPU 0: (.*) \(UUID.*/\1/') x $found"

# "Dual MIT/GPL" of the open modules, "NVIDIA" of the closed ones.
license=$(modinfo -F license nvidia 2>/dev/null | head -n 1) || license=
case $license in
NVIDIA)
  [ "$SEERD_BLACKWELL" != 1 ] || fail "the driver has NVIDIA's closed kernel modules, and the spec's Blackwell GPUs (p6, g7) run only with the open" \
    "ones: take a base image with these (of AWS's Deep Learning images those with oss-nvidia-driver in the name), or one without a driver"
  say "kernel modules: closed, so this image is not for Blackwell (p6, g7)"
  ;;
?*) say "kernel modules: open ($license)" ;;
esac

driver=$(nvidia-smi -i 0 --query-gpu=driver_version --format=csv,noheader)
fabric=$(nv-fabricmanager --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1) || true
switches=
/usr/local/lib/seerd/has-nvswitch && switches=1
if [ -n "$fabric" ]; then
  [ "$fabric" = "$driver" ] || fail "the fabric manager is $fabric and the driver is $driver; they must be the same, else the GPUs of p4d, p4de, p5 and" \
    "p6 cannot be used (CUDA error 802): install the package nvidia-fabricmanager-${driver%%.*} of version $driver, or take another base image"
  enabled=$(systemctl is-enabled nvidia-fabricmanager.service 2>/dev/null) || true
  [ "$enabled" = enabled ] || fail "the fabric manager will not start at boot (it is ${enabled:-not there}): systemctl enable nvidia-fabricmanager"
  [ -z "$switches" ] || systemctl is-active --quiet nvidia-fabricmanager.service ||
    fail "this machine has NVSwitches and its fabric manager does not run; journalctl -u nvidia-fabricmanager says why"
  say "fabric manager: $fabric, as the driver"
elif [ -n "$switches" ] || [ "$SEERD_NVSWITCH" = 1 ]; then
  fail "there is no fabric manager, and without one the GPUs of p4d, p4de, p5 and p6 cannot be used (CUDA error 802): install the package" \
    "nvidia-fabricmanager-${driver%%.*} of version $driver, or take a base image that has it"
fi

if command -v apt-config >/dev/null; then
  periodic=$(apt-config shell enabled APT::Periodic::Enable)
  [ "$periodic" = "enabled='0'" ] || fail "upgrades are on (APT::Periodic::Enable is not 0), and one in the middle of a run breaks nvidia-smi and new" \
    "trials: write APT::Periodic::Enable \"0\"; into the last file in /etc/apt/apt.conf.d"
  for unit in apt-daily.timer apt-daily-upgrade.timer unattended-upgrades.service; do
    state=$(systemctl is-enabled $unit 2>/dev/null) || true
    [ "$state" = masked ] || fail "upgrades are on ($unit is ${state:-not masked}), and one in the middle of a run breaks nvidia-smi and new trials:" \
      "systemctl mask $unit"
  done
  loose=$(comm -23 <(dpkg-query -W -f '${db:Status-Status} ${Version} ${Package}\n' '*nvidia*' 2>/dev/null | grep "^installed $driver-" | cut -d ' ' -f 3 |
    sort -u) <(apt-mark showhold | sort -u) | head -n 3 | paste -sd ' ')
  [ -z "$loose" ] || fail "an upgrade could replace parts of the driver ($loose): apt-mark hold them"
  say "upgrades: off"
fi

if [ "$SEERD_TORCH" = 1 ]; then
  said=$("$SEERD_PYTHON" -c '
import torch
count = torch.cuda.device_count()
for gpu in range(count):
    torch.zeros(1, device=f"cuda:{gpu}")
print(count, torch.__version__, torch.version.cuda)' 2>&1) || fail "torch of $SEERD_PYTHON does not work: $(tail -n 1 <<<"$said")"
  read -r count version cuda <<<"$(tail -n 1 <<<"$said")"
  [ "$count" -ge "$SEERD_GPUS" ] || fail "torch $version of $SEERD_PYTHON (CUDA: $cuda) sees $count GPUs where $SEERD_GPUS are expected"
  say "torch: $version of $SEERD_PYTHON, CUDA $cuda, sees $count GPUs"
fi

free=$(df --output=avail -BG / | tail -n 1 | tr -dc '0-9')
[ "$free" -ge "$SEERD_FREE_GB" ] || fail "$free GB are free on the root disk where $SEERD_FREE_GB are needed: give a larger cluster.volume_gb"
say "disk: $free GB free"
