"""Mistakes in what is decided: trials, attempts, placement, the end of a run, and how a run goes on
after a crash.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUN = "tests/core/test_run.py"
ANSWERS = "tests/core/test_answers.py"
PROVISIONING = "tests/core/test_provisioning.py"
NODES = "tests/core/test_several_nodes.py"
PLACEMENT = "tests/core/test_placement.py"
INCUMBENT = "tests/core/test_incumbent.py"
OBSTACLES = "tests/core/test_obstacles.py"

DECIDING = (
    Mutant(
        "ids of commands are random",
        "a repeated command is known as the same one",
        "State.next_id",
        'f"{self.clock.seq + math.ceil(self.clock.gap_s * 1e6)}.{self.clock.given}"',
        'f"{self.clock.seq}." + str(__import__("random").randrange(10**9))',
        (f"{RUN}::test_the_same_facts_give_the_same_run",),
    ),
    Mutant(
        "what was under way is not asked for again after a restart",
        "a killed daemon loses nothing",
        "unfinished",
        "list(state.under_way.values())",
        "[]",
        (f"{NODES}::test_an_order_is_said_again_until_every_node_has_started",),
    ),
    Mutant(
        "an instance that was not found after a restart is believed to be there",
        "what was found after a restart is what counts",
        "record._",
        "instance.ready_at is not None",
        "not instance.busy",
        (f"{NODES}::test_a_node_that_is_gone_when_the_run_is_resumed_is_lost",),
    ),
    Mutant(
        "checkpoints that nobody had told of are forgotten",
        "a stored checkpoint is never lost",
        "record._",
        "take_saved(state, event.saved)\n"
        "missing = {\n"
        "    instance.id: event.ended.get(instance.id)\n"
        "    for instance in state.fleet.instances.values()\n"
        "    if instance.phase in THERE\n"
        "    and instance.ready_at is not None\n"
        "    and instance.id not in event.alive\n"
        "}",
        "missing = {\n"
        "    instance.id: event.ended.get(instance.id)\n"
        "    for instance in state.fleet.instances.values()\n"
        "    if instance.phase in THERE\n"
        "    and instance.ready_at is not None\n"
        "    and instance.id not in event.alive\n"
        "}",
        (f"{RUN}::test_a_trial_goes_on_from_what_was_saved_unheard",),
    ),
    Mutant(
        "an interrupted run that is resumed waits for the next stage",
        "an interrupted run can be resumed",
        "record._reopen",
        'state.agenda.ask = "resumed"',
        "",
        (f"{RUN}::test_an_interrupted_run_can_be_resumed",),
    ),
    Mutant(
        "a late report of an old attempt counts for the new one",
        "progress is never counted twice",
        "reporting",
        "trial is None or trial.held is None or trial.attempt != event.attempt",
        "trial is None or trial.held is None",
        (f"{RUN}::test_an_old_attempt_has_nothing_to_say",),
    ),
    Mutant(
        "a late exit of an old attempt ends the new one",
        "no GPU is given to two trials",
        "current",
        "trial is None or trial.held is None or trial.attempt != attempt or node in trial.ends",
        "trial is None or trial.held is None or node in trial.ends",
        (f"{RUN}::test_an_old_attempt_has_nothing_to_say",),
    ),
    Mutant(
        "a fact that an agent tells again counts again",
        "progress is never counted twice",
        "core.record.record",
        "event.fact <= instance.seen",
        "instance.phase is InstancePhase.REQUESTED",
        (f"{RUN}::test_a_fact_that_is_told_again_counts_once",),
    ),
    Mutant(
        "reports that a restored attempt takes back are kept",
        "progress is never counted twice",
        "record._",
        "rewind(trial, event.reports)",
        "",
        (f"{RUN}::test_reports_that_were_lost_with_an_attempt_do_not_count",),
    ),
    Mutant(
        "a report that a trial makes again counts again",
        "progress is never counted twice",
        "record._",
        "rewind(trial, event.reports - 1)",
        "",
        (f"{RUN}::test_reports_that_were_lost_with_an_attempt_do_not_count",),
    ),
    Mutant(
        "the last model is handed back",
        "the model that is handed back is the best",
        "incumbent",
        "worth > best[0]",
        "worth != best[0]",
        (f"{RUN}::test_a_run_ends_within_its_limits_with_the_best_model", INCUMBENT),
    ),
    Mutant(
        "a model whose metric is NaN can win",
        "the model that is handed back is the best",
        "best_checkpoint",
        'one.metric is None or f"{trial.id}/{one.name}" in state.result.unreadable',
        'f"{trial.id}/{one.name}" in state.result.unreadable',
        (INCUMBENT,),
    ),
    Mutant(
        "more is better also where less is",
        "the model that is handed back is the best",
        "sign_of",
        '1.0 if goal.mode == "max" else -1.0',
        "1.0",
        (INCUMBENT,),
    ),
    Mutant(
        "the best model is passed over since its trial has failed",
        "the model that is handed back is the best, whatever became of its trial",
        "incumbent",
        "(sign * found.metric, trial.phase is not TrialPhase.FAILED, found.reports)",
        "(trial.phase is not TrialPhase.FAILED, sign * found.metric, found.reports)",
        (INCUMBENT,),
    ),
    Mutant(
        "what is in the way of one trial alone is tried again for ever",
        "an obstacle of one trial alone becomes a crash",
        "_is_own",
        "len(trial.blocked_s) <= state.rules.max_blocks",
        "True",
        (OBSTACLES,),
    ),
    Mutant(
        "a report never reaches the target of a script that saves nothing",
        "a run ends when its target is reached",
        "record._",
        "state.agenda.stirred |= not state.facts.problem_of(job_of(trial.id)).saves",
        "pass",
        ("tests/core/test_without_checkpoints.py",),
    ),
    Mutant(
        "a report alone reaches the target where models are saved",
        "the model that is handed back is as good as the target",
        "target_reached",
        "() if state.facts.problem_of(job).saves else state.trials.values()",
        "state.trials.values()",
        ("tests/core/test_without_checkpoints.py",),
    ),
    Mutant(
        "a damaged checkpoint stays the best one",
        "a damaged best model leaves the next best",
        "record._",
        'state.result.unreadable.add(f"{command.trial}/{command.checkpoint}")',
        "",
        (f"{RUN}::test_a_damaged_best_model_leaves_the_next_best",),
    ),
    Mutant(
        "a trial that crashes is restarted for ever",
        "a crash restarts a trial twice",
        "_for_good",
        "trial.in_vain > state.rules.max_crashes",
        "False",
        (f"{RUN}::test_a_crashed_trial_is_restarted_from_its_checkpoint_and_then_fails",),
    ),
    Mutant(
        "a trial that has come further is given up after three crashes",
        "a trial that comes further between its crashes is not given up",
        "count_crash",
        "1 if came_to != trial.came_to else trial.in_vain + 1",
        "trial.in_vain + 1",
        (f"{RUN}::test_a_trial_that_comes_further_between_its_crashes_is_not_given_up",),
    ),
    Mutant(
        "an address in use costs a configuration",
        "what is in the way of a trial, whatever its configuration, costs none",
        "_conclude",
        "guilty is not None and guilty.obstacle is not None",
        "False",
        (OBSTACLES,),
    ),
    Mutant(
        "trials whose port is in use are started again all the time",
        "what is in the way of a trial, whatever its configuration, costs none",
        "has_to_wait",
        "state.now < block.again_s",
        "False",
        (OBSTACLES,),
    ),
    Mutant(
        "a trial that takes its machine down is started for ever",
        "a trial that loses its machine again and again fails in the end",
        "_for_good",
        'why == "silent" or trial.losses > state.rules.max_losses',
        'why == "silent"',
        (f"{RUN}::test_a_trial_that_takes_machine_after_machine_down_fails_in_the_end",),
    ),
    Mutant(
        "a restarted trial begins anew",
        "a confirmed checkpoint is what training goes on from",
        "_start_if_possible",
        "tuple(c.name for c in trial.checkpoints)",
        "()",
        (f"{RUN}::test_a_moved_trial_goes_on_from_where_it_saved",),
    ),
    Mutant(
        "trials that move are killed",
        "a trial that moves may save first",
        "_stop_if_misplaced",
        "trial.out or state.end.hard or hung or (trial.broken and not trial.saved)",
        "True",
        (f"{RUN}::test_an_interrupted_run_saves_and_is_over",),
    ),
    Mutant(
        "trials stop for others that may not be started any more",
        "shortly before the end whoever runs goes on",
        "_stop_if_misplaced",
        "not time_left(state, ends_s)",
        "False",
        (f"{ANSWERS}::test_nobody_is_stopped_for_a_trial_that_may_not_be_started_any_more",),
    ),
    Mutant(
        "the grace period goes on until the instance is taken away",
        "a trial on an instance that leaves has saved before that is taken",
        "_grace_s",
        "by - state.rules.notice_margin_s",
        "by",
        (f"{PROVISIONING}::test_the_grace_ends_before_the_instance_does",),
    ),
    Mutant(
        "GPUs are given on before the attempt that is stopping has left them",
        "no GPU is given to two trials",
        "reconcile._free",
        "(\n"
        "    instances[slots.node].phase is InstancePhase.READY\n"
        "    and not any(gpu in instances[slots.node].busy for gpu in slots.gpus)\n"
        ")",
        "instances[slots.node].phase is InstancePhase.READY",
        (f"{RUN}::test_gpus_are_given_on_once_the_attempt_that_had_them_has_left",),
    ),
    Mutant(
        "a target is reached by more, whatever the mode",
        "a run ends when a confirmed model is good enough",
        "good_enough",
        "sign * metric >= sign * target",
        "metric >= target",
        (f"{INCUMBENT}::test_a_metric_is_good_enough_on_its_side_of_the_target",),
    ),
    Mutant(
        "the target is looked at when something else happens",
        "a run ends when a confirmed model is good enough",
        "confirm",
        "good_enough(state.facts.goal_of(trial.id), new.metric)",
        "False",
        (f"{RUN}::test_a_confirmed_checkpoint_that_reaches_the_target_ends_the_run_in_order",),
    ),
    Mutant(
        "the nodes that are left of a broken attempt go on",
        "an attempt ends as a whole",
        "_stop_if_misplaced",
        "trial.held == trial.target and not trial.out and not trial.broken and not hung",
        "trial.held == trial.target and not trial.out and not hung",
        (f"{NODES}::test_a_crash_on_one_node_is_the_end_on_the_other",),
    ),
    Mutant(
        "GPUs that were just given are given again",
        "no GPU is given to two trials",
        "_new_slots",
        "for slots in chosen:\n    free[slots.node] -= set(slots.gpus)",
        "for slots in chosen:\n    free[slots.node] -= set()",
        (PLACEMENT,),
    ),
    Mutant(
        "GPUs of those who stay are given to others",
        "no GPU is given to two trials",
        "_new_slots",
        "for slots in assignment:\n    free[slots.node] -= set(slots.gpus)",
        "for slots in assignment:\n    free[slots.node] -= set()",
        (PLACEMENT,),
    ),
    Mutant(
        "a trial that fits an instance stays on two",
        "a trial that fits a machine is not split",
        "placement._proper",
        "return len(old) == 1",
        "return True",
        (PLACEMENT,),
    ),
    Mutant(
        "what the cloud takes away gets new trials",
        "a notice is acted upon",
        "record._",
        "instance.phase is InstancePhase.READY",
        "instance.phase is InstancePhase.READY and event.by is None",
        (
            f"{PROVISIONING}::test_what_runs_on_a_leaving_instance_saves_and_moves_and_another_one_is_asked_for_at_once",
        ),
    ),
    Mutant(
        "a launch that was refused is asked for again at once, for ever",
        "a cloud without capacity is asked within reason",
        "after_refusal",
        "state.now + _wait_s(state, refusals)",
        "fleet.launch_at",
        (f"{PROVISIONING}::test_what_is_refused_is_not_asked_for_again_at_once",),
    ),
    Mutant(
        "a reason that nobody knows is one for good",
        "a code that nobody knows does not end launches",
        "after_refusal",
        "not refusal.retry and not refusal.unknown",
        "not refusal.retry",
        (
            f"{PROVISIONING}::test_a_reason_that_nobody_knows_rests_launches_until_an_instance_comes_or_goes",
        ),
    ),
    Mutant(
        "a run that gets nothing waits until its deadline",
        "a run that can get no instance is over",
        "hopeless",
        "state.fleet.refusals >= state.rules.max_refusals",
        "state.fleet.refusals > 99 * state.rules.max_refusals",
        (f"{PROVISIONING}::test_a_refusal_for_good_ends_a_run_that_has_nothing",),
    ),
    Mutant(
        "instances that are being taken away do not count",
        "no more GPUs than the person allows",
        "launches",
        "_most(state) - state.fleet.leaving",
        "_most(state)",
        (f"{PROVISIONING}::test_no_more_gpus_are_asked_for_than_the_person_allows",),
    ),
    Mutant(
        "instances that nobody needs are kept",
        "what is not needed is given back",
        "_fit_instances",
        "fleet.live > kept",
        "fleet.live > kept + 99",
        (f"{RUN}::test_rented_instances_are_given_back_when_a_stage_needs_fewer",),
    ),
    Mutant(
        "a launch under way is forgotten at the end",
        "no instance is left behind",
        "_release_all",
        "(InstancePhase.REQUESTED, InstancePhase.READY, InstancePhase.LEAVING)",
        "(InstancePhase.READY, InstancePhase.LEAVING)",
        ("tests/core/test_provisioning.py",),
    ),
    Mutant(
        "the end waits for attempts that do not answer",
        "the end is in time, whoever answers",
        "_too_late",
        "state.end.close_by is not None and state.now >= state.end.close_by",
        "False",
        (f"{RUN}::test_agents_that_do_not_answer_cannot_hold_up_the_end",),
    ),
    Mutant(
        "an instance that is lost counts as a crash of its trials",
        "a lost agent or instance is not the trial's fault",
        "attempts.node_lost",
        'AttemptEnd("lost", _alone(trial), why)',
        'AttemptEnd("crashed", _alone(trial), why)',
        ("tests/core/test_run.py",),
    ),
    Mutant(
        "all GPUs rest when one of them is busy",
        "of a busy device only its GPU rests",
        "is_extra",
        "any((slots.node, gpu) in block.on for slots in target for gpu in slots.gpus)",
        "True",
        ("tests/core/test_obstacles.py",),
    ),
    Mutant(
        "a job in whose way something always is waits for ever",
        "a job that has never reported, and that is always blocked, ends",
        "always_blocked",
        "state.now - state.jobs[job].blocked_s >= min(patience_s, rules.blocked_s)",
        "False",
        ("tests/core/test_obstacles.py",),
    ),
    Mutant(
        "trials move at a mere recommendation",
        "after a recommendation to rebalance trials only save",
        "record._is_hint",
        'event.what == "rebalance" and not state.facts.cluster.hints_move',
        'event.what == "rebalance" and state.facts.cluster.hints_move',
        ("tests/core/test_provisioning.py",),
    ),
)
