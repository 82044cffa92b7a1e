"""What happened, and why, in sentences that say only what the explanation says.

A template names facts as `{key:how}`. Text in `[...]` is written only if its facts are there; else
what follows a `|` in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from string import Formatter
from typing import Any

from seerd.core.events import RunFacts
from seerd.core.state import State
from seerd.planner.gpu_parts import gpus_number
from seerd.planner.gpu_parts import gpus_text as how_many
from seerd.telling.explanation.explanations import Explanation, Kind, Sizes
from seerd.telling.harmless import printable
from seerd.units import count, format_duration, format_gpu_time, format_money, ordinal

MOST_NAMES = 6
ENDINGS = {
    "done": "the plan is carried out",
    "target": "the target was reached",
    "deadline": "the deadline is near",
    "budget": "the budget is used up",
    "interrupted": "interrupted",
    "failed": "nothing can run any more",
    "alike": "every trial fails in the same way",
    "late": "nothing runs, and it is too late to start anything",
    "store": "no checkpoint could be stored",
}
"""How a run ends: its `Status`, or a `CloseCause` that says more."""


def ending(state: State) -> str:
    """Write how the run ended; empty if it goes on."""
    if state.end.status is None:
        return ""
    how = state.end.why if state.end.why in ENDINGS else state.end.status
    tried = any(trial.attempt for trial in state.trials.values())
    return ENDINGS[how or ""] if tried or how != "done" else ENDINGS["deadline"]


def gpus_text(gpus: Sequence[int]) -> str:
    """Write the numbers of GPUs, neighbours as a range: 0-3,6."""
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in neighbours(gpus))


def neighbours(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow each other: 0 to 3, 6 to 6."""
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield run[0], run[-1]


def used(state: State) -> dict[str, str]:
    """Write what a run has used of each limit; of money only if anything is rented."""
    limits, book = state.facts.problem.limits, state.ledger
    spent = book.spent_gpu_s(state.now)
    texts = {
        "time": f"{at(state.now)} of {format_duration(limits.deadline_s)}",
        "GPU time": f"{format_gpu_time(spent)} of {format_gpu_time(limits.budget_gpu_s)}",
    }
    if book.usd_per_gpu_h:
        limit = "" if limits.cost_usd is None else f" of {format_money(limits.cost_usd)}"
        texts["money"] = f"{format_money(book.spent_usd(state.now))}{limit}"
    return texts


def at(seconds: float) -> str:
    """Write a moment or a duration, given in seconds, to a tenth of a second."""
    return format_duration(round(seconds, 1))


def names(many: Sequence[str]) -> str:
    """Write the first names of many, and how many more there are."""
    more = len(many) - MOST_NAMES
    return ", ".join(many) if more <= 1 else f"{', '.join(many[:MOST_NAMES])} and {more} more"


def places(on: Sequence[Mapping[str, Any]]) -> str:
    """Write which GPUs: m2.0 GPU 0-3 and m2.1 GPU 2."""
    return " and ".join(f"{some['instance']} {gpus_on(some)}" for some in on)


def gpus_on(on: Mapping[str, Any]) -> str:
    """Write which GPUs of an instance: GPU 0-3, 1/4 of GPU 2."""
    part = f"{gpus_number(on['share'])} of " if "share" in on else ""
    return f"{part}GPU {gpus_text(on['gpus'])}"


def sizes(groups: Sequence[Sizes]) -> str:
    """Write how many trials on how many GPUs: 2 trials x 2 GPUs and 5 trials x 1 GPU."""
    each = [f"{count(g.trials, 'trial')} x {how_many(g.gpus_per_trial)}" for g in groups]
    return " and ".join(each) or "nobody"


def models(many: Sequence[Mapping[str, str]]) -> str:
    """Write whose models are where."""
    return ", ".join(f"{model['job']} in {model['path']}" for model in many)


def value(metric: float | None) -> str:
    """Write what was reported; None: it was missing or not finite."""
    return "missing or not finite" if metric is None else f"{metric:.6g}"


WRITERS: dict[str, Callable[[Any], str]] = {
    "about": lambda seconds: at(round(seconds) or seconds),
    "at": at,
    "ending": ENDINGS.__getitem__,
    "gpus": gpus_number,
    "GPU": how_many,
    "if": lambda _: "",
    "models": models,
    "names": names,
    "places": places,
    "sizes": sizes,
    "th": ordinal,
    "value": value,
}
COUNTED = ("report", "instance", "new configuration")


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in WRITERS:
            return WRITERS[format_spec](value)
        if format_spec in COUNTED:
            return count(value if isinstance(value, int) else len(value), format_spec)
        return format(value, format_spec)


WORDS = _Words()
CHOICE = re.compile(r"\[([^|\]]*)\|?([^\]]*)\]")


def fill(template: str, facts: dict[str, Any]) -> str:
    """Write a template with facts. Raises `KeyError` if one is not in `facts`."""

    def choose(match: re.Match[str]) -> str:
        fields = ((key, spec) for _, key, spec, _ in WORDS.parse(match[1]) if key)
        needed = [facts[key] for key, spec in fields if spec != "value"]
        return match[1 if all(fact or isinstance(fact, float) for fact in needed) else 2]

    return WORDS.vformat(CHOICE.sub(choose, template), (), facts)


NEED = "[{wanted:sizes} need {needed}, ]{had} there"
LATE = (
    "it takes up to {release_s:at} until everything has saved and been given back, "
    "and the deadline allows no later beginning than {close_at_s:at}"
)
SAYS: dict[Kind, str] = {
    "planned": "{because:reason}{groups:sizes} wanted[, {new:new configuration}]"
    "[; {dropped:names} had ended meanwhile, left out][; {note}]",
    "declined": "the policy gave no plan that can be used{times}: {detail}; "
    "[{stands:if}the last plan stands|there is no plan yet], asked again at {again_s:at}",
    "judged": "{trial}: [{reports:if}{name} {metric:value} after {reports:report}|no report]"
    "[ was {place:th} of {of}]{cuts}: {verdict:reason}",
    "started": "{trial}: started on {on:places}[ from its checkpoint of report {after_reports}]",
    "grown": "{trial}: trains on with {gpus:GPU} instead of {gpus_before:gpus}, "
    "since others have left it",
    "enlarged": "{trial}: goes on with {gpus:GPU}, as its part of a GPU had too little memory, "
    "which says nothing of its configuration",
    "stopped": "{trial}: [{saves:if}asked to save and exit within {grace_s:at}|killed]{why:reason}",
    "ended": "{trial}: {how:reason}{after}",
    "asked": "{instances:instance} of [{at_most:if}at most ]{gpus_each:GPU} asked for{why:reason}: "
    + NEED,
    "held-back": "[{trials:names} not started|only {had} of {needed} instances]: {why:reason}",
    "awaited": "{instance}: {what:reason}",
    "came": "{instance}: ready with {gpus:GPU}[, asked for {after_s:about} before]",
    "refused": "no instance: {detail}[; asked again at {again_s:at}]",
    "noticed": "{notice:reason}[; {trials:names} must save and go on elsewhere]",
    "shared": "{gpus:GPU} of {instance} may be used from now on: {detail}",
    "lost": "{instance} is lost: {detail}{since}; its trials[, {trials:names},] go on elsewhere "
    "from their last checkpoints",
    "given-back": "{instances:names} given back{why:reason}",
    "closing": "the end{why:reason}",
    "extended": "extended: deadline {deadline_s:at}, budget {budget_gpu_min:g} GPU-min"
    "[, {cost_usd} USD]; [{replanned:if}what is left is planned anew|the plan stands]",
    "added": "a configuration was added, to be tried next: {text}",
    "denied": "what was asked for cannot be: {why:reason}",
    "job-over": "job {job} is over{why:reason}; others get its share",
    "job-added": "job {job}[ of {owner}] shares the run from now on, weight {weight:g}: {metric} "
    "by {policy}",
    "job-weighed": "job {job} has the weight {weight:g} from now on",
    "retired": "{instance}: not used any more: it ends at {by_s:at}, before the run does",
    "stop-wanted": "stopping[{hard:if} at once (once more to leave it as it is)|: trials save and "
    "exit (again to stop at once)]",
    "resumed": "[{reopened:if}the interrupted run is resumed|resumed after {silent_s:at}]; "
    "instances that are still there: [{alive:names}|none][; gone: {gone:names}]",
    "chosen": "the model: {trial}, {name}{mean} {metric:value} after {reports:report}: "
    "[{runner_up:if}the best of {among}|the only one] with a confirmed checkpoint"
    "[ (next: {runner_up} with {runner_up_metric:value})][; {better_unsaved} had reported "
    "{better_unsaved_metric:value}, of which there is no checkpoint: its script saved nothing at "
    "that report, or was killed before it was written]",
    "not-usable": "the checkpoint of {trial} could not be fetched: {detail}; "
    "[{damaged:if}the next best is taken|it stays in the store]",
    "over": "over ({status:ending}): {model}",
    "slow": "{detail}",
    "warned": "{detail}",
    "remark": "{text}",
}
"""Kind -> template of its sentences. `{key:reason}` stands for what `REASONS` says of the cause
under that key. A trial or instance before a colon is the subject of the sentence.
"""
REASONS: dict[str, dict[str, str]] = {
    "planned": {
        "began": "the run begins: ",
        "clock": "the stage before was over by the clock: ",
        "reports": "{trial} had made the reports after which trials are compared: ",
        "ended": "[{trial}|a trial] had ended: ",
        "resumed": "the run goes on: ",
        "untrue": "the plan before was in part about trials that had ended: ",
        "again": "the answer before was of no use: ",
        "extended": "the limits were extended: ",
        "added": "a configuration was added: ",
        "jobs": "what the jobs share was to be divided anew: ",
    },
    "denied": {
        "ending": "the run is ending",
        "lower": "a limit would be lower than it is",
        "same": "no limit would be higher than it is",
        "space": "the configuration is not in the search space",
        "no-more": "{policy} begins no more trials: it has begun all that it may, or begins them "
        "all at once",
        "no-job": "[there is a job {taken} already|there is no such job that goes on]",
        "unready": "an instance could not be made ready for its trials",
    },
    "job-over": {
        "target": ": its target was reached[: {detail}]",
        "person": ": the person asked for it",
        "deadline": ": its own deadline is near",
        "budget": ": its own budget is used up",
        "alike": ": all its trials fail in the same way[: {detail}]",
    },
    "judged": {
        "goes-on": "it goes on{luck}[, with {gpus:GPU}]{gpus_change}",
        "out": "it is out",
        "paused": "it waits{wait}",
        "complete": "its training is complete",
        "finished": "its script had come to its end, its model counts",
        "failed": "it had failed",
    },
    "stopped": {
        "out": " since it is out",
        "resized": " to go on with {gpus:GPU} instead of {gpus_before:gpus}",
        "moved": " to go on elsewhere[: its GPUs are for {others:names}|: fewer instances will do]",
        "displaced": " to wait: [its GPUs are for {others:names}|there is no room for it any more]",
        "shared": ": its GPUs are for another run on that machine",
        "reached": " after report {until}, where it is compared with others",
        "paused": " to wait: the plan does not want it to train on now",
        "leaving": " to go on elsewhere: the cloud takes its instance away",
        "node": " since it has ended on another of its instances",
        "hung": " since some of its ranks do nothing, and the others wait for them",
        "closing": " since the run ends",
        "hard": " since the run was to end at once",
    },
    "ended": {
        "saved": "exited, {kept_text}",
        "killed": "killed, {kept_text}",
        "finished": "came to the end of its script, {kept_text}",
        "crashed": "crashed[: {detail}]",
        "small": "crashed for lack of memory on its part of a GPU[: {detail}]",
        "blocked": "crashed since something was in its way[: {detail}]",
        "refused": "could not be started[: {detail}]",
        "lost": "lost[: {detail}| with its instance]",
        "lease": "stopped by its agent, which had not heard from seerd for too long; {kept_text}",
        "silent": "failed[: {detail}]",
    },
    "asked": {
        "replacement": " in place of what is gone or leaving",
        "again": " again, after a refusal",
        "resumed": ", as the run goes on",
    },
    "held-back": {
        "budget": "the budget could not pay for it and for giving everything back",
        "late": "it would come too late to be of use before the end",
        "most": "no more may be there at once, and what the cloud takes away counts until then",
        "scout": "whether an instance can be used here is tried with one; the others follow",
    },
    "awaited": {
        "launched": "launched[ ({where})]; it costs nothing until it runs",
        "running": "runs, and is billed; it boots until somebody can log in",
        "unreached": "runs, and cannot be used yet: {detail}",
        "reached": "its agent answers; data, setup commands and checks are next",
    },
    "noticed": {
        "interruption": "the cloud takes {instance} away[ at {by_s:at}]",
        "rebalance": "the cloud will probably take {instance} away[ at {by_s:at}]",
        "maintenance": "the cloud will reboot or stop {instance}[ at {by_s:at}] for maintenance",
        "canceled": "the cloud has canceled the maintenance of {instance}",
        "unhealthy": "{instance} is not used any more[: {detail}]",
        "cold": "on {instance} {detail}",
    },
    "given-back": {
        "idle": ": {needed} needed, {had} there",
        "leaving": ": the cloud takes it away, and nothing runs there any more",
        "end": ": the run ends",
    },
    "closing": {
        "plan": f": {ENDINGS['done']}, its policy wants nothing more",
        "last-stage": f" of the last stage: {LATE}",
        "target": f": {ENDINGS['target']}[: {{detail}}]",
        "deadline": f": {LATE}",
        "late": f": {ENDINGS['late']}",
        "budget": ": {spent_gpu_min:.2f} of {budget_gpu_min:.2f} GPU-min spent, "
        "{committed_gpu_min:.2f} when everything has been given back: "
        "it takes up to {release_s:at} until everything has saved and been given back",
        "person": ": the person asked for it",
        "no-instance": ": no instance can be had[: {detail}]",
        "no-trial": ": no trial is left that has reported",
        "alike": f": {ENDINGS['alike']}[: {{detail}}]",
        "store": ": {detail}",
        "policy": ": again and again the policy gave no plan that can be used",
    },
}
"""Kind -> cause -> text. Causes that are not listed have no text."""
STOPS: dict[str, str] = {
    "out": "out",
    "resized": "moves to another number of GPUs",
    "moved": "moves to other GPUs",
    "displaced": "makes room",
    "shared": "makes room for another run",
    "reached": "to be compared",
    "paused": "not in the plan now",
    "leaving": "its instance leaves",
    "node": "an instance of it failed",
    "hung": "it hung",
    "closing": "the run ends",
    "hard": "the run ends at once",
}
"""`StopCause` -> the same in a few words."""
SUBJECT = re.compile(r"^\{(trial|instance)\}: ")
REASON = re.compile(r"\{(\w+):reason\}")


def subject(explanation: Explanation) -> str:
    """Return the trial or instance with which the sentence begins; empty if there is none."""
    match = SUBJECT.match(SAYS[explanation.kind])
    return str(explanation.facts[match[1]]) if match else ""


def metric_of(explanation: Explanation, facts: RunFacts) -> str:
    """Return the name of the metric in a sentence: that of its trial, if it is about one."""
    trial = explanation.facts.get("trial")
    return facts.metric if trial is None else facts.goal_of(trial).metric


def sentence(explanation: Explanation, name: str) -> str:
    """Write what happened and why. `name` is the name of the metric."""
    who, text = subject(explanation), predicate(explanation, name)
    return f"{who}: {text}" if who else text


def predicate(explanation: Explanation, name: str) -> str:
    """Write what happened to the subject, without naming it. `name` is the name of the metric."""
    kind, facts = explanation.kind, {**explanation.facts, "name": name}
    reasons = REASONS.get(kind, {})
    template = SUBJECT.sub("", SAYS[kind])
    template = REASON.sub(lambda match: reasons.get(str(facts[match[1]]), ""), template)
    for key, text in PARTS[kind](explanation).items() if kind in PARTS else ():
        template = template.replace(f"{{{key}}}", text)
    return printable(fill(template, facts))


def reason(explanation: Explanation) -> str:
    """Write only why it happened."""
    return printable(fill(REASONS[explanation.kind].get(explanation.why, ""), explanation.facts))


def moved(judged: Explanation) -> bool:
    """Return whether a trial that has GPUs had another number of them before."""
    return bool(judged.gpus) and judged.gpus_before not in (0, judged.gpus)


def waits_for_room(judged: Explanation) -> bool:
    """Return whether a trial is among the best that go on, and no GPUs are free for it yet."""
    placed = judged.place is not None and judged.place <= judged.best
    return placed and judged.verdict == "paused"


def _judged(explanation: Explanation) -> dict[str, str]:
    late = explanation.place is None or explanation.place > explanation.best
    cut = "{cut} with {cut_metric:value}" if late and explanation.cut_metric is not None else ""
    cuts = "; nobody goes on yet" if explanation.verdict != "complete" else ""
    if explanation.best == 1:
        cuts = "; the best one goes on" + f" ({cut})" * bool(cut)
    elif 0 < explanation.of <= explanation.best:
        cuts = "; all of them go on" * (explanation.of > 1)
    elif explanation.best:
        cuts = "; the {best} best go on" + f" (the last of them {cut})" * bool(cut)
    better = " all the same, since no better one could"
    behind = ", to go on if it is among the best when more have come there"
    return {
        "cuts": "" if explanation.place is None or waits_for_room(explanation) else cuts,
        "luck": better if late and explanation.best else "",
        "wait": behind if late else " for a free place",
        "gpus_change": " instead of {gpus_before:gpus}" if moved(explanation) else "",
    }


def _ended(explanation: Explanation) -> dict[str, str]:
    newest = "the beginning" if explanation.kept is None else "its checkpoint of report {kept}"
    after = f"; it goes on from {newest}" if explanation.then == "restarts" else ""
    if explanation.how in ("crashed", "refused"):
        after += " (end number {failures} by its own fault, {in_vain} in a row without coming "
        after += "further; forgiven: {most_failures})"
    if explanation.then == "failed" and explanation.how != "silent":
        after += "; it has failed"
        if explanation.how == "crashed" and explanation.in_vain <= explanation.most_failures:
            after += ", as it would only crash again"
    saved = "saved up to report {kept} of {reports}"
    return {"kept_text": "nothing saved" if explanation.kept is None else saved, "after": after}


PARTS: dict[Kind, Callable[[Explanation], dict[str, str]]] = {
    "declined": lambda one: {"times": " ({failures:th} time in a row)" * (one.failures > 1)},
    "judged": _judged,
    "chosen": lambda one: {
        "mean": f" (mean of the last {one.mean_of} reports)" * (one.mean_of > 1)
    },
    "ended": _ended,
    "over": lambda one: {
        "model": "[the models: {models:models}|without a model]"
        if "models" in one.facts
        else "[the model is in {path}|without a model]"
    },
    "lost": lambda one: {"since": " (since {ended_s:at})" * (one.at_s - one.ended_s > 1)},
}
"""Kind -> function that chooses parts of its sentences, where a template cannot."""
