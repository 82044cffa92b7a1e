"""Events and decisions as JSON, for the journal. Decoding accepts nothing else. `FORMAT` is raised
when an older version could not read the journal any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, ExtendAsked, JobAdded, RunStarted

FORMAT = 2  # 1 was before the first release

_encode = msgspec.json.Encoder().encode
WITH_PARTS = ("facts", "cluster", "problem", "job", "jobs")
"""Keys of what says how many parts a GPU has, and of what that is in."""
encode_decisions: Callable[[Sequence[AnyDecision]], bytes] = _encode  # a JSON list of objects
# What decodes raises `msgspec.DecodeError` if the data is damaged.
decode_event: Callable[[bytes], AnyEvent] = msgspec.json.Decoder(AnyEvent).decode
_decisions = msgspec.json.Decoder(list[AnyDecision])
decode_decisions: Callable[[bytes], list[AnyDecision]] = _decisions.decode


def encode_event(event: AnyEvent) -> bytes:
    """Return the event as a JSON object; `kind` names its type. Where GPUs have no parts, none are
    recorded, as before there were any. Raises what msgspec raises.
    """
    if not isinstance(event, RunStarted | ExtendAsked | JobAdded):
        return _encode(event)
    body = msgspec.to_builtins(event)
    _leave_out_whole(body)
    return _encode(body)


def _leave_out_whole(body: Any) -> None:
    for each in body if isinstance(body, list | tuple) else [body]:
        if each.get("parts") == 1:
            del each["parts"]
        for key in WITH_PARTS:
            _leave_out_whole(each.get(key, ()))


def is_kept(event: AnyEvent) -> bool:
    """Return whether a journal gives the event back as it is: a policy's answer may be no JSON."""
    try:
        return decode_event(encode_event(event)) == event
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False
