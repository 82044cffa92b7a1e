"""Files of checkpoints: `NAME.pt` and its manifest, `NAME.json`.

The one rule: a checkpoint exists when its manifest does, and its manifest is written last.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, cast

from seerd.agent import folders, plainfile
from seerd.agent.manifest import Comparison, by_number, needed
from seerd.training.copies import hollow

# what is flushed while a file is written need not have the file's times; macOS has `fsync` alone
FLUSH: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
FLUSHED = 64 << 20  # bytes after which written data must be on the disk
READ = 4 << 20  # bytes that are read at a time
ABOUT = "seerd.json"  # file in a checkpoint that is a folder: what is known of the trial


def write(
    folder: Path,
    name: str,
    epoch: int,
    metrics: Dict[str, Optional[float]],
    dump: Callable[["Flushed"], None],
    goal: Comparison,
) -> None:
    """Write a checkpoint whose bytes `dump` writes, and remove those that are not `needed` any
    more. `epoch`, `metrics`: for its manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _whole(folder / f"{name}.pt") as out:
        dump(out)
        size = out.tell()
    manifest = {
        "version": 1,
        "name": name,
        "epoch": epoch,
        "metrics": metrics,
        "sha256": out.sha256.hexdigest(),
        "size": size,
        "versions": versions(),
    }
    publish(folder, manifest, goal)


def publish(folder: Path, manifest: Dict[str, Any], goal: Comparison) -> None:
    """Write a checkpoint's manifest, and remove checkpoints that are not `needed` any more."""
    with _whole(folder / f"{manifest['name']}.json") as out:
        out.write(json.dumps(manifest).encode())
    worths = {path.stem: goal.worth_at(folder, path.stem) for path in every(folder)}
    for old in worths.keys() - needed(worths):
        (folder / f"{old}.json").unlink()
        (folder / f"{old}.pt").unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Remove what a process that was killed has left: all that is without a manifest, or a part."""
    for path in folder.glob("*"):
        if path.name.startswith(".") or not path.with_suffix(".json").exists():
            path.unlink()


def versions() -> Dict[str, str]:
    """Return the versions of Python and, if it is imported, of torch."""
    known_versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    torch = sys.modules.get("torch")
    return known_versions if torch is None else {**known_versions, "torch": str(torch.__version__)}


def every(folder: Path) -> List[Path]:
    """Return the manifests in this folder, oldest first."""
    return sorted(folder.glob("[0-9]*.json"), key=lambda path: by_number(path.stem))


def newest(torch: Any, folder: Path) -> Optional[Path]:
    """Find the newest whole checkpoint's file, None if there is none; damaged ones lose their
    manifest.
    """
    for path in reversed(every(folder)):
        try:
            data = path.with_suffix(".pt")
            if not is_whole(data, json.loads(path.read_text())):
                raise ValueError("its size or checksum is not that of its manifest")
            if not folders.is_packed(data):
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


def is_whole(path: Path, manifest: Dict[str, Any]) -> bool:
    """Return whether this file has the size and checksum of a manifest. Raises `OSError`."""
    with plainfile.opened(path) as file:
        return plainfile.copied(file) == (manifest["size"], manifest["sha256"])


def load(torch: Any, path: Path) -> Dict[str, Any]:
    """Read what `dump` was given. No code in it is run, and tensors are mapped: their bytes are
    read when they are used.
    """
    loaded: Dict[str, Any] = (
        json.loads(path.read_bytes())
        if torch is None
        else torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    )
    return loaded


def pack(folder: Path, about: Dict[str, Any], out: "Flushed") -> None:
    """Write a checkpoint of this folder, with what is known of the trial."""
    (folder / ABOUT).write_text(json.dumps(about))
    folders.pack(folder, cast(BinaryIO, out))


def about(folder: Path) -> Dict[str, Any]:
    """Return what `pack` was given."""
    body: Dict[str, Any] = json.loads((folder / ABOUT).read_text())
    return body


def dump(torch: Any, payload: Any, out: Any) -> None:
    """Write a checkpoint that `load` can read."""
    if torch is None:
        out.write(json.dumps(payload).encode())
    else:
        torch.save(payload, out)


@contextlib.contextmanager
def _whole(path: Path) -> Iterator["Flushed"]:
    """Open a file that gets its name when its bytes are on the disk; else nothing is left of it."""
    part = path.with_name(f".{path.name}")
    try:
        # Without a buffer: a process that the script forks could write it out a second time.
        with open(part, "wb", buffering=0) as file:
            out = Flushed(file, part)
            try:
                yield out
            finally:  # nothing flushes a file that is closed
                out.flush()
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


class Flushed:
    """A file that is flushed to the disk after every `FLUSHED` bytes while it is written: a process
    that waits for the disk cannot be killed, so no wait may be long.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path = path
        self._file = file
        self._unflushed = 0
        self._flush: Optional[threading.Thread] = None
        self._error: Optional[OSError] = None
        self.sha256 = hashlib.sha256()  # the checksum of what was written in order

    def write(self, data: Any, place: Optional[int] = None) -> int:
        """Write as a file does, all of it. `place`: where in the file; None: in order."""
        view = memoryview(data)
        for at in range(0, len(view), FLUSHED):
            piece = view[at : at + FLUSHED]
            if place is None:
                self.sha256.update(piece)
            self._unflushed += len(piece)
            while piece:  # a file without a buffer may take less
                if place is None:
                    taken = self._file.write(piece)
                else:
                    taken = os.pwrite(self._file.fileno(), piece, place)
                    place += taken
                piece = piece[taken:]
            if self._unflushed >= FLUSHED:
                self._wait()
                self._begin_flush()
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go on at another place."""
        return self._file.seek(offset, whence)

    def read_again(self) -> None:
        """Make the checksum that of the file, which was not written in order."""
        self.sha256 = hashlib.sha256()
        with open(self.path, "rb", buffering=0) as file:
            for piece in iter(lambda: file.read(READ), b""):
                self.sha256.update(piece)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._file.tell()

    def flush(self) -> None:
        """Wait until all is on the disk."""
        self._wait()
        if self._unflushed:
            self._unflushed = 0
            self._file.flush()
            os.fsync(self._file.fileno())

    def _begin_flush(self) -> None:
        self._file.flush()
        self._flush = threading.Thread(target=self._fsync, daemon=True)
        try:
            self._flush.start()
            self._unflushed = 0
        except RuntimeError:  # the interpreter ends, and starts no thread any more
            self._flush = None
            self.flush()

    def _fsync(self) -> None:
        try:
            FLUSH(self._file.fileno())
        except OSError as error:
            self._error = error

    def _wait(self) -> None:
        if self._flush is not None:
            self._flush.join()
            self._flush = None
        if self._error is not None:
            raise self._error


def check_loadable(torch: Any, states: Dict[str, Any]) -> None:
    """Raise `RuntimeError`, with the object to blame, if a checkpoint of these states could not be
    loaded safely: at the first checkpoint, not when one is needed.
    """
    for name, state in states.items():
        data = io.BytesIO()
        torch.save(hollow(torch, state), data)
        data.seek(0)
        try:
            torch.load(data, weights_only=True)
        except Exception as error:
            # torch's own text is long, and advises to load it unsafely.
            match = re.search(r"GLOBAL (\S+)", str(error))
            why = f"there is a {match[1]} in it" if match else str(error).split("\n", 1)[0]
            raise RuntimeError(
                f"the state_dict of {name!r} holds more than tensors, numbers, texts, lists and "
                f"dicts, so a checkpoint with it could not be loaded safely: {why}"
            ) from None
