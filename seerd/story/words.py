"""What happened, and why, in sentences that a person understands who has never read this code.

The one rule: a sentence says only what its beat says, with the numbers that were compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from seerd.story.beats import (
    Asked,
    Beat,
    Came,
    Chosen,
    Closing,
    Declined,
    Ended,
    GivenBack,
    HeldBack,
    Judged,
    Lost,
    Noticed,
    NotUsable,
    Over,
    Planned,
    Refused,
    Remark,
    Resumed,
    Sized,
    Slow,
    Started,
    Stopped,
    StopWanted,
)
from seerd.units import format_duration
from seerd.view.plain import ENDINGS, gpus_text, printable

MOST_NAMES = 6


def at(seconds: float) -> str:
    """A moment or a duration, to a tenth of a second."""
    return format_duration(round(seconds, 1))


def count(number: int, what: str) -> str:
    """1 trial, 2 trials."""
    return f"{number} {what}{'s' * (number != 1)}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def names(many: Sequence[str]) -> str:
    """The first few of them."""
    more = len(many) - MOST_NAMES
    return ", ".join(many) if more <= 1 else f"{', '.join(many[:MOST_NAMES])} and {more} more"


def sizes(groups: Sequence[Sized]) -> str:
    """2 trials x 2 GPUs and 5 trials x 1 GPU."""
    return " and ".join(f"{count(g.trials, 'trial')} x {count(g.gpus_per_trial, 'GPU')}" for g in groups)


def metric(name: str, value: float | None, reports: int) -> str:
    """What a trial was judged by."""
    if not reports:
        return "no report"
    told = "missing or not finite" if value is None else f"{value:.6g}"
    return f"{printable(name)} {told} after {count(reports, 'report')}"


@singledispatch
def sentence(beat: Beat, name: str) -> str:
    """What it was, without when; `name`: what the metric is called."""
    return type(beat).__name__


@sentence.register
def _(beat: Planned, name: str) -> str:
    because = {
        "began": "the run begins: ",
        "clock": "the stage before was over by the clock: ",
        "reports": f"{beat.trial} had made the reports after which trials are compared: ",
        "ended": f"{beat.trial} had ended: " if beat.trial else "a trial had ended: ",
        "resumed": "the run goes on: ",
        "untrue": "the plan before was in part about trials that had ended: ",
        "again": "the answer before was of no use: ",
        "unknown": "",
    }[beat.because]
    new = f", {count(beat.new, 'new configuration')}" if beat.new else ""
    late = f"; {names(beat.dropped)} had ended meanwhile, left out" if beat.dropped else ""
    note = f"; {printable(beat.note)}" if beat.note else ""
    return f"{because}{sizes(beat.groups) or 'nobody'} wanted{new}{late}{note}"


@sentence.register
def _(beat: Declined, name: str) -> str:
    times = f" ({ordinal(beat.failures)} time in a row)" if beat.failures > 1 else ""
    then = "the last plan stands" if beat.stands else "there is no plan yet"
    why = f"{printable(beat.detail)}; {then}, asked again at {at(beat.again_s)}"
    return f"the policy gave no plan that can be used{times}: {why}"


@sentence.register
def _(beat: Judged, name: str) -> str:
    told = metric(name, beat.metric, beat.reports)
    if beat.place is not None:
        best = f"; the {'best one goes' if beat.best == 1 else f'{beat.best} best go'} on" if beat.best else ""
        best = best or ("" if beat.verdict == "complete" else "; nobody goes on yet")
        beyond = beat.place > beat.best and beat.cut_metric is not None
        cut = f" (the last of them {beat.cut} with {beat.cut_metric:.6g})" if beyond and beat.best > 1 else ""
        cut = f" ({beat.cut} with {beat.cut_metric:.6g})" if beyond and beat.best == 1 else cut
        told += f" was {ordinal(beat.place)} of {beat.of}{best}{cut}"
    return f"{beat.trial}: {told}: {_verdict(beat)}"


def _verdict(beat: Judged) -> str:
    late = beat.place is None or beat.place > beat.best
    gpus = count(beat.gpus, "GPU")
    before = f" instead of {beat.gpus_before}" if beat.gpus_before not in (0, beat.gpus) else ""
    if beat.verdict == "goes-on":
        all_the_same = " all the same, since no better one could" if late and beat.best else ""
        return f"it goes on{all_the_same}, with {gpus}{before}" if beat.gpus else f"it goes on{all_the_same}"
    return {
        "out": "it is out",
        "paused": "it waits, to go on if it is among the best when more have come there"
        if late
        else "it waits for a free place",
        "complete": "its training is complete",
        "finished": "its script had come to its end, its model counts",
        "failed": "it had failed",
    }[beat.verdict]


@sentence.register
def _(beat: Started, name: str) -> str:
    on = " and ".join(f"{o.instance} GPU {gpus_text(o.gpus)}" for o in beat.on)
    since = f" from its checkpoint of report {beat.after_reports}" if beat.checkpoint else ""
    return f"{beat.trial} is started on {on}{since}"


def stop_reason(beat: Stopped) -> str:
    """Why an attempt was asked to end."""
    heirs = f": its GPUs are for {names(beat.others)}" if beat.others else ""
    return {
        "out": "since it is out",
        "resized": f"to go on with {count(beat.gpus, 'GPU')} instead of {beat.gpus_before}",
        "moved": f"to go on elsewhere{heirs or ', so that fewer instances are needed'}",
        "displaced": f"to wait{heirs or ': there is no room for it any more'}",
        "reached": f"after report {beat.until}, where it is compared with others",
        "paused": "to wait: the plan does not want it to train on now",
        "leaving": "to go on elsewhere: the cloud takes its instance away",
        "node": "since it has ended on another of its instances",
        "hung": "since some of its ranks do nothing, and the others wait for them",
        "closing": "since the run ends",
        "hard": "since the run was to end at once",
        "unknown": "",
    }[beat.why]


@sentence.register
def _(beat: Stopped, name: str) -> str:
    how = f"saves and exits (within {at(beat.grace_s)})" if beat.saves else "is killed"
    return f"{beat.trial} {how} {stop_reason(beat)}".rstrip()


@sentence.register
def _(beat: Ended, name: str) -> str:
    return f"{beat.trial} {end_of(beat)}"


def end_of(beat: Ended) -> str:
    """How an attempt ended, and what that meant."""
    kept = "nothing saved" if beat.kept is None else f"saved up to report {beat.kept} of {beat.reports}"
    detail = f": {printable(beat.detail)}" if beat.detail else ""
    told = {
        "saved": f"has exited, {kept}",
        "killed": f"was killed, {kept}",
        "finished": f"has come to the end of its script, {kept}",
        "crashed": f"crashed{detail}",
        "refused": f"could not be started{detail}",
        "lost": f"was lost{detail or ' with its instance'}",
        "lease": f"was stopped by its agent, which had not heard from seerd for too long; {kept}",
        "silent": f"has failed{detail}",
    }[beat.how]
    if beat.then == "restarts":
        told += f"; it goes on from {'its checkpoint of report ' + str(beat.kept) if beat.kept is not None else 'the beginning'}"
    if beat.how in ("crashed", "refused"):
        told += f" (end number {beat.failures} by its own fault, {beat.most_failures} are forgiven)"
    return told + ("; it has failed" if beat.then == "failed" and beat.how != "silent" else "")


@sentence.register
def _(beat: Asked, name: str) -> str:
    why = {
        "plan": "",
        "replacement": " in place of what is gone or leaving",
        "again": " again, after a refusal",
        "room": "",
        "resumed": ", as the run goes on",
        "unknown": "",
    }[beat.why]
    had = f"there {'was' if beat.had == 1 else 'were'} {beat.had}"
    many = len(beat.instances)
    asked = f"{count(many, 'instance')} with {count(beat.gpus_each, 'GPU')}{' each' * (many > 1)} asked for{why}"
    if beat.needed is None:
        return f"{asked}: {had}"
    return f"{asked}: {sizes(beat.wanted)} need {beat.needed}, {had}"


@sentence.register
def _(beat: HeldBack, name: str) -> str:
    what = (
        f"{beat.trials[0]} is not started"
        if beat.trials
        else f"of {beat.needed} instances {beat.had} are there, no more are asked for"
    )
    why = {
        "budget": "the budget could not pay for it and for giving everything back",
        "late": "it would come too late to be of use before the end",
        "most": "no more may be there at one moment, and what the cloud takes away counts until it is gone",
    }[beat.why]
    return f"{what}: {why}"


@sentence.register
def _(beat: Came, name: str) -> str:
    return f"{beat.instance} is ready with {count(beat.gpus, 'GPU')}, {at(beat.after_s)} after it was asked for"


@sentence.register
def _(beat: Refused, name: str) -> str:
    again = "" if beat.again_s is None else f"; asked again at {at(beat.again_s)}"
    return f"no instance: {printable(beat.detail)}{again}"


@sentence.register
def _(beat: Noticed, name: str) -> str:
    by = f" at {at(beat.by_s)}" if beat.by_s is not None else ""
    one = len(beat.trials) == 1
    saving = "saves and goes" if one else "save and go"
    on = f"; {names(beat.trials)} {saving} on elsewhere" if beat.trials else ""
    if beat.notice == "unhealthy":
        why = f": {printable(beat.detail)}" if beat.detail else ""
        return f"{beat.instance} is not used any more{why}{on}"
    return f"the cloud {'takes' if beat.sure else 'will probably take'} {beat.instance} away{by}{on}"


@sentence.register
def _(beat: Lost, name: str) -> str:
    on = f"; with it {names(beat.trials)}" if beat.trials else ""
    since = f" (since {at(beat.ended_s)})" if beat.at_s - beat.ended_s > 1 else ""
    return f"{beat.instance} is lost: {printable(beat.detail)}{since}{on}"


@sentence.register
def _(beat: GivenBack, name: str) -> str:
    why = {
        "idle": f": {beat.needed} needed, {beat.had} there",
        "leaving": ": the cloud takes it away, and nothing runs there any more",
        "end": ": the run ends",
        "unknown": "",
    }[beat.why]
    return f"{names(beat.instances)} given back{why}"


@sentence.register
def _(beat: Closing, name: str) -> str:
    budget = f"{beat.spent_gpu_min:.2f} of {beat.budget_gpu_min:.2f} GPU-min spent"
    last = f"it takes up to {at(beat.release_s)} until everything has saved and been given back"
    return {
        "plan": "the end: the plan is carried out, its policy wants nothing more",
        "last-stage": f"the end of the last stage: {last}, and the deadline allows no later beginning than {at(beat.close_at_s)}",
        "deadline": f"the end: {last}, and the deadline allows no later beginning than {at(beat.close_at_s)}",
        "budget": f"the end: {budget}, {beat.committed_gpu_min:.2f} when everything has been given back: {last}",
        "person": "the end: the person asked for it",
        "no-instance": f"the end: no instance can be had{': ' + printable(beat.detail) if beat.detail else ''}",
        "no-trial": "the end: no trial is left that has reported",
        "policy": "the end: again and again the policy gave no plan that can be used",
        "unknown": f"the end: {ENDINGS[beat.status]}",
    }[beat.why]


@sentence.register
def _(beat: StopWanted, name: str) -> str:
    return f"the person asks for the end{' at once' * beat.hard}"


@sentence.register
def _(beat: Resumed, name: str) -> str:
    found = f"still there: {names(beat.alive)}" if beat.alive else "no instance was there any more"
    lost = f", gone: {names(beat.gone)}" if beat.gone and beat.alive else ""
    since = "the interrupted run is" if beat.reopened else f"after {at(beat.silent_s)} without a word, the run is"
    return f"{since} taken up again; {found}{lost}"


@sentence.register
def _(beat: Chosen, name: str) -> str:
    among = "the only one" if beat.among == 1 else f"the best of {beat.among}"
    told = f"the model: {beat.trial}, {metric(name, beat.metric, beat.reports)}: {among} with a confirmed checkpoint"
    if beat.runner_up is not None:
        told += f" (next: {beat.runner_up} with {beat.runner_up_metric:.6g})"
    if beat.better_unsaved is not None:
        told += f"; {beat.better_unsaved} had reported {beat.better_unsaved_metric:.6g}, which is in no checkpoint that was kept"
    return told


@sentence.register
def _(beat: NotUsable, name: str) -> str:
    then = "the next best is taken" if beat.damaged else "it stays in the store"
    return f"the checkpoint of {beat.trial} could not be fetched: {printable(beat.detail)}; {then}"


@sentence.register
def _(beat: Over, name: str) -> str:
    model = "without a model" if beat.path is None else f"the model is in {printable(beat.path)}"
    return f"over ({ENDINGS[beat.status]}): {model}"


@sentence.register
def _(beat: Slow, name: str) -> str:
    return printable(beat.detail)


@sentence.register
def _(beat: Remark, name: str) -> str:
    return printable(beat.text)
