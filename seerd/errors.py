"""All errors that seerd shows to the user, each with the exit code of the command that it ends.

The one rule: the text says what happened, to what, what seerd did and what the user can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seerd.units import format_duration, format_gpu_time


class SeerdError(Exception):
    """Base of all errors of which only the text is shown, and no traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text and the attributes, not the arguments of `__init__`."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(cls: type[SeerdError], args: tuple[Any, ...], kept: dict[str, Any]) -> SeerdError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(kept)
    return error


class JournalError(SeerdError):
    """A journal cannot be read or written."""


class DamagedJournalError(JournalError):
    """A journal is damaged, so a run cannot go on from it."""

    def __init__(self, run: str, damage: str, whole: int) -> None:
        self.whole = whole  # how many of its events can be read
        way = (
            f"Nothing was started. `seerd show {run}` tells of those; to go on from there, with "
            f"the damaged journal kept beside the new one: seerd resume {run} --up-to {whole}"
            if whole
            else "Nothing can be read of it: start the run anew, and remove its folder"
        )
        super().__init__(f"{damage}. {way}")


class DamagedWarning(UserWarning):
    """A journal is damaged; only the events before the damage were read."""


class ImpossibleEventError(JournalError):
    """An event that cannot have happened in this run."""

    def __init__(self, seq: int, event: Any, error: Exception) -> None:
        self.seq = seq  # its number
        super().__init__(
            f"event {seq} ({type(event).__name__} at {event.at:.3f}s) cannot have happened in "
            f"this run: {type(error).__name__}: {error}.\n"
            "The run was made by another version of seerd, or its journal was changed; the "
            f"{seq - 1} events before it can be replayed."
        )


class RunRemovedError(JournalError):
    """The folder of a run was removed while it ran."""

    def __init__(self, run: str, folder: Any) -> None:
        super().__init__(
            f"{run} has ended without a result, because its folder {folder} was removed while it "
            "ran, and with it its journal, its scripts and its checkpoints. The script is not at "
            "fault: start the run anew, and remove runs only once they are over"
        )


class PolicyError(SeerdError):
    """A policy gave no plan: it took too long, raised an error, or its process has ended."""


class ProviderError(SeerdError):
    """An instance could not be had, reached or given back."""


class LaunchError(ProviderError):
    """A launch has failed."""

    def __init__(
        self,
        why: str,
        *,
        retry: bool,
        since: float | None = None,
        until: float | None = None,
        unknown: bool = False,
        cause: str = "",
    ) -> None:
        super().__init__(why)
        self.retry = retry  # whether asking again later may help
        self.since = since  # when its instance began to run, seconds since 1970; None: never
        self.until = until  # when its instance ended; None: it never ran
        self.unknown = unknown  # whether the cloud's reason is unknown, and with it `retry`
        # what made its instance useless, a `core.events.SetbackCause`; empty: another reason
        self.cause = cause


class AbandonedError(SeerdError):
    """The user did not wait for the end of a run."""

    exit_code = 130

    def __init__(self, run: str) -> None:
        super().__init__(
            f"{run} was left as it is. What it still rents switches itself off when its "
            "agents' leases end, within about two minutes, or at the "
            f"run's hard end; `seerd resume {run}` waits for the end in order, `seerd sweep` "
            "shows what is left"
        )


class CloudError(ProviderError):
    """The cloud refused for good (credentials, permissions, quota, image); nothing was started."""

    exit_code = 5


class ImageError(SeerdError):
    """No image was made. The text says whether its instance was given back."""


class CapError(SeerdError):
    """The run might cost more than is ever allowed; nothing was started."""

    exit_code = 3


class InterruptedRentalError(SeerdError):
    """The user pressed Ctrl-C while instances were rented; the text says what is left."""

    exit_code = 130


class StoreError(SeerdError):
    """A checkpoint could not be read or written."""

    def __init__(self, why: str, *, damaged: bool = False) -> None:
        super().__init__(why)
        self.damaged = damaged  # missing, or not as confirmed: asking again would not help


class ExportError(SeerdError):
    """A run could not be exported completely; exporting again adds the rest."""


class UsageError(SeerdError):
    """The request is not possible: for example a wrong option, or an unknown run."""

    exit_code = 2


class BusyError(UsageError):
    """Another process runs this run."""

    def __init__(self, run: str, owner: int | None) -> None:
        super().__init__(
            f"{run} is being run by process {owner}; follow it with: seerd watch {run}"
        )


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a spec."""

    path: str  # the key's path
    found: str  # what was found; empty: nothing
    allowed: str  # what is allowed
    hint: str = ""  # what may have been meant; empty: not known
    line: int | None = None  # the line in the file, from 1; None: not known
    option: str = ""  # the option, or the argument of the call, that has it; empty: the file has

    def __str__(self) -> str:
        where = self.option or (
            self.path if self.line is None else f"line {self.line}: {self.path}"
        )
        hint = f" (did you mean {self.hint}?)" if self.hint else ""
        found = f"found {self.found}, " if self.found else ""
        return f"{where}: {found}{self.allowed}{hint}"


class SpecError(UsageError):
    """All mistakes of a spec at once."""

    def __init__(self, file: str, problems: Sequence[Mistake]) -> None:
        self.problems = tuple(problems)
        count = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        options = [problem.option for problem in problems if problem.option]
        where = file
        if options and len(options) == len(problems):
            where = "the command line" if options[0].startswith("-") else "the call"
        super().__init__(
            f"{where} has {count}:\n" + "\n".join(f"  {problem}" for problem in problems)
        )


class LimitsError(SeerdError):
    """The limits cannot be met; nothing was started."""

    exit_code = 3

    def __init__(
        self, reason: str, min_deadline_s: float, min_budget_gpu_s: float, advice: str = ""
    ) -> None:
        self.reason = reason
        self.min_deadline_s = min_deadline_s  # the shortest deadline that would do, seconds
        self.min_budget_gpu_s = min_budget_gpu_s  # the least budget that would do, GPU-seconds
        smallest = (
            "The smallest limits that allow one trial of one stage are "
            f"--deadline {format_duration(min_deadline_s)} and --budget "
            f"{format_gpu_time(min_budget_gpu_s)}."
        )
        super().__init__(f"nothing was started: {reason}.\n{advice or smallest}")


class NothingMeasuredError(SeerdError):
    """The run of a profile ended without a single report."""

    exit_code = 4


class NoModelError(SeerdError):
    """There is no model to return."""

    exit_code = 4
