"""Events and decisions as JSON, for the journal. Decoding accepts nothing else. `FORMAT` is raised
when an older version could not read the journal any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent

FORMAT = 2
"""Plans are events, and verdicts are recorded, both with their reasons. (1 was before the first
release.)
"""

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_decisions: msgspec.json.Decoder[list[AnyDecision]] = msgspec.json.Decoder(list[AnyDecision])


def encode_event(event: AnyEvent) -> bytes:
    """Write an event as one JSON object; `kind` names its type."""
    return _encoder.encode(event)


def decode_event(data: bytes) -> AnyEvent:
    """Read an event. Raises `msgspec.DecodeError` if it is damaged."""
    return _events.decode(data)


def is_kept(event: AnyEvent) -> bool:
    """Return whether a journal gives the event back as it is: a policy's answer may be no JSON."""
    try:
        return decode_event(encode_event(event)) == event
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False


def encode_decisions(decided: Sequence[AnyDecision]) -> bytes:
    """Write decisions as a JSON list of objects."""
    return _encoder.encode(decided)


def decode_decisions(data: bytes) -> list[AnyDecision]:
    """Read decisions. Raises `msgspec.DecodeError` if they are damaged."""
    return _decisions.decode(data)
