"""Mistakes in what is counted: the ledger, the budget, the deadline, the lease."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUN = "tests/core/test_run.py"
LEDGER = "tests/core/test_ledger.py"
AIMING = "tests/core/test_aiming.py"
NODES = "tests/core/test_several_nodes.py"
LAUNCHING = "tests/core/test_launching.py"
LIMITS = "tests/core/test_limits.py"
SETTING = "tests/sim/test_setting.py"

COUNTING = (
    Mutant(
        "the budget forgets that giving back takes time",
        "the budget is kept, with what is committed",
        "seerd/core/limits.py",
        "return state.ledger.exhausted_at(budget_gpu_s(state), release_s(state))",
        "return state.ledger.exhausted_at(budget_gpu_s(state), 0.0)",
        (f"{RUN}::test_the_budget_ends_a_run_before_it_is_exceeded",),
    ),
    Mutant(
        "trials are started that could not be given back within the budget",
        "the budget is kept, with what is committed",
        "seerd/core/limits.py",
        "return state.ledger.within(budget_gpu_s(state) - more, state.now + wait_s)",
        "return state.ledger.within(budget_gpu_s(state), state.now)",
        (LIMITS,),
    ),
    Mutant(
        "a launch is thought to cost nothing before it runs",
        "the budget is kept, with what is committed",
        "seerd/core/limits.py",
        "return state.ledger.within(budget_gpu_s(state) - gpus * least_s, state.now + wait_s)",
        "return state.ledger.within(budget_gpu_s(state), state.now + wait_s)",
        (LIMITS,),
    ),
    Mutant(
        "a launch forgets that a minute is paid at least",
        "the budget is kept, with the minimum of 60 s",
        "seerd/core/limits.py",
        "least_s = max(cluster.minimum_s, cluster.boot_s + wait_s)",
        "least_s = cluster.boot_s + wait_s",
        (LIMITS,),
    ),
    Mutant(
        "money is no limit",
        "the money is kept to",
        "planner/model.py",
        "        return min(self.budget_gpu_s, self.cost_usd / usd_per_gpu_h * 3600)",
        "        return self.budget_gpu_s",
        (f"{RUN}::test_money_is_a_budget_too",),
    ),
    Mutant(
        "the deadline forgets that saving and giving back take time",
        "the end is in time",
        "seerd/core/limits.py",
        "return state.facts.problem.limits.deadline_s - release_s(state) - publish_s",
        "return state.facts.problem.limits.deadline_s",
        (f"{RUN}::test_a_run_ends_within_its_limits_with_the_best_model",),
    ),
    Mutant(
        "the lease goes on past the end of the run",
        "an agent without a daemon ends within both limits",
        "seerd/core/limits.py",
        "return max(0.0, min(state.rules.lease_s, min(close_at(state), exhausted_at(state)) - now + end_s(state) / 2))",
        "return state.rules.lease_s",
        (LIMITS,),
    ),
    Mutant(
        "the lease goes on while the run closes",
        "an agent without a daemon ends within both limits",
        "seerd/core/limits.py",
        "        return max(0.0, (state.end.close_by or 0.0) - now)\n",
        "        return state.rules.lease_s\n",
        (LIMITS,),
    ),
    Mutant(
        "what ran on while the daemon was dead is not charged",
        "the ledger is the cloud's own account",
        "seerd/core/settle.py",
        "ended = min(state.now, gone_by(state))",
        "ended = state.clock.heard_at",
        (LIMITS,),
    ),
    Mutant(
        "limits are judged before all was heard that had ended meanwhile",
        "a restart ends nothing that could go on",
        "seerd/core/decide.py",
        "if woken and (found := _limit_reached(state)) is not None:",
        "if (found := _limit_reached(state)) is not None:",
        (LIMITS,),
    ),
    Mutant(
        "the ledger bills seconds without the minimum",
        "the budget is kept, with the minimum of 60 s",
        "seerd/core/ledger.py",
        "return self.gpus * max(self.minimum_s, until_s - self.since_s)",
        "return self.gpus * (until_s - self.since_s)",
        (f"{LEDGER}::test_a_rented_instance_costs_at_least_a_minute",),
    ),
    Mutant(
        "open charges forget the minimum",
        "the budget is kept, with the minimum of 60 s",
        "seerd/core/ledger.py",
        "return sum(c.gpus * max(0.0, c.minimum_s - (now_s - c.since_s)) for c in self._young.values())",
        "return 0.0",
        (f"{LEDGER}::test_a_rented_instance_costs_at_least_a_minute",),
    ),
    Mutant(
        "the last moment that is affordable forgets the release",
        "the budget is kept, with what is committed",
        "seerd/core/ledger.py",
        "return self.spent_gpu_s(now_s + release_s)",
        "return self.spent_gpu_s(now_s)",
        (f"{LEDGER}::test_exhaustion_is_the_last_moment_that_keeps_the_budget",),
    ),
    Mutant(
        "a charge that has ended counts on",
        "every billed second is accounted for, once",
        "seerd/core/ledger.py",
        "        self._open_gpus -= charge.gpus\n",
        "",
        (f"{LEDGER}::test_whatever_happens_to_charges_what_is_spent_is_their_sum",),
    ),
    Mutant(
        "an attempt is paid until its end was heard of",
        "every billed second is accounted for, once",
        "seerd/core/attempts.py",
        "    if key in state.ledger.open:\n        state.ledger.end(key, at)",
        "    if key in state.ledger.open:\n        state.ledger.end(key, state.now)",
        (LIMITS,),
    ),
    Mutant(
        "an instance is paid until its end was heard of",
        "the ledger is the cloud's own account",
        "seerd/core/record.py",
        "        state.ledger.end(instance.id, at)\n",
        "        state.ledger.end(instance.id, state.now)\n",
        (f"{NODES}::test_a_lost_instance_is_paid_until_it_ended_by_the_clouds_account",),
    ),
    Mutant(
        "an instance is paid from when its agent answered",
        "the ledger is the cloud's own account",
        "seerd/core/record.py",
        "Charge(instance.id, instance.id, requested_gpus, event.running_since, minimum_s=cluster.minimum_s)",
        "Charge(instance.id, instance.id, requested_gpus, event.at, minimum_s=cluster.minimum_s)",
        (f"{AIMING}::test_a_launch_is_charged_from_the_request_until_its_start_is_known",),
    ),
    Mutant(
        "the ledger forgets launches that are under way",
        "the budget is kept, with what is committed",
        "seerd/core/enact.py",
        "Charge(command.id, command.id, command.gpus, state.now, minimum_s=cluster.minimum_s)",
        "Charge(command.id, command.id, 0, state.now, minimum_s=cluster.minimum_s)",
        (f"{AIMING}::test_a_launch_is_charged_from_the_request_until_its_start_is_known",),
    ),
    Mutant(
        "an instance without an agent does not know of those that are launched with it",
        "the budget is kept, with what is committed",
        "seerd/core/launching.py",
        "return asked, alone_s(ahead) if asked else None",
        "return asked, alone_s(state) if asked else None",
        (f"{LIMITS}::test_instances_that_never_get_an_agent_end_within_the_budget",),
    ),
    Mutant(
        "what a launch has brought is thought to be gone with the leases of agents",
        "the ledger is the cloud's own account",
        "seerd/core/settle.py",
        "gone = min(state.now, max(ended, since + alone_s))",
        "gone = min(state.now, ended)",
        (f"{LIMITS}::test_what_a_launch_has_brought_may_be_there_as_long_as_it_goes_on_without_an_agent",),
    ),
    Mutant(
        "what ran of a launch that came to nothing is free",
        "the ledger is the cloud's own account",
        "seerd/core/record.py",
        "    if event.running_since is None:\n        state.ledger.void(instance)",
        "    if event.ended is not None or event.running_since is None:\n        state.ledger.void(instance)",
        (f"{AIMING}::test_a_launch_that_came_to_nothing_costs_what_ran_of_it",),
    ),
    Mutant(
        "SEER plans one stage more than the budget pays",
        "a plan keeps both limits",
        "planner/seer.py",
        "by_budget = Fraction(limits.budget_gpu_s) / (params.p_min * rounds * eta ** (rounds - 1))",
        "by_budget = Fraction(limits.budget_gpu_s) / (params.p_min * max(1, rounds - 1) * eta ** (rounds - 1))",
        ("tests/planner/test_seer.py", "tests/properties/test_seer_properties.py"),
    ),
)
