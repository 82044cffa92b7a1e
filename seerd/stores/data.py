"""The job's data as agents are sent it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from seerd.agent.protocol import MAX_LINE, Download, Downloads
from seerd.agent.wire import encode


def chunks(items: Sequence[Download]) -> list[Downloads]:
    """Split the downloads into messages that each fit into one line. The first one tells the agent
    to begin a new list.
    """
    lines: list[list[Download]] = [[]]
    length = 0
    for item in items:
        size = len(encode(Downloads(False, [item])))
        if length + size > MAX_LINE // 2:
            lines.append([])
            length = 0
        lines[-1].append(item)
        length += size
    return [Downloads(number == 0, line) for number, line in enumerate(lines)]
