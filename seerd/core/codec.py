"""Events and commands as JSON, for the journal. Versioned: `FORMAT` changes when an old journal could no longer be read.

The one rule: decoding accepts nothing that is not exactly an event or a command; a damaged record is a `msgspec.DecodeError`.
"""

from __future__ import annotations

import msgspec

from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent

FORMAT = 1

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_commands: msgspec.json.Decoder[list[AnyCommand]] = msgspec.json.Decoder(list[AnyCommand])


def encode_event(event: AnyEvent) -> bytes:
    """One JSON object with its `kind`."""
    return _encoder.encode(event)


def decode_event(data: bytes) -> AnyEvent:
    """The event that `encode_event` wrote."""
    return _events.decode(data)


def encode_commands(commands: list[AnyCommand]) -> bytes:
    """A JSON list of objects with their `kind`."""
    return _encoder.encode(commands)


def decode_commands(data: bytes) -> list[AnyCommand]:
    """The commands that `encode_commands` wrote."""
    return _commands.decode(data)
