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
    is_first = ranks.is_first
    has = is_first or ranks.local > 0 or _is_here(path, manifest)
    is_sent = not all(ranks.gather(has))
    if is_sent and not is_first:
        path = attempt.folder / "received.pt"
    leads = ranks.local == 0  # what is once on each instance is done by one rank
    if is_sent:
        ranks.send(newest, path if leads and not is_first else None, manifest["size"])
        ranks.gather(None)
    folder = attempt.folder / "checkpoint" if folders.is_packed(path) else None
    if folder is not None and leads:
        folders.unpack(path, folder)
    ranks.gather(None)
    payload = checkpoints.about(folder) if folder else checkpoints.load(torch, path)
    ranks.gather(None)
    if is_sent and leads and not is_first:
        path.unlink()  # its bytes stay as long as they are mapped
    return Restored(payload, folder)


def _is_here(path: Path, manifest: Dict[str, Any]) -> bool:
    try:
        return checkpoints.is_whole(path, manifest)
    except OSError:
        return False
