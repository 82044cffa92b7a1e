"""TensorBoard's event files, a folder for each trial; half-written records are cut off."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from seerd.errors import ExportError
from seerd.export.tracked import Tracked, Tracker, values_of
from seerd.telling.explanation.timeline import RunHistory
from seerd.telling.harmless import scalar

NAME = "events.out.tfevents.seerd"  # TensorBoard looks for `tfevents` in a name
HEAD, TAIL = 12, 4  # bytes of a record: its length with a checksum; a checksum


class ToTensorBoard(Tracker):
    """The event files of a run, in a folder of its own. Raises `ExportError`."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._folder = Path(where)
        self._last: dict[Path, int] = {}

    def add(self, trial: Tracked, run: RunHistory) -> None:
        """Add the reports that are not there yet."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        path = self._folder / run.state.facts.run / trial.name / NAME
        try:
            if path not in self._last:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._last[path] = _opened(path, trial)
            events = []
            for report in values_of(run, trial.name, self._last[path]):
                values = report.metrics.items()
                scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values]
                summary = Summary(value=scalars)
                events.append(Event(wall_time=report.at, step=report.step, summary=summary))
            _append(path, events)
            self._last[path] = max(self._last[path], trial.reports)
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error.strerror}") from error


def _opened(path: Path, trial: Tracked) -> int:
    """Make the file, or cut off what is half written; return the last report's number, or -1."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    content = path.read_bytes() if path.exists() else b""
    # The records that are whole (github.com/tensorflow/tensorboard, `record_writer.py`).
    whole, size = [], 0
    while size + HEAD <= len(content):
        (length,) = struct.unpack_from("<Q", content, size)
        end = size + HEAD + length + TAIL
        if end > len(content):
            break
        whole.append(content[size + HEAD : size + HEAD + length])
        size = end
    if size != len(content):
        with path.open("r+b") as file:
            file.truncate(size)
    if not whole:
        about = hparams_pb(
            {name: scalar(value) for name, value in trial.config.items()}, trial.name, trial.started
        )
        version = Event(wall_time=trial.started, file_version="brain.Event:2")
        _append(path, [version, Event(wall_time=trial.started, summary=about)])
    scalars = (Event.FromString(record) for record in whole[2:])
    return max((event.step for event in scalars), default=-1)


def _append(path: Path, events: list[Any]) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
