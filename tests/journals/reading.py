"""The rows of a journal that lies in the repository as lines of JSON, as `Journal.entries` gives
those of a file.
"""

from __future__ import annotations

import json
from pathlib import Path

from seerd.core.codec import decode_decisions, decode_event
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent


def rows_of(path: Path) -> list[tuple[AnyEvent, list[AnyDecision]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (decode_event(_json(line["event"])), decode_decisions(_json(line["decisions"])))
        for line in lines
    ]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
