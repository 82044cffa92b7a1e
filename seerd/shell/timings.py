"""How long the daemon waits for what: the environment of a run holds one value of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonTimings:
    """Times are in seconds."""

    renew_s: float = 5.0  # between renewals of an agent's lease
    silent_s: float = 15.0  # longest silence of an agent before reconnecting
    answer_s: float = 10.0  # longest wait for an agent's answer to hello, and for its end
    retry_s: float = 0.2  # from a lost connection to the next
    give_up_s: float = 30.0  # until an agent that breaks the protocol is given up
    catch_up_s: float = 60.0  # longest wait for announced facts; then the agent counts as silent
    renew_urls_s: float = 600.0  # between renewals of URLs: temporary credentials expire
    keep_s: float = 20.0  # for which checkpoints to keep are gathered, to save requests
    remark_s: float = 30.0  # until what takes long is remarked, and until it is again
    reattach_s: float = 10.0  # that a resumed run waits for its agents
    overdue_s: float = 2.0  # that it waits at least, though a limit has come


TIMINGS = DaemonTimings()  # those of every run
