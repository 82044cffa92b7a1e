"""Whether the budget is ever exceeded, and how much of it is left unused: many runs as people have
them on EC2, drawn from a seed.

`python bench/budget_audit.py [--runs 10000] [--jobs 2] [--seed 0]` prints one JSON object, the same
to the bit on any number of cores. What a run is, `drawn.py` says; where its budget went,
`account.py`. The bill is the simulated cloud's own; the run's ledger must agree. `--first N` begins
with run N, to look at one; `--worst N` adds the runs that used the least.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))


from bench.account import CAUSES, Account, audited
from bench.drawn import Drawn, draw
from seerd.errors import LimitsError, UsageError
from seerd.planner.model import Limits
from seerd.planner.policies import POLICIES
from seerd.planning.planned import plan_for
from seerd.sim.setting import problem_of

POLICY_NAMES = sorted(POLICIES.keys() - {"bohb"})
"""`bohb` needs an extra, and plans for longer than all others take together."""
CHUNK = 25
Json = dict[str, Any]


def main() -> None:
    """Prints one JSON object."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=int, default=10_000)
    asked.add_argument("--jobs", type=int, default=2)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--worst", type=int, default=0)
    args = asked.parse_args()
    numbers = range(args.first, args.first + args.runs)
    with ProcessPoolExecutor(args.jobs) as pool:
        found = list(pool.map(partial(one, seed=args.seed), numbers, chunksize=CHUNK))
    accounts = [account for account in found if account is not None]
    told = report(accounts) | {
        "runs": len(accounts),
        "impossible": len(found) - len(accounts),
        "seed": args.seed,
    }
    if args.worst:
        told["worst"] = [as_json(a) for a in sorted(accounts, key=lambda a: a.share)[: args.worst]]
    print(json.dumps(told))


def one(number: int, seed: int) -> Account | None:
    """One run; None if nothing fits even into the least limits that its plan asks for."""
    drawn = draw(number, seed, POLICY_NAMES)
    try:
        return account(drawn)
    except LimitsError as error:
        drawn = drawn.within(enough(drawn, error))
    except UsageError:
        return None
    try:
        return account(drawn)
    except LimitsError:
        return None


def account(drawn: Drawn) -> Account:
    """What `seerd run` would start, and what came of it. Raises as `plan_for` does."""
    planned = plan_for(
        problem_of(drawn.setting, drawn.params), drawn.setting.cluster, drawn.believed
    )
    return audited(drawn, planned.problem, planned.outline)


def enough(drawn: Drawn, error: LimitsError) -> Limits:
    """The least that would do, as the error says."""
    limits = drawn.setting.limits
    price = drawn.setting.cluster.usd_per_gpu_h
    budget_gpu_s = max(limits.budget_gpu_s, error.min_budget_gpu_s)
    usd = None if limits.cost_usd is None else max(limits.cost_usd, budget_gpu_s / 3600 * price)
    return Limits(max(limits.deadline_s, error.min_deadline_s), budget_gpu_s, limits.max_gpus, usd)


def report(accounts: Sequence[Account]) -> Json:
    """All figures."""
    most = max(accounts, key=lambda a: a.billed_gpu_s - a.allowed_gpu_s)
    latest = max(accounts, key=lambda a: a.elapsed_s - a.deadline_s)
    apart = max(accounts, key=lambda a: abs(a.ledger_gpu_s - a.billed_gpu_s))
    return {
        "overshoot": {
            "gpu_min": round(max(0.0, most.billed_gpu_s - most.allowed_gpu_s) / 60, 9),
            "usd": round(
                max(0.0, *((a.billed_gpu_s - a.allowed_gpu_s) * a.usd_per_gpu_s for a in accounts)),
                9,
            ),
            "deadline_s": round(max(0.0, latest.elapsed_s - latest.deadline_s), 6),
            "nearest": {
                "gpu_s_left": round(most.allowed_gpu_s - most.billed_gpu_s, 3),
                "run": most.number,
            },
            "latest": {
                "s_left": round(latest.deadline_s - latest.elapsed_s, 3),
                "run": latest.number,
            },
        },
        "ledger_apart": {
            "gpu_s": round(abs(apart.ledger_gpu_s - apart.billed_gpu_s), 6),
            "run": apart.number,
        },
        "used": shares(accounts),
        "by_policy": by(accounts, lambda a: a.policy),
        "by_tightness": by(accounts, lambda a: a.tightness),
        "by_weather": by(accounts, lambda a: a.weather),
        "endings": endings(accounts),
        "unused_because": because(accounts),
    }


def shares(accounts: Sequence[Account]) -> Json:
    """Of the budget; `usable`: of what so many GPUs could use by the deadline."""
    used = sorted(a.share for a in accounts)
    usable = sorted(a.share_of_usable for a in accounts)
    return {"runs": len(used), **quantiles(used), "usable": quantiles(usable)}


def quantiles(ordered: Sequence[float]) -> Json:
    at = {"p5": 0.05, "p25": 0.25, "median": 0.5}
    return {
        name: round(ordered[round(share * (len(ordered) - 1))], 4) for name, share in at.items()
    }


def by(accounts: Sequence[Account], kind: Callable[[Account], str]) -> Json:
    kinds = sorted({kind(a) for a in accounts})
    told = {}
    for name in kinds:
        some = [a for a in accounts if kind(a) == name]
        told[name] = shares(some) | {"endings": endings(some), "unused_because": because(some)}
    return told


def endings(accounts: Sequence[Account]) -> Json:
    counted = Counter(a.ending for a in accounts)
    return {name: round(count / len(accounts), 4) for name, count in sorted(counted.items())}


def because(accounts: Sequence[Account]) -> Json:
    """Mean share of the budget that was left for each cause."""
    return {
        cause: round(
            math.fsum(a.unused[cause] / a.allowed_gpu_s for a in accounts) / len(accounts), 4
        )
        for cause in CAUSES
    }


def as_json(account: Account) -> Json:
    return {
        key: round(value, 3) if isinstance(value, float) else value
        for key in Account.__slots__
        for value in [getattr(account, key)]
    } | {"share": round(account.share, 4)}


if __name__ == "__main__":
    main()
