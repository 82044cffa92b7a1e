"""The rows of a journal that lies in the repository as lines of JSON, as `Journal.entries` gives
those of a file.
"""

from __future__ import annotations

import json
from pathlib import Path

from seerd.core.codec import decode_decisions, decode_event
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.format1 import convert


def rows_of(path: Path) -> list[tuple[AnyEvent, list[AnyDecision]]]:
    """Of format 1 as they would have been written now."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    behind = "commands" if path.parent.name == "format1" else "decisions"
    rows = [
        (decode_event(_json(line["event"])), decode_decisions(_json(line[behind])))
        for line in lines
    ]
    return list(convert(rows)) if path.parent.name == "format1" else rows


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
