"""Asks a run for something while it goes on, and waits for its answer. A request without an answer
is withdrawn.
"""

from __future__ import annotations

import time

from seerd.core.lifecycle import RunPhase
from seerd.core.verdicts import DenyCause
from seerd.errors import UsageError
from seerd.runs import reading
from seerd.shell.home import RunFolder
from seerd.shell.inbox import Inbox, Request
from seerd.telling.explanation.sentences import REASONS
from seerd.telling.working import working

PATIENCE_S = 30.0
POLL_S = 0.1
# what the user can do where a run denies a request
ADVICE: dict[DenyCause, str] = {
    "ending": "; if it was interrupted: seerd resume {run}",
    "lower": "; to end it sooner: seerd stop {run}",
    "no-more": ": it has begun all that it may, or begins them all at once; seer+, asha, bohb, "
    "hypersched and hyperband go on to begin new ones",
}


def check_running(folder: RunFolder, what: str) -> None:
    """Raise `UsageError` if no process runs the run. `what`: what cannot be done, for people."""
    if folder.owner() is not None:
        return
    state = reading.read(folder)
    if state.phase is RunPhase.OVER and state.end.status != "interrupted":
        raise UsageError(
            f"{folder.run} is over, so {what}; a new run learns from it: seerd run SPEC --like "
            f"{folder.run}"
        )
    raise UsageError(
        f"{folder.run} is not running, so {what}; go on first with: seerd resume {folder.run}"
    )


def why_denied(folder: RunFolder, cause: DenyCause) -> str:
    """Return why the run denies a request, and what the user can do."""
    return REASONS["denied"][cause] + ADVICE.get(cause, "").format(run=folder.run)


def ask(folder: RunFolder, request: Request, patience_s: float = PATIENCE_S) -> str:
    """Return why the run denies it, empty if it does not. Raises `UsageError` without an answer."""
    inbox = Inbox(folder.requests)
    try:
        name = inbox.put(request)
    except OSError as error:
        raise UsageError(f"{folder.run} cannot be asked: {error.strerror}") from error
    end = time.monotonic() + patience_s
    show = f"seerd show {folder.run}"
    try:
        with working(f"waiting for an answer of {folder.run}"):
            while True:
                alive = folder.owner() is not None
                reply = inbox.reply(name)
                if reply is not None:
                    detail = f": {reply.detail}" if reply.detail else ""
                    return why_denied(folder, reply.denied) + detail if reply.denied else ""
                if not alive:
                    raise UsageError(
                        f"the process of {folder.run} has ended before it answered; unless {show} "
                        f"tells it, ask again after seerd resume {folder.run}"
                    )
                if time.monotonic() > end:
                    raise UsageError(
                        f"{folder.run} has not answered in {patience_s:g} s, and is asked no more. "
                        f"What holds: {show}"
                    )
                time.sleep(POLL_S)
    finally:
        inbox.withdraw(name)
