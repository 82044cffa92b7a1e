"""Files of checkpoints: `NAME.pt` and its manifest, `NAME.json`.

The one rule: a checkpoint exists when its manifest does, and its manifest is written last.
"""

import hashlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional

from seerd.agent import folders
from seerd.agent.manifest import Comparison, by_number, needed

FLUSHED = 32 << 20  # bytes after which written data must be on the disk
ABOUT = "seerd.json"  # file in a checkpoint that is a folder: what is known of the trial


def write(folder: Path, name: str, about: Dict[str, Any], data: bytes, goal: Comparison) -> None:
    """Write a checkpoint of these bytes, and remove those that are not `needed` any more. `about`:
    what is known of the trial.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "version": 1,
        "name": name,
        "epoch": about["epoch"],
        "metrics": about["metrics"],
        "sha256": _write_whole(folder / f"{name}.pt", data),
        "size": len(data),
        "versions": versions(),
    }
    publish(folder, manifest, goal)


def publish(folder: Path, manifest: Dict[str, Any], goal: Comparison) -> None:
    """Write a checkpoint's manifest, and remove checkpoints that are not `needed` any more."""
    _write_whole(folder / f"{manifest['name']}.json", json.dumps(manifest).encode())
    worths = {path.stem: goal.worth_at(folder, path.stem) for path in every(folder)}
    for old in worths.keys() - needed(worths):
        (folder / f"{old}.json").unlink()
        (folder / f"{old}.pt").unlink(missing_ok=True)


def versions() -> Dict[str, str]:
    """Return the versions of Python and, if it is imported, of torch."""
    known_versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    torch = sys.modules.get("torch")
    return known_versions if torch is None else {**known_versions, "torch": str(torch.__version__)}


def every(folder: Path) -> List[Path]:
    """Return the manifests in this folder, oldest first."""
    return sorted(folder.glob("[0-9]*.json"), key=lambda path: by_number(path.stem))


def newest(torch: Any, folder: Path) -> Optional[bytes]:
    """Read the newest whole checkpoint, None if there is none; damaged ones lose their manifest."""
    for path in reversed(every(folder)):
        try:
            manifest = json.loads(path.read_text())
            data = path.with_suffix(".pt").read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            if len(data) != manifest["size"] or sha256 != manifest["sha256"]:
                raise ValueError("its size or checksum is not that of its manifest")
            if not is_folder(data):
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


def is_folder(data: bytes) -> bool:
    """Return whether these are the bytes of a checkpoint that is a folder."""
    return data.startswith(folders.LISTING.encode() + b"\0")


def packed(folder: Path, about: Dict[str, Any]) -> bytes:
    """Return the bytes of a checkpoint of this folder, with what is known of the trial."""
    (folder / ABOUT).write_text(json.dumps(about))
    out = io.BytesIO()
    folders.pack(folder, out)
    return out.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Make the folder anew from the result of `packed`. Raises `CheckpointError`, `OSError`."""
    part = folder.with_name(f".{folder.name}.pt")
    part.write_bytes(data)
    folders.unpack(part, folder)
    part.unlink()


def about(folder: Path) -> Dict[str, Any]:
    """Return what `packed` was given."""
    body: Dict[str, Any] = json.loads((folder / ABOUT).read_text())
    return body


def dumped(torch: Any, payload: Any) -> bytes:
    """Return the bytes of a checkpoint that `load` can read."""
    if torch is None:
        return json.dumps(payload).encode()
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


def _write_whole(path: Path, data: bytes) -> str:
    """Write a file that gets its name only when its bytes are on the disk; return its checksum."""
    part = path.with_name(f".{path.name}")
    with open(part, "wb") as file:
        out = Flushed(file)
        for at in range(0, len(data), FLUSHED):
            out.write(memoryview(data)[at : at + FLUSHED])
        out.flush()
    os.replace(part, path)
    return out.sha256.hexdigest()


class Flushed:
    """A file that is flushed to the disk after every `FLUSHED` bytes: a process that waits for the
    disk cannot be killed, so no wait may be long.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unflushed = 0
        self.sha256 = hashlib.sha256()  # the checksum of what was written

    def write(self, data: Any) -> int:
        """Write as a file does."""
        self.sha256.update(data)
        written = self._file.write(data)
        self._unflushed += len(data)
        if self._unflushed >= FLUSHED:
            self.flush()
        return written

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._file.tell()

    def flush(self) -> None:
        """Wait until all is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unflushed = 0


def check_loadable(torch: Any, data: bytes, states: Dict[str, Any]) -> None:
    """Raise `RuntimeError`, with the object to blame, if a checkpoint could not be loaded safely:
    at the first checkpoint, not when one is needed.
    """
    try:
        load(torch, data)
    except Exception as error:
        # torch's own text is long, and advises to load it unsafely.
        match = re.search(r"GLOBAL (\S+)", str(error))
        why = f"there is a {match[1]} in it" if match else str(error).split("\n", 1)[0]
        for name, state in states.items():
            try:
                load(torch, dumped(torch, state))
            except Exception:
                raise RuntimeError(
                    f"the state_dict of {name!r} holds more than tensors, numbers, texts, "
                    "lists and dicts, "
                    f"so a checkpoint with it could not be loaded safely: {why}"
                ) from None
        raise
