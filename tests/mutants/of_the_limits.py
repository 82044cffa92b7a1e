"""Mistakes in what is counted: the ledger, the budget, the deadline, the lease."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUN = "tests/core/test_run.py"
LEDGER = "tests/core/test_ledger.py"
AIMING = "tests/core/test_aiming.py"
NODES = "tests/core/test_several_nodes.py"
PROVISIONING = "tests/core/test_provisioning.py"
LIMITS = "tests/core/test_limits.py"
SETTING = "tests/sim/test_setting.py"
MARGIN = "tests/sim/test_margin_costs_no_gpu.py"

COUNTING = (
    Mutant(
        "an agent that is alone while the run closes takes the whole grace period once more",
        "deadline and budget are kept though the daemon dies",
        "lease_grace_s",
        "grace_s(state) if state.phase is RunPhase.RUNNING else 0.0",
        "grace_s(state)",
        (
            "tests/core/test_limits.py::test_a_run_that_closes_leaves_agents_the_time_until_all_must_be_over",
        ),
    ),
    Mutant(
        "what is set aside for the end costs a GPU",
        "what is set aside costs time, never a GPU",
        "counted_with",
        "problem.whole or problem.extended",
        "True",
        (MARGIN,),
    ),
    Mutant(
        "the budget forgets that giving back takes time",
        "the budget is kept, with what is committed",
        "exhausted_at",
        "release_s(state)",
        "0.0",
        (f"{RUN}::test_the_budget_ends_a_run_before_it_is_exceeded",),
    ),
    Mutant(
        "trials are started that could not be given back within the budget",
        "the budget is kept, with what is committed",
        "affordable",
        "state.ledger.within(budget_gpu_s(state) - more, state.now + wait_s)",
        "state.ledger.within(budget_gpu_s(state), state.now)",
        (LIMITS,),
    ),
    Mutant(
        "a launch is thought to cost nothing before it runs",
        "the budget is kept, with what is committed",
        "affordable_launch",
        "budget_gpu_s(state) - gpus * least_s",
        "budget_gpu_s(state)",
        (LIMITS,),
    ),
    Mutant(
        "a launch forgets that a minute is paid at least",
        "the budget is kept, with the minimum of 60 s",
        "affordable_launch",
        "cluster.minimum_s",
        "0.0",
        (LIMITS,),
    ),
    Mutant(
        "money is no limit",
        "the money is kept to",
        "Limits.gpu_s",
        "min(self.budget_gpu_s, self.cost_usd / usd_per_gpu_h * 3600)",
        "self.budget_gpu_s",
        (f"{RUN}::test_money_is_a_budget_too",),
    ),
    Mutant(
        "the deadline forgets that saving and giving back take time",
        "the end is in time",
        "close_at",
        "state.facts.problem.limits.deadline_s - release_s(state) - publish_s(state)",
        "state.facts.problem.limits.deadline_s",
        (f"{RUN}::test_a_run_ends_within_its_limits_with_the_best_model",),
    ),
    Mutant(
        "the lease goes on past the end of the run",
        "an agent without a daemon ends within both limits",
        "lease_s",
        "max(\n"
        "    0.0,\n"
        "    min(\n"
        "        state.rules.lease_s, min(close_at(state), exhausted_at(state)) - now + end_s(state) / 2\n"
        "    ),\n"
        ")",
        "state.rules.lease_s",
        (LIMITS,),
    ),
    Mutant(
        "the lease goes on while the run closes",
        "an agent without a daemon ends within both limits",
        "lease_s",
        "max(0.0, (state.end.close_by or 0.0) - now)",
        "state.rules.lease_s",
        (LIMITS,),
    ),
    Mutant(
        "what ran on while the daemon was dead is not charged",
        "the ledger is the cloud's own account",
        "settle._missing",
        "min(state.now, gone_by(state))",
        "state.clock.heard_at",
        (LIMITS,),
    ),
    Mutant(
        "limits are judged before all was heard that had ended meanwhile",
        "a restart ends nothing that could go on",
        "decide._ending",
        "woken and (found := _limit_reached(state)) is not None",
        "(found := _limit_reached(state)) is not None",
        (LIMITS,),
    ),
    Mutant(
        "the ledger bills seconds without the minimum",
        "the budget is kept, with the minimum of 60 s",
        "Charge.gpu_s",
        "max(self.minimum_s, until_s - self.since_s)",
        "until_s - self.since_s",
        (f"{LEDGER}::test_a_rented_instance_costs_at_least_a_minute",),
    ),
    Mutant(
        "open charges forget the minimum",
        "the budget is kept, with the minimum of 60 s",
        "Ledger._shortfall",
        "sum(c.gpus * max(0.0, c.minimum_s - (now_s - c.since_s)) for c in self._young.values())",
        "0.0",
        (f"{LEDGER}::test_a_rented_instance_costs_at_least_a_minute",),
    ),
    Mutant(
        "the last moment that is affordable forgets the release",
        "the budget is kept, with what is committed",
        "Ledger.committed_gpu_s",
        "now_s + release_s",
        "now_s",
        (f"{LEDGER}::test_exhaustion_is_the_last_moment_that_keeps_the_budget",),
    ),
    Mutant(
        "a charge that has ended counts on",
        "every billed second is accounted for, once",
        "Ledger._take",
        "self._open_gpus -= charge.gpus",
        "",
        (f"{LEDGER}::test_whatever_happens_to_charges_what_is_spent_is_their_sum",),
    ),
    Mutant(
        "what ended before it began, by a clock that was set, has cost nothing",
        "every billed second is accounted for, once",
        "Ledger.end",
        "at_s if at_s >= charge.since_s else max(now_s, charge.since_s)",
        "max(at_s, charge.since_s)",
        (f"{LEDGER}::test_an_end_before_its_beginning_costs_until_it_was_known",),
    ),
    Mutant(
        "of two times at which an instance is taken away the later counts",
        "trials save before the cloud takes an instance away",
        "_sooner",
        "min((by for by in (one, other) if by is not None), default=None)",
        "max((by for by in (one, other) if by is not None), default=None)",
        (PROVISIONING,),
    ),
    Mutant(
        "an added job trains on to the run's deadline",
        "a job keeps the limits of its own",
        "_add_job",
        "(*state.facts.problem.jobs, asked.job)",
        "(*state.facts.problem.jobs, _with_limits(asked.job, Limits(0.0, 0.0), "
        "state.facts.problem.limits))",
        ("tests/core/test_adding.py::test_a_job_that_is_added_keeps_the_limits_of_its_own",),
    ),
    Mutant(
        "the margin is that of the median bill",
        "a plan is started only if its bill at the 95th percentile keeps the limits",
        "budget_margin.fits",
        "forecast.gpu_s.p95",
        "forecast.gpu_s.p50",
        ("tests/planner/test_budget_margin.py",),
    ),
    Mutant(
        "the margin is that of the median price",
        "a plan is started only if its bill at the 95th percentile keeps the limits",
        "budget_margin.fits",
        "forecast.usd.p95",
        "forecast.usd.p50",
        ("tests/planner/test_budget_margin.py",),
    ),
    Mutant(
        "an attempt is paid until its end was heard of",
        "every billed second is accounted for, once",
        "_release",
        "state.ledger.end(key, at, state.now)",
        "state.ledger.end(key, state.now, state.now)",
        (LIMITS,),
    ),
    Mutant(
        "an instance is paid until its end was heard of",
        "the ledger is the cloud's own account",
        "_end_instance",
        "state.ledger.end(instance.id, at, state.now)",
        "state.ledger.end(instance.id, state.now, state.now)",
        (f"{NODES}::test_a_lost_instance_is_paid_until_it_ended_by_the_clouds_account",),
    ),
    Mutant(
        "an instance is paid from when its agent answered",
        "the ledger is the cloud's own account",
        "record._",
        "event.running_since",
        "event.at",
        (f"{AIMING}::test_a_launch_is_charged_from_the_request_until_its_start_is_known",),
    ),
    Mutant(
        "the ledger forgets launches that are under way",
        "the budget is kept, with what is committed",
        "enact._launch",
        "Charge(command.id, command.id, command.gpus, state.now, minimum_s=cluster.minimum_s)",
        "Charge(command.id, command.id, 0, state.now, minimum_s=cluster.minimum_s)",
        (f"{AIMING}::test_a_launch_is_charged_from_the_request_until_its_start_is_known",),
    ),
    Mutant(
        "an instance without an agent does not know of those that are launched with it",
        "the budget is kept, with what is committed",
        "asked_together",
        "orphan_timeout_s(ahead)",
        "orphan_timeout_s(state)",
        (f"{LIMITS}::test_instances_that_never_get_an_agent_end_within_the_budget",),
    ),
    Mutant(
        "what a launch has brought is thought to be gone with the leases of agents",
        "the ledger is the cloud's own account",
        "since_s",
        "max(ended, since + orphan_timeout_s)",
        "ended",
        (
            f"{LIMITS}::test_what_a_launch_has_brought_may_be_there_as_long_as_it_goes_on_without_an_agent",
        ),
    ),
    Mutant(
        "what ran of a launch that came to nothing is free",
        "the ledger is the cloud's own account",
        "_settle_unready",
        "event.running_since is None",
        "event.ended is not None or event.running_since is None",
        (f"{AIMING}::test_a_launch_that_came_to_nothing_costs_what_ran_of_it",),
    ),
    Mutant(
        "SEER plans one stage more than the budget pays",
        "a plan keeps both limits",
        "longest_first_round",
        "params.p_min * rounds",
        "params.p_min * max(1, rounds - 1)",
        ("tests/planner/test_seer.py", "tests/properties/test_seer_properties.py"),
    ),
    Mutant(
        "the time to save is less than the slowest save takes",
        "everything is asked to stop early enough that trials can save",
        "grace_within",
        "2 * slowest_s + shortened(2, deadline_s, rules)",
        "slowest_s - shortened(2, deadline_s, rules)",
        ("tests/core/test_limits.py",),
    ),
)
