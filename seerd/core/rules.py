"""The figures that decisions go by, given as one value to what decides.

The one rule: only deciding reads them. Recorded decisions are applied without them, so every
version reads every run as it was.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Times are in seconds, shares from 0 to 1."""

    # how many of a trial's newest checkpoints stay in the store; if the newest is damaged, the one
    # before it is used
    kept_checkpoints: int = 2
    keep_best: bool = True  # whether a trial's best checkpoint stays too, to be handed back
    # how many attempts of a trial may end by its own fault in a row without having come further
    # than before; with one more the trial has failed
    max_crashes: int = 2
    # how many may do so, however far they come, within the deadline divided by `burst_share`; with
    # one more the trial has failed
    max_burst: int = 20
    burst_share: float = 20  # 20: a twentieth of the deadline
    alike_trials: int = 3  # a job ends if so many trials, and all that were tried, fail alike
    # the same if they fail in different ways, or their configurations may be why
    many_trials: int = 6
    certain_trials: int = 2  # the same, if they fail by an error that no configuration can avoid
    # a job that has never reported ends if one more attempt was tried so many times in a row, and
    # for the patience of refused launches (but no longer than `blocked_s`), and something was in
    # the way each time
    blocked_times: int = 3
    blocked_s: float = 600.0  # see `blocked_times`
    # how many attempts of a trial in a row an obstacle may end before one more counts as a crash,
    # if the obstacle is in the way of that trial alone
    max_blocks: int = 4
    # how many may end by a machine's fault: many, but a trial must not crash its machine for ever
    max_losses: int = 10
    grace_min_s: float = 4.0  # how long a trial may take to save and exit, at least
    grace_max_s: float = 30.0  # how long a trial may take to save and exit, at most
    # from the end of the grace period until no process of an attempt is left, under any load
    kill_s: float = 1.5
    publish_s: float = 1.0  # from the last checkpoint until the best model is in its place
    # a run with a shorter deadline sets aside less for its end: `grace_min_s`, `kill_s` and
    # `publish_s` times its deadline divided by this
    short_s: float = 24.0
    # an attempt that has less time than this before the end is not started, since its processes
    # would hardly be up; but no more than the deadline divided by `shortest_share`, or than the
    # quickest attempt so far took until its first report, and at least `start_s`
    shortest_s: float = 5.0
    shortest_share: float = 12  # 12: a twelfth of the deadline
    start_s: float = 0.5  # see `shortest_s`
    lease_s: float = 60.0  # how long agents go on without hearing from the daemon, at most
    # how long an instance may go on that has never had an agent, so getting one must be quicker
    orphan_timeout_s: float = 600.0
    last_s: float = 120.0  # how long agents alone may take to store the last checkpoints, at most
    # how long before the cloud takes an instance away its trials must be gone, so that they have
    # saved and reported so
    notice_margin_s: float = 5.0
    # how long before an instance ends itself, for limits that held when it was rented, it is
    # replaced: in its last minutes nobody can log in any more
    retire_s: float = 300.0
    # a new timer is set only if it is earlier than the old one by more than this
    timer_slack_s: float = 0.01
    # a run without an instance gives up after so many refusals of launches in a row, if its
    # patience is over too
    max_refusals: int = 3
    patience_share: float = 10  # that patience is the deadline divided by this (10: a tenth)
    # from a refusal until launches are asked for again, at first; it doubles each time; the same
    # from a crash by what is in the way until one more is started
    retry_s: float = 15.0
    retry_most_s: float = 120.0  # from a refusal until launches are asked for again, at most
    # no such wait is longer than the deadline divided by this (20: a twentieth), so that a short
    # run is not all waiting
    retry_share: float = 20
    # between two plans, trials are moved together only if this share of the instances would do:
    # each move costs a save and a start
    worth_packing: float = 0.75
    # a rank is slow if each other one waits for at least so much more of its time than it does
    slow_share: float = 0.25
    max_failures: int = 3  # after so many answers in a row that cannot be used the run ends
    ask_again_s: float = 1.0  # how long after such an answer the policy is asked again


RULES = Rules()
"""The rules of this version."""
