"""The interpreters of jobs on this machine, as `[train] python` names them. A command is run once
for each preparation, after the setup, which may make the interpreter.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Dict, Tuple

from seerd.agent import host
from seerd.agent.arguments import (
    PRINT_INTERPRETER,
    fixed_environment,
    interpreter_answer,
    interpreter_words,
)
from seerd.agent.health import Look, last_line
from seerd.agent.protocol import Job

ENTER_S, ENTER_MOST_S = 120.0, 1800.0
"""Seconds until a command has started its Python, and at most while it reads (`uv` installs)."""


class Interpreters:
    """The interpreters. `marker`: SEERD_ATTEMPT of the processes that look for them."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._cache: Dict[str, Tuple[str, Dict[str, str]]] = {}

    async def complete(self, job: Job, anew: bool = False) -> Job:
        """Return the job with its interpreter. Raises `ValueError`, `OSError`, `UnhealthyError`."""
        if not job.python or job.launcher == "command":
            return job
        key = json.dumps([job.python, job.python_in, job.source, job.env], sort_keys=True)
        if anew or key not in self._cache:
            self._cache[key] = await self._of(job)
        path, changed = self._cache[key]
        return replace(job, python=path, env={**job.env, **changed})

    async def _of(self, job: Job) -> Tuple[str, Dict[str, str]]:
        folder = job.python_in or job.source
        words = interpreter_words(job.python, folder)
        if len(words) == 1:
            inside = interpreter_words(job.python, job.source)[0]
            path = inside if os.path.exists(inside) else words[0]
            if "/" in path and not os.access(path, os.X_OK):
                raise ValueError(f"there is no program {path}, which train.python names")
            return path, {}
        fixed = fixed_environment(job.env, job.names)
        env = {**os.environ, **fixed, host.MARKER: self._marker}
        look = Look([*words, "-c", PRINT_INTERPRETER], env, folder, ENTER_S, most_s=ENTER_MOST_S)
        status, output, errors = await look.take(job.python)
        try:
            path, changed = interpreter_answer(output, env)
        except (ValueError, TypeError):
            message = last_line(errors) or last_line(output) or "no message"
            raise ValueError(
                f"train.python, {job.python}, starts no Python in {folder} (exit status {status}): "
                f"{message}"
            ) from None
        if not os.access(path, os.X_OK):
            raise ValueError(
                f"train.python, {job.python}, starts {path}, which is not on this machine: a "
                'command that enters a container is for launcher = "command"'
            )
        return path, changed
