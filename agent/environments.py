"""Which interpreter `[train] python` means, and which variables go with it.

The one rule: a command of several words (`uv run python`, `conda run -n NAME python`) only chooses
an environment. It is asked what it starts; trials, and the process that they are forked from, are
started by that, so that no other process stands between them and their agent.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import Dict, List, Tuple

ASKED = "import json, os, sys; print(json.dumps([sys.executable, dict(os.environ)]))"
"""What the command's Python is to run."""
NOT_KEPT = {"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE", "UV_RUN_RECURSION_DEPTH"}
"""Variables that say how the command was started, and nothing of the environment."""


def words_of(python: str, folder: str) -> List[str]:
    """Return the words of `[train] python`, which is meant in this folder. A path that exists is
    one word, spaces and all.

    Raises `ValueError` if a quotation is not closed.
    """
    words = shlex.split(python)
    if "/" in python and os.path.exists(os.path.join(folder, python)):
        words = [python]
    return [os.path.join(folder, words[0])] if len(words) == 1 and "/" in words[0] else words


def answer_of(output: str, env: Dict[str, str]) -> Tuple[str, Dict[str, str]]:
    """Return the interpreter that has answered, and the variables that differ from those of `env`,
    with which the command was started. Raises `ValueError` if none has.
    """
    path, seen = json.loads((output.strip().splitlines() or [""])[-1])
    changed = {name: value for name, value in seen.items() if env.get(name) != value}
    return str(path), {name: changed[name] for name in changed if name not in NOT_KEPT}
