"""Whether what a part of `bench/gpu.py` is named for has happened: from the facts of `measures.py`.

Each function yields a sentence for each thing that has not. `missed` compares figures with what
they must be; that is no failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Facts = dict[str, Any]
FORK_SHARE = 0.5  # of a fresh import: a fork takes less
WARM_STARTS = 2
LEAST_REPORTS = 10
COPY = 0.8  # of the state: a copy takes at least so much memory
MUSTS: dict[str, dict[str, tuple[float, float]]] = {
    "saves": {"pause_s": (0.0, 0.3), "published_s": (0.0, 2.0)},
    "memory": {"saving_takes": (0.0, 1.1), "reading_takes": (0.0, 0.2)},
    "share": {"share": (0.96, 1.0)},
    "parts": {"ratio": (1.6, float("inf"))},
    "appetite": {"slots_later": (2, float("inf"))},
}
"""Part -> figure -> the least and the most that it may be."""


def missed(part: str, facts: Facts) -> list[str]:
    """Return the figures of a part that are not what they must be."""
    return [
        f"{figure} is {facts[figure]:.3g}, and must be {least:g} to {most:g}"
        for figure, (least, most) in MUSTS.get(part, {}).items()
        if not least <= facts[figure] <= most
    ]


def start(facts: Facts) -> Iterator[str]:
    fresh_s = facts["bare"]["import_s"]
    forks = [row for row in facts["warm"] if row["import_s"] < FORK_SHARE * fresh_s]
    if len(forks) < WARM_STARTS:
        yield f"{len(forks)} of {len(facts['warm'])} trials were forks of a process that is warm"


def saves(facts: Facts) -> Iterator[str]:
    if len(facts["names"]) != len(set(facts["names"])) or len(facts["names"]) <= facts["rounds"]:
        yield f"{len(set(facts['names']))} checkpoints were written in {facts['rounds']} rounds"
    if not 0 < facts["pause_s"] < facts["published_s"]:
        yield "training waited until the checkpoint was published"


def memory(facts: Facts) -> Iterator[str]:
    if facts["saving_takes"] < COPY:
        yield f"saving took {facts['saving_takes']} times the state: it was not copied"
    if facts["read_s"] <= 0:
        yield "the state was not read"


def best(facts: Facts) -> Iterator[str]:
    if facts["reports"] < LEAST_REPORTS:
        yield f"{facts['reports']} reports were made"
    if facts["handed_back"] != facts["best_report"]:
        yield f"the best report is {facts['best_report']}, handed back is {facts['handed_back']}"


def share(facts: Facts) -> Iterator[str]:
    if facts["trials"] < 2 or facts["reports"] < LEAST_REPORTS:
        yield f"{facts['trials']} trials made {facts['reports']} reports"
    if not facts["best"]:
        yield "no model was handed back"
    if not 0 < facts["used_s"] <= facts["budget_s"]:
        yield f"{facts['used_s']} s of {facts['budget_s']} s were used"


def move(facts: Facts) -> Iterator[str]:
    if facts["least_bytes"] < facts["state_mib"] << 10:  # a KiB for each MiB on the fake device
        yield f"a checkpoint of {facts['state_mib']} MiB has {facts['least_bytes']} bytes"
    left = {(row["trial"], row["attempt"]): row["reports"] for row in facts["left"]}
    if not facts["back"]:
        yield "no trial came back"
    for row in facts["back"]:
        before = left.get((row["trial"], row["attempt"] - 1), 0)
        if not 0 < before == row["reports"]:
            yield f"{row['trial']} came back with {row['reports']} reports of {before}"


def killed(facts: Facts) -> Iterator[str]:
    if facts["held_mib"] < facts["wanted_mib"]:
        yield f"{facts['held_mib']} of {facts['wanted_mib']} MiB were held"
    if not any(row["signal"] == 9 or row["code"] == -9 for row in facts["exits"]):
        yield f"no rank was killed by signal 9: {facts['exits']}"
    if not any(facts["went_on_from"]):
        yield "the trial did not go on from its checkpoint, with as much memory"


def hang(facts: Facts) -> Iterator[str]:
    if not facts["hung"]:
        yield "no rank hung"
        return
    if not facts["exits"]:
        yield "the attempt that hung did not end"
    elif not facts["reports_since"]:
        yield "no trial trained after the attempt that hung"
    if facts["freed_s"] is None:
        yield "the memory of the rank that hung was not freed"
    if facts["took_s"] > facts["deadline_s"]:
        yield f"the run took {facts['took_s']:.1f} s of {facts['deadline_s']} s"


def parts(facts: Facts) -> Iterator[str]:
    for side in facts["ratios"]:
        run, on = facts[side], {"whole": "a whole GPU"}.get(side, f"parts ({side})")
        if side == "whole" and run["at_once"] != 1:
            yield f"{run['at_once']} trials trained at a time on {on}"
        if side != "whole" and run["at_once"] < 2:
            yield f"no trials trained at the same time on {on}"
        if not run["reports"]:
            yield f"no reports were made on {on}"
        if run["crashed"]:
            yield f"{', '.join(run['crashed'])} crashed on {on}"
    yield from (why for why in facts.get("mps", {}).get("notices", ()) if "take turns" in why)


def appetite(facts: Facts) -> Iterator[str]:
    greedy = facts["greedy"]
    if greedy not in facts["crashed"]:
        yield f"{greedy} had more memory than its share"
    if others := set(facts["crashed"]) - {greedy}:
        yield f"{', '.join(sorted(others))} failed beside it"
    if facts["at_once"] < 2:
        yield "no trials trained on the GPU at the same time"
    if not facts["neighbours_s"] > 0:
        yield f"no other trial made a report after {greedy} had failed"


def profile(facts: Facts) -> Iterator[str]:
    measured = [point for point in facts["points"] if point["measured"]]
    if not any(point["gpus"] == 1 and point["report_s"] > 0 for point in measured):
        yield "seconds per report on one GPU were not measured"
    yield from (
        f"{name} was not measured"
        for name in ("start_s", "save_s", "checkpoint_bytes")
        if not facts[name]
    )


def command(facts: Facts) -> Iterator[str]:
    if not facts["reports"]:
        yield "the program made no report"
    if not facts["seen"] or not set(facts["seen"]) <= set(facts["devices"]):
        yield f"the program saw {facts['seen']}, the machine has {facts['devices']}"


def nccl(facts: Facts) -> Iterator[str]:
    wanted = facts["wanted"]
    if {name: facts[name] for name in wanted} != wanted:
        yield f"the group was {facts['backend']} on {facts['device']}, not {wanted}"
    if facts["sum"] != 64 * facts["ranks"] or not facts["reports"]:
        yield f"{facts['ranks']} ranks came to {facts['sum']} in {facts['reports']} reports"
