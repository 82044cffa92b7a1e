"""What is said of a long upload."""

from __future__ import annotations

from seerd.backends.ssh.workbench import Sending


def test_a_long_upload_is_told_now_and_then_and_a_short_one_never() -> None:
    told: list[str] = []
    moments = iter([0.0, 4.0, 10.0, 12.0, 21.0, 22.0])
    sending = Sending("source", 2_000_000_000, told.append, lambda: next(moments))
    for count in (100_000_000, 300_000_000, 600_000_000, 500_000_000, 500_000_000):
        sending.sent(count)
    assert told == [
        "source: 400 of 2,000 MB sent, about 40s more",
        "source: 1,500 of 2,000 MB sent, about 7s more",
    ]
