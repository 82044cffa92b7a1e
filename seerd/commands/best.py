"""`seerd best`: the model of a run, or its configuration if its script saves none by design; while
the run goes on, the best so far from the store. It only reads, so it never disturbs a run. A model
is copied whole or not at all.
"""

from __future__ import annotations

import tempfile
import time
from json import dumps
from pathlib import Path

from seerd.commands.common import tell
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import incumbent
from seerd.core.results import result_of
from seerd.core.state import State
from seerd.errors import NoModelError, StoreError, UsageError
from seerd.runs import reading
from seerd.shell.home import RunFolder, copy_result
from seerd.shell.model_card import CARD, card_of, write_card
from seerd.stores.base import Store
from seerd.telling import run_json
from seerd.telling.diagnosis import diagnose, unsaved
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.telling.working import working

BEHIND_S = 5.0  # seconds by which the journal may be behind what agents remove
LOOK_S = 0.2  # seconds from one look at it to the next


def best(
    folder: RunFolder,
    to: Path | None,
    *,
    json: bool,
    job: str | None = None,
    need_model: bool = False,
) -> None:
    """Print the best model, and copy it into `to` if that is given. Raises what `taken` raises.
    `job`: whose model, where jobs share the run; None: of the only one that has a model.
    """
    state = reading.read(folder)
    model = taken(folder, state, to, job, need_model=need_model)
    best_line = f"{model['trial']}  {model['metric']:.6g}"
    lines = [best_line, dumps(model["config"]), model["checkpoint"]]
    if model["result"] == "configuration":
        lines[2:] = [] if to is None else [f"{to / CARD} has the configuration, and nothing else"]
        lines.append(printable(unsaved(state)))
    if model["so_far"]:
        why = f"its end is still to come: seerd resume {folder.run}"
        if folder.owner() is not None and state.phase is RunPhase.RUNNING:
            why = "the run goes on"
        lines.insert(0, f"the best so far, after {model['epoch']} reports of its trial; {why}")
    tell(model, lambda _: "\n".join(lines), json=json)


def known(
    folder: RunFolder, state: State, job: str | None = None, *, need_model: bool = False
) -> Json:
    """Return the best model as recorded, or the configuration if that is the result and no model is
    needed; `job`: as for `best`. Raises `NoModelError` if there is none, `UsageError` if several
    jobs have one and `job` is None.
    """
    jobs = [job_facts.id for job_facts in state.facts.jobs]
    if job is not None and job not in jobs:
        others = f"its jobs: {', '.join(jobs)}" if jobs else "it is one job: leave out --job"
        raise UsageError(f"{folder.run} has no job {job}; {others}")
    kinds = {name: result_of(state, name) for name in state.jobs}
    kind = "model" if need_model or "model" in kinds.values() else "configuration"
    have = [name for name in jobs if kinds[name] == kind]
    if job is None and len(have) > 1:
        raise UsageError(
            f"several jobs of {folder.run} have a {kind}: {', '.join(have)}; say whose, with --job"
        )
    name = job or next(iter([*have, *jobs]), "")
    model = run_json.best(state, name)
    if model is not None and not (need_model and kinds[name] != "model"):
        return {"result": kinds[name], **model, **({"job": name} if name else {})}
    if job is not None:
        raise NoModelError(f"job {job} of {folder.run} has no model to hand back")
    if state.finished:
        raise NoModelError(f"{folder.run}: {diagnose(state).text}")
    raise NoModelError(f"{folder.run} has no model to hand back yet")


def taken(
    folder: RunFolder,
    state: State,
    to: Path | None,
    job: str | None = None,
    *,
    need_model: bool = False,
) -> Json:
    """Return the best model and where it is, and copy it into `to` if that is given; of a
    configuration, write `config.json` there. Raises what `known` raises, `UsageError` if it cannot
    be copied, `StoreError`, `JournalError`.
    """
    model = known(folder, state, job, need_model=need_model)
    name = model.get("job", "")
    if model["result"] == "configuration":
        if to is not None:
            _write_card(folder, state, model, to)
        return {**model, "so_far": False}
    so_far = name not in state.result.of_jobs
    with working("copying the model"):
        if not so_far:
            if to is not None:
                model["checkpoint"] = str(copy_result(folder, to, name))
            return {**model, "so_far": False}
        import asyncio

        from seerd.runs import wiring

        store = wiring.readable_store(folder)
        if to is None:
            best = incumbent(state, name)
            assert best is not None
            where = store.place(best.trial, best.checkpoint.name)
            return {**model, "checkpoint": where, "so_far": True}
        try:
            to.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(dir=to, prefix=".seerd-")
        except OSError as error:
            raise UsageError(f"the model cannot be copied to {to}: {error.strerror}") from error
        with scratch as inner:
            fetched = RunFolder(Path(inner))
            model |= asyncio.run(_fetched(folder, store, fetched, name))
            return {**model, "checkpoint": str(copy_result(fetched, to)), "so_far": True}


def _write_card(folder: RunFolder, state: State, model: Json, to: Path) -> None:
    trial = state.trials[model["trial"]]
    report, goal = (model["metric"], model["epoch"]), state.facts.goal_of(trial.id)
    card = card_of(folder.run, trial, report, goal.metric, model["metrics"], {})
    part = to / f".{CARD}.part"
    try:
        to.mkdir(parents=True, exist_ok=True)
        part.write_text(card)
        part.replace(to / CARD)
    except OSError as error:
        why = f"the configuration cannot be written to {to}: {error.strerror}"
        raise UsageError(why) from error


async def _fetched(folder: RunFolder, store: Store, to: RunFolder, job: str = "") -> Json:
    """Fetch the job's best model of this moment. Agents remove a checkpoint once there is a better
    one, so the search begins anew if it has gone meanwhile: the journal may be behind them.
    """
    import asyncio

    gone, until_s = "", 0.0
    try:
        while True:
            state = reading.read(folder)
            best, model = incumbent(state, job), run_json.best(state, job)
            assert best is not None
            assert model is not None
            trial, name = state.trials[best.trial], best.checkpoint.name
            metric = state.facts.goal_of(trial.id).metric
            try:
                checkpoint = to.best / "checkpoint.pt"
                await store.fetch(trial.id, name, best.checkpoint.sha256, checkpoint)
                card = to.best / CARD
                await write_card(card, store, state.facts.run, trial, best, metric)
            except StoreError as error:
                if gone != name:
                    gone, until_s = name, time.monotonic() + BEHIND_S
                if not error.damaged or time.monotonic() >= until_s:
                    raise
                await asyncio.sleep(LOOK_S)
            else:
                return model
    finally:
        await store.close()
