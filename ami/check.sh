# Whether this machine can train: GPUs that nvidia-smi lists, a torch that can use each of them, room on the disk. Runs as root with bash, changes
# nothing.
#
# SEERD_PYTHON   interpreter that trains
# SEERD_TORCH    1: that interpreter must have torch with CUDA
# SEERD_GPUS     how many GPUs this type of instance has
# SEERD_FREE_GB  the least that must be free on the root disk
set -euo pipefail
say() { echo "==> $*"; }
fail() { echo "check: $*"; exit 1; }

listing=$(nvidia-smi -L 2>&1) || fail "nvidia-smi ended with exit status $?: $(tail -n 1 <<<"$listing")"
found=$(grep -c '^GPU ' <<<"$listing" || true)
[ "$found" -ge "$SEERD_GPUS" ] || fail "nvidia-smi lists $found GPUs where $SEERD_GPUS are expected"
say "GPUs: $(head -n 1 <<<"$listing" | sed -E 's/^GPU 0: (.*) \(UUID.*/\1/') x $found"

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
