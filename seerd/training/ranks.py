"""The processes of the trial: the process group for DDP, and what all of them must agree on."""

import os
from datetime import timedelta
from typing import Any, List

# seconds that ranks on several instances wait for each other: a vanished one closes no connection
PEERS_S = 120


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
            self._join(torch.distributed)

    def _join(self, dist: Any) -> None:
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

    @property
    def own(self) -> bool:
        """Whether we made the process group, and it still exists."""
        return self._own and bool(self._torch.distributed.is_initialized())

    def close(self, *, together: bool) -> None:
        """Leave our group; `together`: after all ranks are here, else gloo aborts some."""
        if together:
            self._torch.distributed.barrier(group=self._group)
        self._torch.distributed.destroy_process_group()
