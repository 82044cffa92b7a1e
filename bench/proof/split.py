"""Which tasks of the proof are for choosing (`dev`) and which for the one look (`test`).

`python -m bench.proof.split FOLDER` writes split.json from the .npz files of a folder. It is
committed before the first run, and never written again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

Part = Literal["dev", "test"]

PATH = Path(__file__).parent / "split.json"
RULE = (
    "The tasks of a family are ordered by the SHA-256 of 'family/task'; the first, third, fifth "
    "and so on are dev, the others test."
)


@dataclass(frozen=True, slots=True)
class ProofTask:
    """A file of learning curves."""

    family: str  # its name up to the first `_`
    name: str  # the rest
    part: Part  # which part of the split it belongs to
    sha256: str  # of the file

    @property
    def file_name(self) -> str:
        """The file's name."""
        return f"{self.family}_{self.name}.npz"


def split_of(files: list[Path]) -> list[ProofTask]:
    """Split files of curves by the rule, in the order of their names."""
    families: dict[str, list[tuple[str, str, Path]]] = {}
    for file in files:
        family, _, name = file.stem.partition("_")
        families.setdefault(family, []).append((order_of(family, name), name, file))
    tasks = [
        ProofTask(family, name, "test" if place % 2 else "dev", digest_of(file))
        for family, members in families.items()
        for place, (_, name, file) in enumerate(sorted(members))
    ]
    return sorted(tasks, key=lambda task: task.file_name)


def order_of(family: str, name: str) -> str:
    """Return by what the tasks of a family are ordered."""
    return sha256(f"{family}/{name}".encode()).hexdigest()


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return sha256(file.read_bytes()).hexdigest()


def read(path: Path = PATH) -> list[ProofTask]:
    """Read a written split."""
    return [ProofTask(**entry) for entry in json.loads(path.read_text())["tasks"]]


def missing(tasks: list[ProofTask], folder: Path) -> list[str]:
    """List the files that the folder lacks, and those whose content is another one."""
    problems = []
    for task in tasks:
        file = folder / task.file_name
        if not file.exists():
            problems.append(f"{task.file_name} is missing")
        elif digest_of(file) != task.sha256:
            problems.append(f"{task.file_name} has another SHA-256")
    return problems


def written(tasks: list[ProofTask]) -> str:
    """Return the text of split.json."""
    names = ",".join(f"{task.family}/{task.name}={task.part}" for task in tasks)
    lines = ",\n".join(
        f"  {json.dumps({key: getattr(task, key) for key in ('family', 'name', 'part', 'sha256')})}"
        for task in tasks
    )
    digest = sha256(names.encode()).hexdigest()
    return f'{{"rule": {json.dumps(RULE)},\n "sha256": "{digest}",\n "tasks": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    if PATH.exists():
        sys.exit(f"{PATH} is frozen")
    PATH.write_text(written(split_of(sorted(Path(sys.argv[1]).glob("*.npz")))))
