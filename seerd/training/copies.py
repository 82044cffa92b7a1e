"""Copies of a trial's state in host memory, from which it is written while training goes on.

The one rule: a copy shares no memory with what it was made of.
"""

import copy
import mmap
from typing import Any, Dict, Iterator, List, Optional, Tuple

from seerd.training import host_memory

ALIGNED = 64  # bytes: a tensor of any type may begin at a multiple
SPARE = 1.25  # so many times the memory of a copy must be available before it is taken


class HostCopy:
    """The memory of one copy, which is kept from save to save and grows with the state. Where the
    state is on CUDA devices it is pinned: copies to it run at the speed of the bus.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._memory: Optional[mmap.mmap] = None
        self._pinned = 0  # its address, if it is pinned

    def take(self, value: Any) -> Any:
        """Return a copy of a value that `torch.save` can save; the copy before is overwritten.
        Raises `MemoryError` where host memory is short.
        """
        if self._torch is None:
            return copy.deepcopy(value)
        copies: Dict[int, Any] = {}
        places: Dict[Tuple[Any, ...], Tuple[Any, int]] = {}  # storages, and where their copies are
        kept: List[Tuple[Any, Tuple[Any, ...]]] = []
        size = 0
        for tensor in tensors(self._torch, value):
            if tensor.is_meta:
                copies[id(tensor)] = tensor
                continue
            if not self._is_plain(tensor):
                copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
                continue
            storage = tensor.untyped_storage()
            key = (storage.device, storage.data_ptr(), storage.nbytes())
            kept.append((tensor, key))
            if key not in places:
                places[key] = storage, size
                size += -(-storage.nbytes() // ALIGNED) * ALIGNED
        devices = {device for device, *_ in places if device.type == "cuda"}
        self._reserve(size, pinned=bool(devices))
        made = {key: self._copied(*place) for key, place in places.items()}
        for device in devices:
            # Training goes on at once, on any stream, and changes what was copied.
            self._torch.cuda.current_stream(device).synchronize()
        for tensor, key in kept:
            copies[id(tensor)] = self._like(tensor, made[key])
        return copy.deepcopy(value, copies)

    def _is_plain(self, tensor: Any) -> bool:
        torch = self._torch
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.device.type in ("cpu", "cuda")
            and tensor.layout is torch.strided
            and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
            and tensor.untyped_storage().nbytes() > 0
        )

    def _copied(self, storage: Any, at: int) -> Any:
        torch, size = self._torch, storage.nbytes()
        to = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=at)
        of = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,))
        return to.copy_(of, non_blocking=True).untyped_storage()

    def _like(self, tensor: Any, storage: Any) -> Any:
        where = tensor.storage_offset(), tensor.size(), tensor.stride()
        made = self._torch.empty(0, dtype=tensor.dtype).set_(storage, *where)
        if type(tensor) is self._torch.nn.Parameter:
            made = self._torch.nn.Parameter(made, requires_grad=False)
        return made.requires_grad_(tensor.requires_grad)

    def _reserve(self, size: int, *, pinned: bool) -> None:
        torch, memory = self._torch, self._memory
        held = 0 if memory is None else len(memory)
        if held < size:
            if host_memory.available() + held < SPARE * size:
                raise MemoryError("host memory is short")
            if self._pinned:
                torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._memory, self._pinned = None, 0
            try:
                # Shared: else a process that is forked keeps the pages as they were, and each save
                # takes new ones.
                self._memory = memory = mmap.mmap(-1, size)
            except OSError as error:
                raise MemoryError("host memory is short") from error
        if pinned and not self._pinned and memory is not None:
            address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
            # torch's own pinned memory has a power of two bytes, up to twice what is needed.
            if int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)) == 0:
                self._pinned = address


def tensors(torch: Any, value: Any) -> Iterator[Any]:
    """Yield the tensors in a value of dicts, lists and tuples."""
    seen, left = set(), [value]
    while left:
        part = left.pop()
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (dict, list, tuple)) and id(part) not in seen:
            seen.add(id(part))
            left.extend(part.values() if isinstance(part, dict) else part)


def hollow(torch: Any, value: Any) -> Any:
    """Return a copy of a value with empty tensors, except those of types of their own."""
    plain = (torch.Tensor, torch.nn.Parameter)
    empty = {id(each): torch.empty(0) for each in tensors(torch, value) if type(each) in plain}
    return copy.deepcopy(value, empty)
