"""Events and decisions as JSON, for the journal. Decoding accepts nothing else. `FORMAT` is raised
when an older version could not read the journal any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent

FORMAT = 2  # 1 was before the first release

_encode = msgspec.json.Encoder().encode
encode_event: Callable[[AnyEvent], bytes] = _encode  # one JSON object; `kind` names its type
encode_decisions: Callable[[Sequence[AnyDecision]], bytes] = _encode  # a JSON list of objects
# Both raise `msgspec.DecodeError` if the data is damaged.
decode_event: Callable[[bytes], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode
_decisions = msgspec.json.Decoder(list[AnyDecision])
decode_decisions: Callable[[bytes], list[AnyDecision]] = _decisions.decode


def is_kept(event: AnyEvent) -> bool:
    """Return whether a journal gives the event back as it is: a policy's answer may be no JSON."""
    try:
        return decode_event(encode_event(event)) == event
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False
