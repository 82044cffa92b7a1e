"""Reads the checkpoint that a trial goes on from, on every rank.

The one rule: each rank reads the file of its own instance, and maps it; only instances that lack it
are sent it, piece by piece.
"""

import json
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from seerd.agent import folders
from seerd.training import checkpoints
from seerd.training.attempt import Attempt
from seerd.training.ranks import Ranks


class Restored(NamedTuple):
    """What a checkpoint holds."""

    payload: Dict[str, Any]
    folder: Optional[Path]  # where it is unpacked, if it is a folder


def read(torch: Any, ranks: Ranks, attempt: Attempt) -> Optional[Restored]:
    """Read the newest good checkpoint that rank 0 has; None if it has none."""
    newest = checkpoints.newest(torch, attempt.checkpoints) if ranks.rank == 0 else None
    manifest: Optional[Dict[str, Any]] = ranks.share(
        None if newest is None else json.loads(newest.with_suffix(".json").read_text())
    )
    if manifest is None:
        return None
    path = attempt.checkpoints / f"{manifest['name']}.pt"
    beside_first = ranks.rank == ranks.local  # on the instance of rank 0
    has = beside_first or ranks.local > 0 or _is_here(path, manifest)
    is_sent = ranks.many_nodes and not all(ranks.gather(has))
    if is_sent:
        to = path if beside_first else attempt.folder / "received.pt"
        writes = ranks.local == 0 and not beside_first
        ranks.send(newest, to if writes else None, manifest["size"])
        path = to
    ranks.gather(None)
    folder = attempt.folder / "checkpoint" if checkpoints.is_folder(path) else None
    if folder is None:
        restored = Restored(checkpoints.load(torch, path), None)
    else:
        if ranks.local == 0:  # once on each instance
            folders.unpack(path, folder)
        ranks.gather(None)
        restored = Restored(checkpoints.about(folder), folder)
    ranks.gather(None)
    if is_sent and ranks.local == 0 and not beside_first:
        path.unlink()  # it stays as long as it is mapped
    return restored


def _is_here(path: Path, manifest: Dict[str, Any]) -> bool:
    try:
        return checkpoints.is_whole(path, manifest)
    except OSError:
        return False
