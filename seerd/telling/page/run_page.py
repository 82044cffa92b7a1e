"""The page of a report, whole in itself: pictures are SVG, its only script sorts a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from itertools import chain
from typing import Any

from seerd.core.metrics import best_saved
from seerd.core.results import best_configuration
from seerd.core.state import State
from seerd.planner.trial_ids import job_of
from seerd.telling.complaints import notes_of
from seerd.telling.diagnosis import diagnose, unsaved
from seerd.telling.explanation.sentences import at, metric_of, sentence, used
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.front import front_of, modes_of, points_of, size_text
from seerd.telling.harmless import config_text, harmless, printable, value_text
from seerd.telling.outcomes import jobs_of, jobs_table, outcome_text, outcomes, report_text
from seerd.telling.page import charts, tables
from seerd.telling.page.drawing import Frame, Spec, beyond, svg
from seerd.telling.page.importance import CAPTION, advice, costly, importances
from seerd.telling.run_json import best
from seerd.units import count, format_duration
from seerd.version import VERSION

WIDTH = 1100
MOST_ROWS, MOST_SENTENCES, MOST_METRICS, MOST_PARAMETERS = 1000, 1500, 6, 9
NOTHING = "Nothing was seen in this run that calls for a change."
PARALLEL = "Configurations as lines, the best with colour and dash."
GPUS = (
    "Each bar is an attempt of a trial on its GPUs; pale until it trained. Grey: trials that are "
    "not among the best."
)
MONEY, SHARES = "What was billed, beside the budget and the deadline.", "Where it went."
DOTS = "large: trials on the front; the line: the front by these two metrics alone."
FRONT = (
    "<p>The first metric alone decides which model is handed back. Other trials may have no "
    "checkpoint of this report; to train one again, copy its configuration to policy.start.</p>"
)
TEXT = ' class="text"'  # of a cell with words: they begin at the left
AXES = (("at_s", "by time"), ("report", "by report"), ("gpu_s", "by GPU time"))


@dataclass(frozen=True, slots=True)
class ReadRun:
    """What a report is made of."""

    timeline: Timeline  # what happened
    state: State  # how the run stands
    status: str  # how it ended, in one word
    spec: str  # the text of its spec
    command: str  # how it was started, as far as that is known


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture."""

    name: str  # for files
    caption: str  # what it shows
    spec: Spec


class JobReport:
    """The part of a report about the trials of one job, whose id is empty if the run is one job."""

    def __init__(self, run: ReadRun, job: str) -> None:
        self.job = job
        self._run = run
        self._state = run.state
        self._goal = run.state.facts.goals[job]
        self._order = tables.ranked(run.state, job)
        reports = chain.from_iterable(one.trial.others.values() for one in self._order)
        reported = set(chain.from_iterable(reports))
        names = run.state.signs.names
        self._others = [name for name in names if not job or name in reported]
        varied = tables.varied(run.state, job)
        self._importances = importances(self._order, varied)
        places = {each.name: place for place, each in enumerate(self._importances)}
        varied.sort(key=lambda parameter: places.get(parameter.name, len(places)))
        self._parameters = varied[:MOST_PARAMETERS]
        self._frame = Frame(run.timeline, run.state, self._order, WIDTH)

    def verdict(self) -> str:
        """Write which trial won and why, or why there is no model."""
        chosen = best(self._state, self.job)
        if (found := best_configuration(self._state, self.job)) is not None:
            made = escape(printable(report_text(self._state, *found)))
            saving = escape(harmless(unsaved(self._state)))
            whose = f" of {escape(self.job)}" if self.job else ""
            return f"<p><strong>The best configuration{whose}: {made}.</strong> {saving}</p>"
        if chosen is None and self.job:
            return f"<p><strong>{escape(self.job)}: no model</strong></p>"
        if chosen is None:
            cause = harmless(diagnose(self._state).text)
            return f"<p><strong>No trial has a model to hand back: {escape(cause)}</strong></p>"
        kind = "won" if self._is_handed_back else "is the best so far"
        why = [
            one
            for one in self._run.timeline.explanations
            if one.kind == "chosen" and job_of(one.trial) == self.job
        ]
        text = ""
        if why:
            text = sentence(why[-1], metric_of(why[-1], self._state.facts)).split(": ", 2)[-1]
            text = f" It is {escape(text)}."
        metric = escape(printable(self._goal.metric))
        return (
            f"<p><strong>{escape(chosen['trial'])} {kind}: {metric} {chosen['metric']:.6g}</strong>"
            f" after {count(chosen['epoch'], 'report')}, with "
            f"<code>{escape(config_text(chosen['config']))}</code>.{text}</p>"
        )

    def advice(self, shares: Mapping[str, float]) -> list[str]:
        """Return what to try; `shares`: where what was billed for its trials went."""
        order = self._order
        texts = advice(self._state, order, self._parameters, self._importances, shares)
        return [f"{self.job}: {text}" if self.job else text for text in texts]

    def curves(self) -> str:
        """Draw the learning curves, each metric behind a tab."""
        pictures = {picture.name: picture for picture in self.curve_pictures}
        names = list(pictures)
        labels = [label for _, label in AXES]
        labels += [printable(name) for name in self._others][: len(names) - len(AXES)]
        group = self._name("curves")
        heads = "".join(
            f'<input type="radio" name="{group}" id="{name}"{" checked" if not place else ""}>'
            f'<label for="{name}">{escape(label)}</label>'
            for place, (name, label) in enumerate(zip(names, labels, strict=True))
        )
        left = len(self._others) - (MOST_METRICS - 1)
        note = f'<p class="soft">{left} more metrics: seerd export has them.</p>' * (left > 0)
        drawn = "".join(figure(pictures[name]) for name in names)
        return f'{self._title("Learning curves")}<div class="tabs">{heads}{drawn}</div>{note}'

    def front(self) -> str:
        """Draw the front, as pictures and a table; nothing without objectives."""
        modes, front = modes_of(self._state, self.job), front_of(self._state, self.job)
        heads = (escape(printable(name)) for name in ("trial", *modes, "report", "configuration"))
        rows = (
            f"<tr>{_text(each.trial.id)}{''.join(map(_number, each.values))}"
            f"{_number(each.report.reports)}{_text(config_text(each.trial.config))}</tr>"
            for each in front[:MOST_ROWS]
        )
        size = f"<p>{escape(size_text(self._state, self.job, front))}</p>"
        drawn = f"{self._title('Front')}{size}{''.join(map(figure, self.front_pictures))}"
        return drawn + (html_table(heads, rows) + FRONT) * bool(front) if modes else ""

    def hyperparameters(self) -> str:
        """Draw what is known of hyperparameters; nothing if they are all alike."""
        drawn = "".join(map(figure, self.space_pictures))
        return f"{self._title('Hyperparameters')}{drawn}" if drawn else ""

    def table(self) -> str:
        """Draw all trials, in a table that can be sorted."""
        names = [one.name for one in self._parameters]
        counts = ("best saved", "reports", "attempts", "state")
        heads = ["place", "trial", self._goal.metric, *counts, *names]
        buttons = (f"<button>{escape(printable(name))}</button>" for name in heads)
        became = outcomes(self._state)
        rows = []
        for place, one in enumerate(self._order[:MOST_ROWS], 1):
            trial = one.trial
            cells = [
                _number(place),
                _text(trial.id),
                _number(one.metric),
                _number(best_saved(self._state, trial)),
                _number(trial.reports),
                _number(trial.attempt),
                _text(outcome_text(self._state, trial, became[trial.id])),
            ]
            for value in (trial.config.get(name) for name in names):
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                text = "" if value is None else value_text(value)
                cells.append(_number(value) if is_number else _text(text))
            kind = ' class="won"' if place == 1 and self._is_handed_back else ""
            rows.append(f"<tr{kind}>{''.join(cells)}</tr>")
        left = len(self._order) - MOST_ROWS
        note = f'<p class="soft">{left} more are left out.</p>' * (left > 0)
        return f"{self._title('All trials')}{html_table(buttons, rows)}{note}"

    @cached_property
    def curve_pictures(self) -> list[Picture]:
        """Learning curves, of each metric."""
        shown, pictures = tables.shown(self._order), []
        for place, metric in enumerate([None, *self._others][:MOST_METRICS]):
            points = tables.curves(shown, self._run.timeline, metric)
            for by, _ in AXES if metric is None else AXES[1:2]:
                name = printable(self._goal.metric if metric is None else metric)
                spec = charts.curves(self._frame, points, by, name)
                caption = (
                    f"{name} of {len(shown)} of {count(len(self._order), 'trial')}; a triangle is "
                    "where a trial was promoted, a cross where one was given up, a ring where one "
                    "was stopped that might have gone on."
                    f"{beyond([point.value for point in points])}"
                )
                pictures.append(Picture(self._name(f"curves-{place}-{by}"), caption, spec))
        return pictures

    @cached_property
    def front_pictures(self) -> list[Picture]:
        """The deciding metric by each objective; none without a trial that has reported all."""
        points, modes = points_of(self._state, self.job), modes_of(self._state, self.job).items()
        labels, pictures = [f"{printable(name)} ({mode})" for name, mode in modes], []
        for place in range(1, len(labels)) if points else ():
            out = (beyond([point.values[axis] for point in points]) for axis in (0, place))
            caption = f"{labels[0]} by {labels[place]}; {DOTS}{''.join(out)}"
            spec = charts.front(points, labels, place, WIDTH)
            pictures.append(Picture(self._name(f"front-{place}"), caption, spec))
        return pictures

    @cached_property
    def space_pictures(self) -> list[Picture]:
        """Configurations, what matters in them, and each hyperparameter alone."""
        if not self._parameters:
            return []
        parameters, measured, frame = self._parameters, self._importances, self._frame
        drawn = [("parallel", PARALLEL, charts.parallel(frame, parameters))]
        if measured:
            drawn.append(("importance", CAPTION, charts.importance(frame, measured)))
        slices = (
            f"The best {printable(self._goal.metric)} of each trial by each hyperparameter; the "
            "winner has its name."
            f"{beyond([one.metric for one in self._order if one.metric is not None])}"
        )
        drawn.append(("slices", slices, charts.slices(frame, parameters)))
        return [Picture(self._name(name), caption, spec) for name, caption, spec in drawn]

    @property
    def _is_handed_back(self) -> bool:
        return self.job in self._state.result.of_jobs

    def _name(self, name: str) -> str:
        return f"{self.job}-{name}" if self.job else name

    def _title(self, title: str) -> str:
        return f"<h2>{title}{f' of {escape(self.job)}' if self.job else ''}</h2>"


class RunReport:
    """The report of one run."""

    def __init__(self, run: ReadRun) -> None:
        self._run = run
        self._state = run.state
        self._parts = [JobReport(run, job) for job in run.state.jobs]
        self._shares = tables.shares(run.timeline, run.state)

    def page(self) -> str:
        """Return the whole page."""
        state, jobs, policy = self._state, "", self._state.facts.problem.params.name
        pictures = {picture.name: picture for picture in self._of_the_run}
        shared = bool(state.facts.jobs)
        if shared:  # then what was billed is the whole run's
            heads, *rows = jobs_table(state, jobs_of(state))
            policy = f"{count(len(self._parts), 'job')}, {state.facts.problem.sharing}"
            names = (name.removeprefix(">") for name in heads)
            jobs = f"<h2>Jobs</h2>{html_table(names, map(html_row, rows), TEXT)}"
        advised = [
            text for part in self._parts for text in part.advice({} if shared else self._shares)
        ]
        advised += costly(self._shares) if shared else []
        reported = sum(bool(trial.history) for trial in state.trials.values())
        trials = f"{len(state.trials)}, {reported} with reports"
        facts = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in {**used(state), "trials": trials, "policy": policy}.items()
        )
        body = [
            f"<h1>{escape(state.facts.name)}</h1>",
            f'<p class="soft">{escape(state.facts.run)}: {escape(self._run.status)}</p>',
            jobs,
            *(part.verdict() for part in self._parts),
            f'<dl class="facts">{facts}</dl>',
            _list("What to try next", advised or [NOTHING]),
            "<h2>GPUs over time</h2>",
            figure(pictures["gpus"]),
            *(part.curves() for part in self._parts),
            *(part.front() for part in self._parts),
            "<h2>What it cost</h2>",
            figure(pictures["money"]),
            figure(pictures["shares"]),
            *(part.hyperparameters() for part in self._parts),
            *(part.table() for part in self._parts),
            self._decisions(),
            _list("Notes", notes_of(state)),
            f"<h2>Where it comes from</h2><pre>{escape(harmless(self._run.command))}</pre>",
            f"<pre>{escape(harmless(self._run.spec))}</pre>",
        ]
        return page(state.facts.name, body)

    def pictures(self) -> list[Picture]:
        """Return all pictures."""
        of_jobs = ((*p.curve_pictures, *p.front_pictures, *p.space_pictures) for p in self._parts)
        return [*self._of_the_run, *chain.from_iterable(of_jobs)]

    @cached_property
    def _of_the_run(self) -> list[Picture]:
        timeline, state = self._run.timeline, self._state
        frame = Frame(timeline, state, tables.ranked(state), WIDTH)
        bars, left = tables.bars(timeline, state)
        caption = f"{GPUS} {left} attempts that were too short are left out." if left else GPUS
        return [
            Picture("gpus", caption, charts.gpus(frame, bars)),
            Picture("money", MONEY, charts.money(frame)),
            Picture("shares", SHARES, charts.shares(frame, self._shares)),
        ]

    def _decisions(self) -> str:
        parts, room = ["<h2>Why it went this way</h2>"], MOST_SENTENCES
        facts = self._state.facts
        for chapter in self._run.timeline.chapters:
            name = "The end" if chapter.end else f"Stage {(chapter.stage or 0) + 1}"
            shown = chapter.explanations[: max(0, room)]
            room -= len(shown)
            lines = "".join(
                f"<tr><td>{at(one.at_s)}</td>{_text(sentence(one, metric_of(one, facts)))}</tr>"
                for one in shown
            )
            left = len(chapter.explanations) - len(shown)
            note = f'<p class="soft">{left} more: seerd replay {escape(facts.run)}</p>' * (left > 0)
            parts.append(
                f"<details><summary>{name}, from {format_duration(round(chapter.start_s))}: "
                f"{len(chapter.explanations)} entries</summary>"
                f'<div class="scroll"><table>{lines}</table></div>{note}</details>'
            )
        return "".join(parts)


def html_table(heads: Iterable[str], rows: Iterable[str], attributes: str = "") -> str:
    """Put rows below heads, which have these attributes; all are HTML."""
    head = "".join(f"<th{attributes}>{name}</th>" for name in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def html_row(cells: Iterable[str]) -> str:
    """Return a row of texts."""
    return f"<tr>{''.join(map(_text, cells))}</tr>"


def _text(cell: str) -> str:
    return f"<td{TEXT}>{escape(printable(cell))}</td>"


def comparison(runs: Sequence[ReadRun]) -> str:
    """Return the page of these runs, which have the same metric."""
    named = [(run.state.facts.run, run.state) for run in runs]
    values = [metric for _, state in named for _, _, metric in tables.best_so_far(state)]
    pictures = [
        Picture(name, f"{caption}{beyond(values)}", charts.compared(named, WIDTH, by_gpu=by_gpu))
        for name, caption, by_gpu in (
            ("time", "The best report so far, by time.", False),
            ("gpu-time", "The same, by the GPU time that was billed.", True),
        )
    ]
    heads = ("run", "policy", "deadline", "budget", "billed", "trials", "best", "configuration")
    title = f"<h1>{len(runs)} runs by {escape(printable(runs[0].state.facts.metric))}</h1>"
    rows = []
    for run, state in named:
        chosen, limits = best(state), state.facts.problem.limits
        cells = [
            run,
            state.facts.problem.params.name,
            format_duration(limits.deadline_s),
            f"{limits.budget_gpu_s / 60:.1f} GPU-min",
            f"{state.ledger.spent_gpu_s(state.now) / 60:.1f} GPU-min",
            str(len(state.trials)),
            "" if chosen is None else f"{chosen['metric']:.6g}",
            "" if chosen is None else config_text(chosen["config"]),
        ]
        rows.append(html_row(cells))
    table = html_table(heads, rows, TEXT)
    return page("Comparison", [title, *map(figure, pictures), table])


def page(title: str, body: Iterable[str]) -> str:
    """Put these parts into a page of their own."""
    here = files("seerd.telling.page")
    style = (here / "style.css").read_text(encoding="utf-8")
    script = (here / "sort.js").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(printable(title))}: seerd</title><style>{style}</style><body>"
        f"{harmless(''.join(body))}"
        f'<p class="soft">seerd {VERSION}</p><script>{script}</script></body></html>'
    )


def figure(picture: Picture) -> str:
    """Draw a picture with its caption."""
    drawn, caption = svg(picture.spec), escape(picture.caption)
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def _list(title: str, items: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(harmless(item))}</li>" for item in items)
    return f"<h2>{title}</h2><ul>{lines}</ul>" if items else ""


def _number(value: Any) -> str:
    if value is None:
        return '<td data-v=""></td>'
    return f'<td data-v="{json.dumps(value)}">{value:.6g}</td>'
