"""Mistakes that let reports stand in the way of limits, or fill memories."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KEPT = "tests/agent/test_kept_reports.py"
QUEUE = "tests/shell/test_event_queue.py"
FLOOD = "the limits hold at any rate of reports"

FLOODS = (
    Mutant(
        "after a million reports older checkpoints count as newer",
        "a trial goes on from its newest checkpoint",
        "by_number",
        "number[0].zfill(20)",
        "number[0]",
        ("tests/agent/test_agent_transfer.py",),
    ),
    Mutant(
        "every report is told",
        FLOOD,
        "KeptReports.may_send",
        "bool(self._kept) and self._left >= price",
        "bool(self._kept)",
        (f"{KEPT}::test_a_flood_is_told_a_few_times_a_second",),
    ),
    Mutant(
        "slow reports of an attempt that began among many stop in the end",
        FLOOD,
        "KeptReports.may_send",
        "min(max(self._most, price), self._left)",
        "min(self._most, self._left)",
        (KEPT,),
    ),
    Mutant(
        "each of many trials reports as often as one",
        FLOOD,
        "ReportLimit.a_second",
        "min(A_SECOND, A_SECOND_IN_ALL / max(1, self.running()))",
        "A_SECOND",
        (KEPT,),
    ),
    Mutant(
        "each attempt that begins has its first reports told, however many begin",
        FLOOD,
        "ReportLimit.at_once",
        "min(AT_ONCE, left * AT_ONCE / AT_ONCE_IN_ALL)",
        "AT_ONCE",
        (KEPT,),
    ),
    Mutant(
        "reports are told as often to a daemon that is behind",
        FLOOD,
        "ReportLimit.price",
        "(self.unacknowledged() / BEHIND) ** 2",
        "0",
        (KEPT,),
    ),
    Mutant(
        "the best report is dropped in a flood",
        "the best report and the last are told",
        "KeptReports.add",
        "[pair for pair in self._kept if pair[1]][-1:]",
        "[]",
        (KEPT,),
    ),
    Mutant(
        "what was kept back at the end of an attempt is not told",
        "the best report and the last are told",
        "TrialOutput.drain_all",
        "yield self.last_reports()",
        "",
        ("tests/agent/test_agent_trial_output.py",),
    ),
    Mutant(
        "the end of an attempt waits until all that it has written is read",
        FLOOD,
        "TrialOutput._lines",
        "behind > MOST_BEHIND",
        "False",
        ("tests/agent/test_agent_trial_output.py",),
    ),
    Mutant(
        "exits, timers and losses wait for reports",
        FLOOD,
        "EventQueue.put",
        "isinstance(event, TrialReported)",
        "True",
        (QUEUE,),
    ),
    Mutant(
        "an event overtakes earlier reports of its own instance",
        "facts are recorded in the order of their numbers",
        "EventQueue.put",
        "self._first.extend(self._reports.pop(instance, ()))",
        "",
        (QUEUE,),
    ),
    Mutant(
        "an agent is read however much of it waits",
        "the daemon's memory has a bound",
        "EventQueue.room",
        "self.is_bounded",
        "False",
        (QUEUE,),
    ),
    Mutant(
        "all that waits is handled before timers have their turn",
        FLOOD,
        "EventQueue.some",
        "self.take(MOST_AT_ONCE)",
        "self.take()",
        (QUEUE,),
    ),
)
