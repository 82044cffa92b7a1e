"""The numbers that decisions go by, as one value that is given to whoever decides.

The one rule: only deciding reads them. Reading a run applies what was decided, so a version with
other rules reads every run as it was.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds, shares from 0 to 1.

    kept_checkpoints  so many of a trial's newest checkpoints stay in the store: a damaged newest
                      one falls back to the one before it
    max_crashes       a trial that ends by its own fault is restarted so often, then it has failed
    max_losses        the same for ends that were the machine's fault: generous, but a trial that
                      takes its machine down must not do so for ever

    grace_min_s, grace_max_s  how long a trial may take to save and exit, at least and at most
    kill_s            from the end of the grace period until no process of an attempt is left,
                      however loaded the machine
    publish_s         from the last checkpoint until the best model is in its place
    shortest_s        an attempt that could not run so long before the end is not started: its
                      processes would hardly be up
    lease_s           how long agents go on without hearing from the daemon, at most
    orphan_timeout_s  how long an instance goes on that never gets an agent, at most: longer than
                      one may take to get there
    last_s            how long agents alone may take to store the last checkpoints, at most
    notice_margin_s   so long before the cloud takes an instance away its trials are gone: saved and
                      told, not only asked to
    timer_slack_s     a timer that would fire so little earlier is not set anew

    max_refusals      a run that has no instance gives up when launches have been refused so many
                      times in a row,
    patience_share    for this part of the deadline (a tenth: 10)
    retry_s, retry_most_s  from a refusal until launches are asked for again: at first, and at most;
                           it doubles each time
    retry_share       no wait takes more than this part of the deadline, so that a short run is not
                      all waiting (a twentieth: 20)
    worth_packing     between two plans, trials are moved together only if so few of the instances
                      would do: each move costs a save and a start
    slow_share        a rank is slow if each of the others waits for this part of its time more than
                      it does itself

    max_failures      so many times in a row the policy may give no plan that can be used, then the
                      run ends
    ask_again_s       how long after such an answer it is asked again
    """

    kept_checkpoints: int = 2
    max_crashes: int = 2
    max_losses: int = 10
    grace_min_s: float = 4.0
    grace_max_s: float = 30.0
    kill_s: float = 1.5
    publish_s: float = 1.0
    shortest_s: float = 5.0
    lease_s: float = 60.0
    orphan_timeout_s: float = 600.0
    last_s: float = 120.0
    notice_margin_s: float = 5.0
    timer_slack_s: float = 0.01
    max_refusals: int = 3
    patience_share: float = 10
    retry_s: float = 15.0
    retry_most_s: float = 120.0
    retry_share: float = 20
    worth_packing: float = 0.75
    slow_share: float = 0.25
    max_failures: int = 3
    ask_again_s: float = 1.0


RULES = Rules()
"""This version's."""
