"""Sentences are tables: every kind has one, and every reason that can be recorded is said."""

from __future__ import annotations

from typing import get_args

import pytest

from seerd.core import commands, events, verdicts
from seerd.telling.explanation.explanations import EndCause, Explanation, Judgement, Kind
from seerd.telling.explanation.pages import lines_of
from seerd.telling.explanation.sentences import REASONS, SAYS, fill, sentence

CAUSES = {
    "planned": commands.AskCause,
    "judged": Judgement,
    "stopped": commands.StopCause,
    "ended": EndCause,
    "asked": commands.LaunchCause,
    "held-back": verdicts.HoldCause,
    "awaited": events.Awaited,
    "noticed": events.Notice,
    "given-back": commands.TerminateCause,
    "closing": verdicts.CloseCause,
    "denied": verdicts.DenyCause,
    "job-over": verdicts.OverCause,
}
SILENT = {("asked", "plan"), ("asked", "room")}
"""What needs no word beside the numbers."""
APART = {("noticed", "canceled")}
"""What has a sentence of its own for what an event has beside its cause."""


def test_every_kind_has_a_sentence() -> None:
    assert set(SAYS) == set(get_args(Kind))


@pytest.mark.parametrize("kind", CAUSES)
def test_every_reason_that_can_be_recorded_is_said(kind: str) -> None:
    said = {cause for cause in REASONS[kind] if (kind, cause) not in APART}
    assert said <= set(get_args(CAUSES[kind]))
    unsaid = set(get_args(CAUSES[kind])) - said
    assert {(kind, cause) for cause in unsaid} <= SILENT


def test_what_is_not_there_is_not_said() -> None:
    template = "{who}[ on {gpus:GPU}][ at {at_s:at}|, some time][ with {metric:value}]"
    known = {"who": "t1", "gpus": 0, "at_s": None, "metric": 0.0}
    assert fill(template, known) == "t1, some time with 0"
    known |= {"gpus": 1, "at_s": 60.04, "metric": None}
    assert fill(template, known) == "t1 on 1 GPU at 1m with missing or not finite"


def test_what_people_wrote_is_no_template_and_cannot_paint_over_anything() -> None:
    remark = Explanation("remark", 1, 0.0, {"text": "[{x}|\x1b[2J]"})
    assert sentence(remark, "m") == r"[{x}|\x1b[2J]"


def stopped(trial: str, others: tuple[str, ...]) -> Explanation:
    order = {"trial": trial, "attempt": 1, "why": "displaced", "saves": True, "grace_s": 4.0}
    gpus = {"gpus_before": 1, "gpus": 1, "until": None, "others": others}
    return Explanation("stopped", 7, 20.0, {**order, **gpus})


def judged(verdict: Judgement, place: int, of: int, best: int) -> Explanation:
    facts = {"trial": "t1", "metric": 0.5, "reports": 4, "place": place, "of": of, "best": best}
    cut = {"cut": None, "cut_metric": None, "bracket": 1, "gpus_before": 0, "gpus": 0}
    return Explanation("judged", 7, 20.0, {**facts, **cut, "verdict": verdict})


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (judged("paused", 1, 1, 4), "was 1st of 1: it waits for a free place"),
        (judged("paused", 2, 9, 4), "was 2nd of 9: it waits for a free place"),
        (judged("goes-on", 1, 1, 4), "was 1st of 1: it goes on"),
        (judged("goes-on", 2, 3, 4), "was 2nd of 3; all of them go on: it goes on"),
        (judged("goes-on", 2, 9, 4), "was 2nd of 9; the 4 best go on: it goes on"),
    ],
)
def test_no_more_trials_are_said_to_go_on_than_there_are(one: Explanation, said: str) -> None:
    assert sentence(one, "m") == f"t1: m 0.5 after 4 reports {said}"


def test_alike_things_that_happened_together_are_one_line_and_no_fact_is_lost() -> None:
    explanations = [stopped("t1", ("t8",)), stopped("t2", ("t8",)), stopped("t3", ("t9",))]
    asked = "asked to save and exit within 4s to wait: its GPUs are for"
    first, second = lines_of(explanations, lambda one: "m")
    assert first == ("20s", f"t1, t2: {asked} t8")
    assert second == ("20s", f"t3: {asked} t9")
