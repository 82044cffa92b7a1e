"""Coverage-guided fuzzing of everything that reads bytes: `make fuzz SECONDS=300` (needs the extra
`fuzz`: atheris).

    python -m tests.fuzz.guided SECONDS [TARGET...]

The one rule: a target takes any bytes and ends well or with the errors that its docstring in the
product promises; anything else is a find, and atheris leaves the bytes in a file named `crash-...`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("make fuzz needs atheris: .venv/bin/pip install '.[fuzz]'")

with atheris.instrument_imports(include=["agent", "seerd", "planner"]):
    from seerd.agent.health import gpu_problem
    from seerd.agent.kept_reports import ReportLimit
    from seerd.agent.manifest import CheckpointError, Comparison, Manifest
    from seerd.agent.protocol import ProtocolError
    from seerd.agent.transfer import Directory
    from seerd.agent.trial_output import TrialOutput
    from seerd.agent.wire import decode, encode
    from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
    from seerd.errors import SeerdError
    from seerd.runs.wiring import load
    from seerd.shell.home import RunFolder
    from seerd.sim.curves import load_curves
    from seerd.spec.spec import load_spec
    from seerd.stores.base import stored
    from seerd.units import parse_duration, parse_gpu_time, parse_money

import msgspec

HERE = Path(tempfile.mkdtemp(prefix="fuzz-"))
GOAL = Comparison("accuracy", "max")


def _file(data: bytes, name: str = "file") -> Path:
    (HERE / name).write_bytes(data)
    return HERE / name


def protocol(data: bytes) -> None:
    """A line between daemon and agent."""
    with contextlib.suppress(ProtocolError):
        message = decode(data)
        assert decode(encode(message)) == message


def trial_output(data: bytes) -> None:
    """What a trial writes."""
    told = TrialOutput(
        _file(data), "t", 1, HERE / "local", Directory(HERE / "store", GOAL), GOAL, ReportLimit()
    )
    for facts in told.drain_all():
        for fact in facts:
            decode(encode(fact))


def manifest(data: bytes) -> None:
    """Of a checkpoint, as the agent and as the daemon read it."""
    with contextlib.suppress(CheckpointError):
        Manifest.parse(data)
    stored("a", data)


def spec(data: bytes) -> None:
    """A person's spec."""
    with contextlib.suppress(SeerdError):
        load_spec(_file(data, "spec.toml"))


def units(data: bytes) -> None:
    """Durations, GPU time, money."""
    for parse in (parse_duration, parse_gpu_time, parse_money):
        with contextlib.suppress(ValueError):
            parse(data.decode("latin-1"))


def event(data: bytes) -> None:
    """An event in a journal."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        encode_event(decode_event(data))


def decisions(data: bytes) -> None:
    """What was decided, in a journal."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        encode_decisions(decode_decisions(data))


def curves(data: bytes) -> None:
    """An .npz file."""
    with contextlib.suppress(SeerdError):
        load_curves(_file(data, "c.npz"))


def setup(data: bytes) -> None:
    """What the daemon needs to go on."""
    _file(data, "setup.json")
    with contextlib.suppress(SeerdError):
        load(RunFolder(HERE))


def smi(data: bytes) -> None:
    """What nvidia-smi prints."""
    gpu_problem(data.decode(errors="replace"), 8)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        protocol,
        trial_output,
        manifest,
        spec,
        units,
        event,
        decisions,
        curves,
        setup,
        smi,
    )
}


def main() -> int:
    """Each target in a process of its own, for its share of the time; how many have failed."""
    seconds, names = int(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    if len(names) == 1:
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={seconds}",
                "-rss_limit_mb=2048",
                "-timeout=20",
                "-print_final_stats=1",
            ],
            TARGETS[names[0]],
        )
        atheris.Fuzz()
    share = str(max(1, seconds // len(names)))
    failed = [
        n
        for n in names
        if subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", share, n], check=False
        ).returncode
    ]
    print("nothing was found" if not failed else f"found something in: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
