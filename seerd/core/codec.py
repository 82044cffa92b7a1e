"""Events and what was decided as JSON, for the journal. Versioned: `FORMAT` changes when an older
version could not read it any more.

The one rule: decoding accepts nothing that is not exactly an event or a decision; a damaged record
is a `msgspec.DecodeError`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent

FORMAT = 2
"""1: events and commands. 2: plans are events, verdicts are recorded, both with their reasons."""

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_decisions: msgspec.json.Decoder[list[AnyDecision]] = msgspec.json.Decoder(list[AnyDecision])


def encode_event(event: AnyEvent) -> bytes:
    """One JSON object with its `kind`."""
    return _encoder.encode(event)


def decode_event(data: bytes) -> AnyEvent:
    """The event that `encode_event` wrote."""
    return _events.decode(data)


def is_kept(event: AnyEvent) -> bool:
    """Whether a journal gives it back as it is: what others make up need not be JSON."""
    try:
        return decode_event(encode_event(event)) == event
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False


def encode_decisions(decided: Sequence[AnyDecision]) -> bytes:
    """A JSON list of objects with their `kind`."""
    return _encoder.encode(decided)


def decode_decisions(data: bytes) -> list[AnyDecision]:
    """What `encode_decisions` wrote. The commands of format 1 are such a list too."""
    return _decisions.decode(data)
