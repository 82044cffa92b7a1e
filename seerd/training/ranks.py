"""The processes of the trial: the process group for DDP, what all must agree on, and their ends."""

import atexit
import contextlib
import copy
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, List, Optional

from seerd.agent.warm.script import flush_open_files

# seconds that ranks on several instances wait for each other: a vanished one closes no connection
PEERS_S = 120
PIECE = 16 << 20  # most bytes of a file that are sent at a time


def import_torch() -> Any:
    """Import torch and return it; None if it is missing."""
    try:
        import torch
        import torch.distributed
    except ImportError:
        return None
    return torch


class Ranks:
    """This process among those of the trial."""

    def __init__(self, torch: Any) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))  # how many processes there are
        self.local = int(os.environ.get("LOCAL_RANK", "0"))  # its number on this instance
        # how many processes are on this instance
        self.peers = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        self.many_nodes = self.peers < self.world  # whether there are others elsewhere
        # whether it computes on a CUDA device
        self.on_gpu = torch is not None and torch.cuda.is_available()
        self.device: Any = "cpu"  # where its model goes
        self._own = False
        self._group: Any = None
        self._torch = torch
        if torch is None:
            return
        self.device = torch.device("cuda", self.local) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.local)
        if self.world > 1:
            dist = torch.distributed
            patience = {"timeout": timedelta(seconds=PEERS_S)} if self.many_nodes else {}
            if not dist.is_initialized():
                dist.init_process_group("nccl" if self.on_gpu else "gloo", **patience)
                self._own = True
            self._group = (
                dist.new_group(backend="gloo", **patience) if self.on_gpu else dist.group.WORLD
            )

    def largest(self, *numbers: int) -> List[int]:
        """Return the largest of each number over all ranks."""
        if self._group is None:
            return list(numbers)
        votes = self._torch.tensor([int(number) for number in numbers])
        self._torch.distributed.all_reduce(
            votes, self._torch.distributed.ReduceOp.MAX, group=self._group
        )
        return [int(vote) for vote in votes.tolist()]

    def gather(self, mine: Any) -> List[Any]:
        """Return what every rank has, in the order of the ranks."""
        if self._group is None:
            return [mine]
        every: List[Any] = [None] * self._torch.distributed.get_world_size()
        self._torch.distributed.all_gather_object(every, mine, group=self._group)
        return every

    def share(self, mine: Any) -> Any:
        """Return what rank 0 has, on every rank."""
        if self._group is None:
            return mine
        box = [mine]
        self._torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def send(self, file: Optional[Path], to: Optional[Path], size: int) -> None:
        """Send `file` of rank 0, of so many bytes, to all ranks; those that have `to` write it."""
        torch = self._torch
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open(file, "rb")) if file is not None else None
            copy = stack.enter_context(open(to, "wb")) if to is not None else None
            for at in range(0, size, PIECE):
                piece = bytearray(min(PIECE, size - at))
                if source is not None:
                    source.readinto(piece)
                tensor = torch.frombuffer(piece, dtype=torch.uint8)
                torch.distributed.broadcast(tensor, 0, group=self._group)
                if copy is not None:
                    copy.write(piece)

    def apart(self) -> "Ranks":
        """Return these ranks with a process group of their own, for another thread; to be called
        on all of them.
        """
        ranks = copy.copy(self)
        if self._group is not None:
            ranks._group = self._torch.distributed.new_group(backend="gloo")
        return ranks

    def send_to(self, rank: int, tensor: Any) -> None:
        """Send a tensor to a rank that waits in `receive_from`."""
        self._torch.distributed.send(tensor, rank, group=self._group)

    def receive_from(self, rank: int, tensor: Any) -> None:
        """Wait for what a rank sends, a tensor of the same shape and type."""
        self._torch.distributed.recv(tensor, rank, group=self._group)

    @property
    def is_first(self) -> bool:
        """Whether this rank is on the same instance as rank 0."""
        return self.rank == self.local

    @property
    def own(self) -> bool:
        """Whether we made the process group, and it still exists."""
        return self._own and bool(self._torch.distributed.is_initialized())

    def close(self, *, together: bool) -> None:
        """Leave our group; `together`: after all ranks are here, else gloo aborts some."""
        if together:
            self._torch.distributed.barrier(group=self._group)
        self._torch.distributed.destroy_process_group()


class End:
    """How this process ends, in order even with torch's threads.

    A thread of gloo that drops the last reference to a tensor needs the interpreter. If that is
    being taken down, the process aborts ("terminate called without an active exception") and
    torchrun calls the whole attempt failed: on a busy machine in one of several runs, even after a
    barrier and `destroy_process_group()`. So ranks whose process group is ours leave without taking
    the interpreter down.
    """

    def __init__(self) -> None:
        # asked: whether SIGTERM has asked it to save and leave
        # failed: whether `sys.exit` was called with a status that is not 0
        self.asked = self.failed = False

    @property
    def crashed(self) -> bool:
        """Whether an exception that nobody has caught ends this process."""
        return hasattr(sys, "last_value")

    def heed_sigterm(self) -> None:
        """Take SIGTERM as a request to save and leave."""
        signal.signal(signal.SIGTERM, self._ask)

    def call(self, last: Callable[[], None]) -> None:
        """Call `last` when the script has come to its end."""
        # At exit Python does not say with which status, and a failure must not be hidden.
        self._exit, sys.exit = sys.exit, self._leave  # type: ignore[assignment]
        atexit.register(last)

    def _ask(self, *_: Any) -> None:
        self.asked = True

    def _leave(self, status: Any = None) -> None:
        self.failed = status not in (None, 0)
        self._exit(status)


def leave_at_once(status: int) -> None:
    """End this process at once, after what an ordinary end would still do."""
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._exit_function()  # ends the workers of loaders
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    flush_open_files()
    os._exit(status)
