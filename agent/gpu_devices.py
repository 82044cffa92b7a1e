"""The GPUs, or CPU slots, that an agent may see on its machine, and what each is called."""

from __future__ import annotations

import re
from dataclasses import dataclass

SMI = ("nvidia-smi", "-L")
LISTED = re.compile(r"^(?:GPU [0-9]+:|  MIG ).*\(UUID: (GPU-[0-9a-f-]+|MIG-[^)]+)\)\s*$")
"""A line of `nvidia-smi -L`."""


@dataclass(frozen=True)
class Device:
    """A GPU, or a CPU slot."""

    lease: str  # name of its file, the same for all that can lease it (`gpu_leases`)
    name: str  # CUDA's name, or a slot's number

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG device, of which a process can use no second one."""
        return self.name.startswith("MIG-")


def cuda_devices(gpus: int, visible: str, listing: str = "") -> list[Device]:
    """List the CUDA devices that an agent may see here, the first `gpus` of them or more.

    `visible` is its CUDA_VISIBLE_DEVICES, `listing` the output of `nvidia-smi -L`. A device's lease
    is named by its UUID, or without a listing by its number, which may be another one elsewhere.
    """
    cards: list[tuple[str, list[str]]] = []  # each GPU's UUID, and those of its MIG devices
    for match in filter(None, map(LISTED.match, listing.splitlines())):
        if match[1].startswith("GPU-"):
            cards.append((match[1], []))
        elif cards:
            cards[-1][1].append(match[1])
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if not names:
        names = [name for at, (_, parts) in enumerate(cards) for name in parts or [str(at)]]
        names += map(str, range(len(names), gpus))
    return [Device(f"gpu-{_place(name, [uuid for uuid, _ in cards])}", name) for name in names]


def _place(name: str, uuids: list[str]) -> str:
    if name.startswith("GPU-"):
        name = next((uuid for uuid in uuids if uuid.startswith(name)), name)
    elif name.isdecimal() and int(name) < len(uuids):
        name = uuids[int(name)]
    return re.sub(r"[^A-Za-z0-9._-]", "_", name.removeprefix("GPU-"))[:60]


def cpu_slots(slots: int) -> list[Device]:
    """List CPU slots."""
    return [Device(f"slot-{number}", str(number)) for number in range(slots)]
