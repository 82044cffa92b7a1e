"""Proves that this machine can use the checkpoint store, before anything is trained on it."""

from __future__ import annotations

from typing import Optional

from seerd.agent.health import UnhealthyError
from seerd.agent.protocol import StoreProof
from seerd.agent.web import WebError, Wires

BYTE = b"1"
PAUSES_S = (0.5, 2.0)
"""Seconds between tries: with the time to connect, no answer is known after about half a minute."""


def prove(proof: StoreProof, wires: Optional[Wires] = None) -> None:
    """Put one byte into the store and get it. Raises `UnhealthyError`."""
    wires, got = wires or Wires(PAUSES_S), bytearray()

    def get() -> None:
        got.clear()
        wires.get(proof.get_url, 0, len(BYTE), got.extend)

    try:
        wires.insist(lambda: wires.put(proof.put_url, BYTE))
        wires.insist(get)
    except WebError as error:
        answered = "" if error.expired else "store-refused"  # what is too old is no fault of ours
        cause = answered if error.status else "store"
        raise UnhealthyError(f"it cannot use the checkpoint store: {error}", cause) from None
    if bytes(got) != BYTE:
        why = "it cannot use the checkpoint store: another byte came back than was put"
        raise UnhealthyError(why, "store-refused")
