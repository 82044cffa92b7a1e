"""Files of checkpoints: `NAME.pt` and its manifest, `NAME.json`.

The one rule: a checkpoint exists when its manifest does, and its manifest is written last.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from seerd.agent import KEPT

Worth = Callable[[Dict[str, Optional[float]]], Optional[float]]
"""How good metrics are, the more the better; None if that cannot be said."""


def write(torch: Any, folder: Path, name: str, payload: Dict[str, Any], worth: Worth) -> None:
    """Write a checkpoint, and remove all but the newest `KEPT` and the best one.

    Raises `RuntimeError` if it is the first one and could not be loaded again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = _dumped(torch, payload)
    if torch is not None and not any(folder.glob("[0-9]*.json")):
        _check_loadable(torch, data, payload["state"])
    manifest = {
        "version": 1,
        "name": name,
        "epoch": payload["epoch"],
        "metrics": payload["metrics"],
        "sha256": sha256(data),
        "size": len(data),
    }
    _write_whole(folder / f"{name}.pt", data)
    _write_whole(folder / f"{name}.json", json.dumps(manifest).encode())
    every = sorted(folder.glob("[0-9]*.json"))
    for old in set(every[:-KEPT]) - {_best(every, worth)}:
        old.unlink()
        old.with_suffix(".pt").unlink(missing_ok=True)


def _best(every: List[Path], worth: Worth) -> Optional[Path]:
    """Return the manifest of the best of these checkpoints, given oldest first; of equal ones the
    newest.
    """
    best: Optional[Path] = None
    most = -math.inf
    for path in every:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = worth(json.loads(path.read_text())["metrics"])
            if found is not None and found >= most:
                best, most = path, found
    return best


def newest(torch: Any, folder: Path) -> Optional[bytes]:
    """Read the newest checkpoint that is whole and can be loaded; None if there is none.

    A damaged one is passed over, and its manifest removed.
    """
    for path in sorted(folder.glob("[0-9]*.json"), reverse=True):
        try:
            manifest = json.loads(path.read_text())
            data = path.with_suffix(".pt").read_bytes()
            if len(data) != manifest["size"] or sha256(data) != manifest["sha256"]:
                raise ValueError("its size or checksum is not that of its manifest")
            load(torch, data)
        except Exception as error:
            print(
                f"seerd: checkpoint {path.stem} is damaged, trying the one before: {error}",
                file=sys.stderr,
            )
            # It would count among the newest, and a good one would be removed for it.
            path.unlink(missing_ok=True)
            continue
        return data
    return None


def load(torch: Any, data: bytes) -> Dict[str, Any]:
    """Read what `write` was given. No code in it is run."""
    loaded: Dict[str, Any] = (
        json.loads(data)
        if torch is None
        else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    )
    return loaded


def sha256(data: bytes) -> str:
    """Compute the checksum that a manifest has, in hex."""
    return hashlib.sha256(data).hexdigest()


def _dumped(torch: Any, payload: Any) -> bytes:
    if torch is None:
        return json.dumps(payload).encode()
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file that gets its name only when its bytes are on the disk."""
    part = path.with_name(f".{path.name}")
    with open(part, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, path)


def _check_loadable(torch: Any, data: bytes, states: Dict[str, Any]) -> None:
    """Raise `RuntimeError` if a checkpoint could not be loaded safely, and name what is to blame.

    This is found out at the first checkpoint, not when one is needed.
    """
    try:
        load(torch, data)
    except Exception as error:
        for name, state in states.items():
            try:
                load(torch, _dumped(torch, state))
            except Exception:
                raise RuntimeError(
                    f"the state_dict of {name!r} holds more than tensors, numbers, texts, "
                    "lists and dicts, "
                    "so a checkpoint with it could not be loaded safely (weights_only=True): "
                    f"{error}"
                ) from error
        raise
