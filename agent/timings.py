"""How long the agent waits and how often it looks, where several of its parts go by that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Times are in seconds."""

    lock_s: float = 2.0  # to try for the lock: others hold it for an instant to see who lives
    # that an instance that will be taken away waits for a daemon that moves its trials
    deserted_s: float = 10.0
    listing_s: float = 10.0  # for `nvidia-smi` to list the GPUs, before the agent takes orders
    setup_s: float = 2.0  # a setup command that takes longer is reported as slow
    others_s: float = 5.0  # to wait for the ends of attempts that the daemon does not hold
    crowded_s: float = 0.5  # between counts of processes while a table of them may be nearly full
    hang_look_s: float = 0.5  # between looks at the progress of ranks
    hang_quiet_s: float = 10.0  # a rank that has been quiet for fewer seconds is not hung
    # nor is one that has been quiet for less than so many times the longest spell of work here
    hang_patience: float = 5


TIMINGS = Timings()  # those of every agent
