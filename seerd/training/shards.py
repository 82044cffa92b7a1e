"""Checkpoints of a state that is sharded over the ranks (FSDP): each rank writes its own parts of
the file, at the same time as the others and behind training.

The one rule: rank 0 lays the file out and says when it is written, and names it once every rank has
written all of its parts. The file is one that `torch.save` of the whole state would write, but
without the CRC-32 of its tensors, so it is read like any other on any number of ranks.
"""

import contextlib
import copy
import itertools
import operator
import struct
import threading
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from seerd.training.checkpoints import Flushed, load
from seerd.training.copies import HostCopy, tensors
from seerd.training.ranks import PIECE, Ranks

Name = Tuple[Any, ...]  # of a tensor: the keys and indices that lead to it
Offsets = Dict[Name, int]  # where its bytes begin in the file
Piece = Tuple[int, bytearray]  # at most `PIECE` bytes of the file: where they begin, and they


class Shard(NamedTuple):
    """This rank's part of a tensor."""

    name: Name
    part: Any  # the tensor that this rank has
    whole: Tuple[int, ...]  # the shape of all parts together
    at: Tuple[int, ...]  # where this part begins in it

    def pieces(self, torch: Any, begin: int) -> Iterator[Piece]:
        """Yield its bytes for a file in which the whole tensor begins at this byte."""
        shape, rows = tuple(self.part.shape), max(self.part.dim() - 1, 0)
        while rows and shape[rows] == self.whole[rows]:
            rows -= 1  # what is whole in its last dimensions lies in one run
        for row in itertools.product(*map(range, shape[:rows])):
            offset = 0  # in elements
            for at, index, length in itertools.zip_longest(self.at, row, self.whole, fillvalue=0):
                offset = offset * length + at + index
            flat = self.part[row].contiguous().reshape(-1).view(torch.uint8)
            yield from pieces(torch, begin + offset * self.part.element_size(), flat)


class PartWriter:
    """What one rank writes of sharded checkpoints.

    On ranks other than 0 a thread writes what rank 0 says. It lives as long as rank 0 has something
    to write.
    """

    def __init__(self, torch: Any, ranks: Ranks, folder: Path) -> None:
        self._torch, self._ranks, self._folder = torch, ranks, folder
        self._aside = ranks.apart()  # for the threads that write
        here = ranks.gather(ranks.is_first)
        self._elsewhere = [rank for rank, is_first in enumerate(here) if not is_first]
        self._copies = [HostCopy(torch), HostCopy(torch)]
        self._held: List[List[Shard]] = [[], []]  # in each copy
        self._thread: Optional[threading.Thread] = None

    def follow(self, state: Any, *, is_last: bool) -> None:
        """Copy this rank's parts, on a rank other than 0 while rank 0 copies its own."""
        slot, begins = self._ranks.share(None)
        held, is_short = split(self._torch, {"state": state})[1], False
        if not is_last:
            held, is_short = taken(self._copies[slot], held)
        self._held[slot] = held
        waits = self.any(is_short) or is_last
        if begins:
            self.settle()
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        if waits:
            self.settle()

    def lead(self, slot: int, *, begins: bool) -> None:
        """Have the other ranks copy into one of their two copies; `begins`: their threads begin."""
        self._ranks.share((slot, begins))

    def any(self, flag: bool) -> bool:
        """Return whether this holds on any rank, once all have copied."""
        return bool(self._ranks.largest(flag)[0])

    def settle(self) -> None:
        """Wait until rank 0 has nothing more to write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def end(self) -> None:
        """End the threads of the other ranks."""
        with contextlib.suppress(RuntimeError):  # one of them has ended
            self._aside.share(None)

    def dump(self, slot: int, payload: Any, held: List[Shard], out: Flushed) -> None:
        """Write a checkpoint, on rank 0: what `split` has returned, and the other ranks' parts in
        the copies of this number.
        """
        torch, whole, errors = self._torch, filled(self._torch, payload), []
        with torch.serialization.skip_data():
            torch.save(whole, out)
        offsets = layout(torch, out.path)
        self._aside.share((slot, out.path.name, offsets))
        own = itertools.chain(
            *(pieces(torch, offsets[name], storage) for name, storage in storages(torch, payload)),
            self._pieces(held, offsets),
        )
        for written in (own, *map(self._received, self._elsewhere)):
            try:
                for at, data in written:
                    out.write(data, at)
            except Exception as error:
                errors.append(error)
                for _ in written:  # what a rank sends has to be received all the same
                    pass
        done = self._aside.gather((sum(shard.part.nbytes for shard in held), None))
        errors += [
            RuntimeError(f"rank {rank} could not write its part of a checkpoint: {why}")
            for rank, (_, why) in enumerate(done)
            if why is not None
        ]
        if errors:
            raise errors[0]
        whole_size = sum(each.nbytes for each in tensors(torch, payload) if each.is_meta)
        if sum(size for size, _ in done) != whole_size:
            raise RuntimeError("some parts of a sharded state are on no rank, or on several")
        out.read_again()

    def _work(self) -> None:
        with contextlib.suppress(RuntimeError):  # rank 0 has ended
            while True:
                order = self._aside.share(None)
                if order is None:
                    return
                self._aside.gather(self._carry_out(*order))

    def _carry_out(self, slot: int, name: str, offsets: Offsets) -> Tuple[int, Optional[str]]:
        try:
            parts = self._pieces(self._held[slot], offsets)
            if self._ranks.is_first:
                self._write(name, parts)
            else:
                self._send(parts)
        except Exception as error:
            return 0, repr(error)
        return sum(shard.part.nbytes for shard in self._held[slot]), None

    def _pieces(self, held: List[Shard], offsets: Offsets) -> Iterator[Piece]:
        for shard in held:
            yield from shard.pieces(self._torch, offsets[shard.name])

    def _write(self, name: str, parts: Iterator[Piece]) -> None:
        """Write this rank's parts to the file that rank 0 has laid out."""
        with open(self._folder / name, "r+b", buffering=0) as file:
            out = Flushed(file, self._folder / name)
            for at, data in parts:
                out.write(data, at)
            out.flush()

    def _send(self, parts: Iterator[Piece]) -> None:
        """Send this rank's parts to the instance of rank 0."""
        try:
            for at, data in parts:
                self._aside.send_to(0, self._torch.tensor([at, len(data)]))
                self._aside.send_to(0, self._torch.frombuffer(data, dtype=self._torch.uint8))
        finally:
            self._aside.send_to(0, self._torch.tensor([0, 0]))

    def _received(self, rank: int) -> Iterator[Piece]:
        head = self._torch.zeros(2, dtype=self._torch.int64)
        while True:
            self._aside.receive_from(rank, head)
            at, size = head.tolist()
            if not size:
                return
            data = bytearray(size)
            self._aside.receive_from(rank, self._torch.frombuffer(data, dtype=self._torch.uint8))
            yield at, data


def is_possible(torch: Any, parameters: Iterable[Any]) -> bool:
    """Return whether the state of these sharded parameters can be written in parts."""
    placements = {
        type(placement).__name__
        for each in filter(is_sharded, parameters)
        for placement in each.placements
    }
    return hasattr(torch.serialization, "skip_data") and (
        bool(placements) and placements <= {"Shard", "Replicate"}
    )


def split(torch: Any, value: Any) -> Tuple[Any, List[Shard]]:
    """Return a value with tensors of no memory (meta) in place of those that are sharded, and this
    rank's parts of them. It shares the memory of the others.
    """
    memo: Dict[int, Any] = {}
    held = []
    for name, tensor in named(torch, value):
        memo[id(tensor)] = tensor
        if is_sharded(tensor):
            whole = tuple(tensor.shape)
            memo[id(tensor)] = torch.empty(whole, dtype=tensor.dtype, device="meta")
            mesh, placements = tensor.device_mesh, tensor.placements
            place = mesh.get_coordinate() or [1] * mesh.ndim
            copies = [place[at] for at, each in enumerate(placements) if each.is_replicate()]
            if not any(copies):  # of ranks that have the same part, the first writes it
                held.append(Shard(name, local(tensor), whole, begin(torch, tensor)))
    return copy.deepcopy(value, memo), held


def is_sharded(tensor: Any) -> bool:
    """Return whether this is a tensor that is spread over the ranks (a DTensor)."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local(tensor: Any) -> Any:
    """Return this rank's part of a sharded tensor."""
    return tensor.detach().to_local()


def begin(torch: Any, tensor: Any) -> Tuple[int, ...]:
    """Return where this rank's part of a sharded tensor begins in the whole one."""
    shape, at = torch.distributed.tensor._utils.compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if tuple(shape) != (mine := tuple(local(tensor).shape)):
        raise RuntimeError(f"this rank's part of a sharded tensor is {mine}, not {tuple(shape)}")
    return tuple(at)


def part_of(torch: Any, value: Any, like: Any) -> Any:
    """Return a value in which tensors that are sharded in `like` are this rank's parts of them."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {key: part_of(torch, part, like.get(key)) for key, part in value.items()}
    if not (isinstance(value, torch.Tensor) and is_sharded(like)):
        return value
    mine = local(like)
    ends = map(operator.add, begin(torch, like), mine.shape)
    place = tuple(map(slice, begin(torch, like), ends))
    return type(like).from_local(
        value[place].contiguous().to(mine.device), like.device_mesh, like.placements,
        run_check=False, shape=like.shape, stride=like.stride(),
    )  # fmt: skip


def taken(memory: HostCopy, value: Any) -> Tuple[Any, bool]:
    """Return a copy, or where host memory is short the value itself; whether it is short."""
    try:
        return memory.take(value), False
    except MemoryError:
        return value, True


def filled(torch: Any, value: Any) -> Any:
    """Return a value with tensors on the CPU in place of those without memory. Nothing is written
    to their memory, so it takes addresses alone.
    """
    memo = {}
    for tensor in tensors(torch, value):
        memo[id(tensor)] = tensor
        if tensor.is_meta:
            storage = torch.UntypedStorage(tensor.nbytes)
            empty = torch.empty(0, dtype=tensor.dtype)
            memo[id(tensor)] = empty.set_(storage, 0, tensor.shape)
    return copy.deepcopy(value, memo)


def layout(torch: Any, path: Path) -> Offsets:
    """Return where the memory of each tensor begins in a file of `torch.save`. Raises
    `RuntimeError` if some bytes of the file belong to none that `named` yields.
    """
    begins = []
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            if record.filename.split("/")[-2:-1] == ["data"] and record.file_size:
                file.seek(record.header_offset + 26)  # the lengths of its name and of its extras
                lengths = struct.unpack("<HH", file.read(4))
                begins.append(record.header_offset + 30 + sum(lengths))
    # The file is mapped as one piece: addresses are as far from each other as places in it.
    addresses = {
        name: tensor.untyped_storage().data_ptr()
        for name, tensor in named(torch, load(torch, path))
        if tensor.layout is torch.strided and tensor.untyped_storage().nbytes()
    }
    zero = min(addresses.values(), default=0) - min(begins, default=0)
    offsets = {name: address - zero for name, address in addresses.items()}
    if set(offsets.values()) != set(begins):
        raise RuntimeError(
            "beside a sharded model only plain tensors can be saved, and some tensor that is "
            "tracked is not (sparse or quantized, say)"
        )
    return offsets


def storages(torch: Any, value: Any) -> Iterator[Tuple[Name, Any]]:
    """Yield the memory of tensors that have some, each once, as bytes."""
    seen = set()
    for name, tensor in named(torch, value):
        if tensor.is_meta or not tensor.untyped_storage().nbytes():
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
            yield name, flat.set_(storage, 0, (storage.nbytes(),))


def named(torch: Any, value: Any, name: Name = ()) -> Iterator[Tuple[Name, Any]]:
    """Yield the tensors in a value of dicts, lists and tuples, with their names."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from named(torch, part, (*name, key))


def pieces(torch: Any, begin: int, flat: Any) -> Iterator[Piece]:
    """Yield the bytes of a tensor of bytes that is in a file from here."""
    for first in range(0, len(flat), PIECE):
        part = flat[first : first + PIECE]
        data = bytearray(len(part))
        torch.frombuffer(data, dtype=torch.uint8).copy_(part)
        yield begin + first, data
