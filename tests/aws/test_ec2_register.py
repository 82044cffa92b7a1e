"""The memory of instances: whatever EC2 answers, and in whatever order, time is counted once and
losses are told once.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seerd.aws.instances import ENDING, SeenInstance, Volume
from seerd.backends.base import Loss, Span
from seerd.backends.ec2.register import FORGET_S, Register, remains, why

T = 1_000_000.0


def seen(
    instance: str,
    state: str,
    *,
    token: str = "1.0",
    launched_at: float = T,
    ended_at: float | None = None,
    code: str = "",
) -> SeenInstance:
    return SeenInstance(
        instance,
        state,
        {"seerd:command": token},
        launched_at,
        ended_at,
        (code, ""),
        "10.0.0.1",
        "",
        "p3.8xlarge",
        "a",
        False,
    )


def nobody(token: str) -> bool:
    return False


def launched(register: Register) -> None:
    register.expect(seen("i-1", "pending"), "1.0", T, T + 1)
    register.observe([seen("i-1", "pending")], T + 2, T + 2.1, nobody)
    register.observe([seen("i-1", "running")], T + 3, T + 3.1, nobody)
    register["i-1"].handed_over = True


def test_it_runs_since_it_was_last_known_not_to() -> None:
    register = Register()
    launched(register)
    assert register["i-1"].span == Span(T + 2, None)


def test_it_ran_until_ec2_says_or_until_it_was_seen_to_have_ended() -> None:
    for ended_at, until in (
        (T + 10, T + 11),
        (None, T + 20.1),
        (T - 500, T + 20.1),
        (T + 900, T + 20.1),
    ):
        register = Register()
        launched(register)
        losses, _ = register.observe(
            [seen("i-1", "terminated", ended_at=ended_at)], T + 20, T + 20.1, nobody
        )
        assert [loss.span for loss in losses] == [Span(T + 2, until)]


def test_silence_is_no_loss_for_a_minute_and_then_it_is_since_it_began() -> None:
    register = Register()
    launched(register)
    assert register.observe([], T + 10, T + 10.1, nobody)[0] == []
    assert register.observe([], T + 3 + FORGET_S, T + 3 + FORGET_S, nobody)[0] == []
    (loss,) = register.observe([], T + 4 + FORGET_S, T + 4 + FORGET_S, nobody)[0]
    assert loss.span == Span(T + 2, T + 10)


def test_what_failed_to_start_cost_nothing() -> None:
    register = Register()
    register.expect(seen("i-1", "pending"), "1.0", T, T + 1)
    register.observe([seen("i-1", "terminated", code="Client.InternalError")], T + 2, T + 2, nobody)
    assert register["i-1"].span == Span()
    assert register["i-1"].hopeless


def test_what_is_stopped_is_lost_and_has_to_be_ended() -> None:
    register = Register()
    launched(register)
    losses, strays = register.observe([seen("i-1", "stopped")], T + 5, T + 5, nobody)
    assert strays == ["i-1"]
    assert "stopped it" in losses[0].why
    assert register.observe([seen("i-1", "stopped")], T + 6, T + 6, nobody)[1] == []


def test_a_stranger_is_ended_once_unless_its_launch_waits_for_it() -> None:
    register = Register()
    stranger = seen("i-9", "running", token="9.0")
    assert register.observe([stranger], T, T, lambda token: token == "9.0")[1] == []
    assert register.observe([stranger], T, T, nobody)[1] == ["i-9"]
    assert register.observe([stranger], T, T, nobody)[1] == []
    assert register.observe([seen("i-8", "terminated")], T, T, nobody)[1] == []


def test_every_known_reason_is_told_in_words() -> None:
    assert "spot instance back" in why(
        seen("i-1", "terminated", code="Server.SpotInstanceTermination")
    )
    assert "lease" in why(seen("i-1", "terminated", code="Client.InstanceInitiatedShutdown"))
    assert why(seen("i-1", "terminated")) == "EC2 gives no reason"


STATES = ("absent", "pending", "running", "shutting-down", "terminated", "stopped")


@given(
    answers=st.lists(
        st.tuples(
            st.sampled_from(STATES),
            st.floats(0.01, 100.0),
            st.one_of(st.none(), st.floats(-1e4, 1e4)),
        ),
        max_size=20,
    ),
    give_back_at=st.integers(0, 20),
)
def test_any_answers_in_any_order(
    answers: list[tuple[str, float, float | None]], give_back_at: int
) -> None:
    register, losses, now = Register(), list[Loss](), T
    entry = register.expect(seen("i-1", "pending"), "1.0", T, T)
    entry.handed_over = True
    for step, (state, later_s, ended) in enumerate(answers):
        entry.given_back = entry.given_back or step == give_back_at
        before = entry.span, entry.until
        now += later_s
        ended_at = None if ended is None else now + ended
        rows = [] if state == "absent" else [seen("i-1", state, ended_at=ended_at)]
        losses += register.observe(rows, now - 0.005, now, nobody)[0]
        if before[1] is not None:
            assert (entry.span, entry.until) == before, "an end is final"
        if state in ENDING:
            assert entry.ended
        span = entry.span
        assert span.since is None or T <= span.since <= now
        assert span.since is None or span.until is None or span.since <= span.until <= now
    assert len(losses) <= 1
    assert not losses or losses[0].span.until is not None or losses[0].span == Span()


def disk(volume: str, state: str, *holders: str) -> Volume:
    return Volume(volume, state, {}, 100, T, frozenset(holders))


def test_what_shuts_down_and_its_disks_are_nothing_left() -> None:
    there = [
        seen("i-1", "shutting-down"),
        seen("i-2", "terminated"),
        *(seen(f"i-{state}", state) for state in ("pending", "running", "stopping", "stopped")),
    ]
    disks = [
        disk("v-1", "in-use", "i-1"),
        disk("v-2", "in-use", "i-2"),
        disk("v-3", "deleting"),
        disk("v-4", "deleted"),
        disk("v-5", "available"),
        disk("v-6", "in-use", "i-running"),
        disk("v-7", "in-use", "i-1", "i-of-somebody-else"),
        disk("v-8", "in-use"),
    ]
    left = remains(there, disks)
    assert [line.split()[1] for line in left.ending] == ["i-1", "v-1", "v-2", "v-3"]
    assert [line.split()[1] for line in left.costing] == [
        *("i-pending", "i-running", "i-stopping", "i-stopped"),
        *("v-5", "v-6", "v-7", "v-8"),
    ]
    assert remains(there[:2], disks[:4]).costing == []
