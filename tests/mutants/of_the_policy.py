"""Mistakes in what is asked and answered: questions, what of an answer is taken, the process that
is asked, what it remembers.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ANSWERS = "tests/core/test_answers.py"
PLANS = "tests/core/test_plans.py"
PROCESS = "tests/shell/test_policy_process.py"
DAEMON = "tests/shell/test_daemon.py"
REMEMBERED = "tests/planner/test_remembered.py"
FUNCTIONS = "tests/planner/test_policies_are_functions.py"
STANDS = "an answer that cannot be the plan changes nothing"
MISTAKE = f"{ANSWERS}::test_a_mistake_is_declined_with_a_sentence_and_the_last_plan_stands"
UNTRUE = f"{ANSWERS}::test_what_became_untrue_meanwhile_is_dropped_and_asked_again"
AGAIN = f"{ANSWERS}::test_a_question_that_another_daemon_asks_again_is_of_the_moment_at_which_it_is"
LATE = f"{ANSWERS}::test_an_answer_that_comes_later_than_it_wanted_to_be_asked_again_is_followed_by_a_question"
OPEN = (
    f"{ANSWERS}::test_while_a_question_is_open_nothing_new_is_begun_and_room_waits_for_the_answer"
)
TOO_MANY = f"{ANSWERS}::test_trials_get_no_more_gpus_than_there_may_be"
IN_TIME = f"{PROCESS}::test_one_that_does_not_answer_in_time_is_killed"


def unchecked(what: str, place: str, old: str, new: str, test: str = MISTAKE) -> Mutant:
    """A kind of mistake that is taken for none."""
    return Mutant(f"an answer may {what}", STANDS, place, old, new, (test,))


ASKING = (
    Mutant(
        "an answer to an old question is adopted",
        "an answer is to the question that is open",
        "record._answers",
        "state.plan.question != question",
        "state.plan.question is None",
        (f"{ANSWERS}::test_an_answer_to_an_old_question_changes_nothing",),
    ),
    Mutant(
        "an answer is listened to while the run closes",
        "nothing delays the end",
        "State.forget_question",
        "self.plan.question = self.plan.answer = None",
        "self.plan.answer = None",
        (f"{ANSWERS}::test_an_answer_while_the_run_closes_changes_nothing",),
    ),
    Mutant(
        "a question is under way while the run closes",
        "nothing delays the end",
        "State.forget_question",
        'self.under_way.pop(self.plan.question or "", None)',
        "",
        (f"{ANSWERS}::test_an_answer_while_the_run_closes_changes_nothing",),
    ),
    Mutant(
        "the limits wait for the policy's answer",
        "nothing delays the end",
        "decide._ending",
        """\
if woken and (ending := _limit_reached(state)) is not None:
    return ending""",
        """\
asked = state.plan.question is not None
if woken and not asked and (ending := _limit_reached(state)) is not None:
    return ending""",
        (f"{ANSWERS}::test_an_open_question_does_not_delay_the_end",),
    ),
    Mutant(
        "a second question is asked beside the first",
        "one question at a time",
        "wants_to_ask",
        "may_ask and plan.question is None and (not plan.failures or state.now >= plan.again_s)",
        "may_ask and (not plan.failures or state.now >= plan.again_s)",
        (f"{ANSWERS}::test_what_happens_while_a_question_is_open_makes_one_more",),
    ),
    Mutant(
        "a moment that is past sets a timer while the question is open",
        "nobody is asked for ever",
        "_ask_at",
        "if plan.question is not None:\n    return math.inf",
        "",
        (f"{ANSWERS}::test_a_moment_that_is_past_sets_no_timer_while_the_question_is_open",),
    ),
    Mutant(
        "a moment that is past when its answer comes is forgotten",
        "the policy is asked when it wants to be",
        "_ask_at",
        "return math.inf if plan.last.ask_at_s is None else plan.last.ask_at_s",
        "due = plan.last.ask_at_s\nreturn math.inf if due is None or due <= state.now else due",
        (LATE,),
    ),
    Mutant(
        "a question that is asked again is of the moment at which it was asked first",
        "a stage in the past is refused",
        "record._",
        "state.plan.asked_s = state.now",
        "pass",
        (AGAIN,),
    ),
    Mutant(
        "a policy that fails is asked for ever",
        "three failures in a row end the run with the best model",
        "_wanted_end",
        "state.plan.failures >= state.rules.max_failures",
        "state.plan.failures > 99 * state.rules.max_failures",
        (f"{ANSWERS}::test_three_failures_in_a_row_end_the_run_with_the_best_model",),
    ),
    Mutant(
        "failures are counted over the whole run",
        "three failures in a row end the run",
        "enact._",
        "plan.answer, plan.failures, plan.last = None, 0, change",
        "plan.answer, plan.last = None, change",
        (f"{ANSWERS}::test_an_answer_between_failures_begins_the_count_anew",),
    ),
    Mutant(
        "a policy that has failed is asked again at once",
        "a policy that fails is asked within reason",
        "wants_to_ask",
        "may_ask and plan.question is None and (not plan.failures or state.now >= plan.again_s)",
        "may_ask and plan.question is None",
        (f"{ANSWERS}::test_after_a_failure_it_is_asked_again_by_the_timer_and_not_before",),
    ),
    Mutant(
        "the person is told of every failure",
        "the person is told once",
        "enact._",
        "verdict.failures == 1",
        "verdict.failures",
        (f"{ANSWERS}::test_the_person_is_told_once_of_failures_in_a_row",),
    ),
    Mutant(
        "things are begun while a question is open",
        "nothing is begun that the next plan might undo",
        "_run_on",
        "state.plan.question is not None or (wants_to_ask(state) and not answered)",
        "False",
        (OPEN,),
    ),
    Mutant(
        "what is lost is not replaced while a question is open",
        "what is lost is replaced at once",
        "_run_on",
        'plan_is_coming and state.agenda.because != "replacement"',
        "plan_is_coming",
        (f"{ANSWERS}::test_what_is_lost_while_a_question_is_open_is_replaced_by_the_last_plan",),
    ),
    Mutant(
        "what became untrue meanwhile counts as a mistake",
        "what became untrue is left out and asked again",
        "_mistakes",
        'if name not in state.trials and name not in new:\n    yield f"it names {name}, and '
        'there is no such trial"',
        'gone = name in state.trials and state.trials[name].status != "live"\n'
        "if gone or (name not in state.trials and name not in new):\n"
        '    yield f"it names {name}, and there is no such trial"',
        (UNTRUE,),
    ),
    Mutant(
        "what became untrue meanwhile is not asked again",
        "what became untrue is left out and asked again",
        "_look_ahead",
        'agenda.ask = agenda.ask or "untrue"',
        "pass",
        (UNTRUE,),
    ),
    Mutant(
        "what became untrue meanwhile is adopted",
        "what became untrue is left out and asked again",
        "_untrue",
        "name in out or not is_live",
        "name in out",
        (UNTRUE,),
    ),
    Mutant(
        "an eliminated trial that is still ending can come back",
        "who is out stays out",
        "Trial.status",
        'if self.out and self.phase not in STATUS:\n    return "eliminated"',
        "",
        (f"{ANSWERS}::test_who_is_out_comes_back_by_no_later_plan",),
    ),
    Mutant(
        "an eliminated trial is only paused",
        "who is out stays out",
        "enact._",
        "trial.out = True",
        "",
        (f"{ANSWERS}::test_who_is_out_comes_back_by_no_later_plan",),
    ),
    Mutant(
        "what a declined answer remembers is kept",
        STANDS,
        "enact._",
        "plan.answer, plan.failures, plan.again_s = None, verdict.failures, verdict.again_s",
        "if isinstance(plan.answer, tuple):\n    plan.memory.update(plan.answer[1])\nplan.answer, plan.failures, plan.again_s = None, verdict.failures, verdict.again_s",
        (MISTAKE,),
    ),
    Mutant(
        "the policy's process goes on from an answer that was declined",
        STANDS,
        "Daemon._put_question",
        "policy.forget()",
        "pass",
        (f"{DAEMON}::test_a_policy_whose_answer_was_declined_remembers_nothing_of_it",),
    ),
    Mutant(
        "an answer that no journal can keep is adopted",
        STANDS,
        "Dispatch._ask_policy",
        "is_kept(answered)",
        "answered",
        (f"{DAEMON}::test_an_answer_that_no_journal_can_keep_is_none",),
    ),
    Mutant(
        "the policy is not told what has happened since it was asked last",
        "a question is what was so when it was noted",
        "PolicyProcess.note",
        "(known.news(view.trials[name]) for name, known in self._known.items())",
        "(k.news(view.trials[n]) for n, k in self._known.items() if k.status is None)",
        (f"{DAEMON}::test_the_policy_sees_the_run_as_it_was_when_it_was_asked",),
    ),
    Mutant(
        "the policy is asked about what has happened since the question",
        "a question is what was so when it was noted",
        "Daemon._handle",
        """\
for event in batch:
    if event.at < self.state.now:
        event = msgspec.structs.replace(event, at=self.state.now)
    before = unfinished(self.state) if isinstance(event, events.RunResumed) else []
    entry = Entry(self.state.clock.seq + 1, event, step(self.state, event))
    entries.append(entry)
    still = [command for command in before if command.id in self.state.under_way]
    carried_on += still
    self._put_question(entry, still)
self._journal.append(entries)""",
        """\
for event in batch:
    if event.at < self.state.now:
        event = msgspec.structs.replace(event, at=self.state.now)
    before = unfinished(self.state) if isinstance(event, events.RunResumed) else []
    entry = Entry(self.state.clock.seq + 1, event, step(self.state, event))
    entries.append(entry)
    still = [command for command in before if command.id in self.state.under_way]
    carried_on += still
self._journal.append(entries)
for entry in entries:
    self._put_question(entry, carried_on)""",
        (f"{DAEMON}::test_the_policy_sees_the_run_as_it_was_when_it_was_asked",),
    ),
    unchecked(
        "ask for a trial that there is",
        "_mistakes",
        "name in state.trials or times > 1",
        "times > 1",
    ),
    unchecked(
        "ask for a trial twice",
        "_mistakes",
        "name in state.trials or times > 1",
        "name in state.trials",
    ),
    unchecked(
        "name a trial that there is not",
        "_mistakes",
        "name not in state.trials and name not in new",
        "not name",
    ),
    unchecked(
        "want what is no number",
        "_wrong_trials",
        "isinstance(value, float) and not math.isfinite(value)",
        "value is None",
    ),
    unchecked("give a trial no GPU", "_wrong_size", "put.gpus < 1", "put.gpus < 0"),
    unchecked(
        "give a trial parts of several instances",
        "_wrong_size",
        "put.gpus > size",
        "put.gpus > 99 * size",
    ),
    unchecked(
        "want to be asked after no report",
        "_wrong_size",
        "put.until is not None and put.until < 1",
        "put.until is not None and put.until < 0",
    ),
    unchecked(
        "name a trial twice",
        "Order.apply",
        "len(set(named)) < len(named)",
        "False",
    ),
    unchecked(
        "leave a trial in a place that it has not",
        "Order.apply",
        "{*change.gone, *kept}",
        "{*change.gone}",
    ),
    unchecked(
        "give places in any order",
        "Order.apply",
        "places != sorted(set(places))",
        "False",
    ),
    unchecked(
        "give places that there are not",
        "Order.apply",
        "all(0 <= place - before <= len(names) for before, place in enumerate(places))",
        "True",
    ),
    unchecked(
        "give a trial more GPUs than there may be",
        "_too_many",
        "largest.gpus > most",
        "largest.gpus > 99 * most",
        TOO_MANY,
    ),
    unchecked(
        "give its trials more GPUs together than there may be",
        "_too_many",
        "together > most",
        "together > 99 * most",
        TOO_MANY,
    ),
    unchecked(
        "want to be asked at a moment that is past",
        "_wrong_time",
        "at_s <= asked_s",
        "at_s < 0",
    ),
    unchecked(
        "want to be asked at no moment",
        "_wrong_time",
        "not math.isfinite(at_s) or (at_s <= asked_s and not change.done)",
        "at_s <= asked_s and not change.done",
    ),
    unchecked(
        "speak of a stage that there is not",
        "_wrong_time",
        "change.stage < 0 or (stages and change.stage >= stages)",
        "change.stage < 0",
    ),
    Mutant(
        "trials that are put elsewhere come too late in the order",
        "a change of the plan makes exactly the next plan",
        "Order.apply",
        "names.insert(put.place, put.trial)",
        "names.append(put.trial)",
        (PLANS,),
    ),
    Mutant(
        "a trial that has moved is taken for one that stays",
        "a change of the plan makes exactly the next plan",
        "plans.difference",
        "pair[1].trial not in stay",
        "pair[1].trial not in before",
        (PLANS,),
    ),
    Mutant(
        "the GPUs of a plan are those of the first one",
        STANDS,
        "Order.gpus",
        "sum((allocation.gpus for allocation in self._of.values()))",
        "next(iter(self._of.values())).gpus",
        (TOO_MANY,),
    ),
    Mutant(
        "a trial on another number of GPUs is taken for one that is as it was",
        "a change of the plan makes exactly the next plan",
        "plans.difference",
        "a.trial in stay and a != before.get(a.trial)",
        "a.trial in stay and a.until != before.get(a.trial).until",
        (PLANS,),
    ),
    Mutant(
        "a policy that does not answer in time goes on",
        "an answer comes in time or not at all",
        "PolicyProcess.answer",
        "if child is self._child:\n    self._abandon()",
        "",
        (IN_TIME,),
    ),
    Mutant(
        "a policy may ignore that it is ended",
        "an answer comes in time or not at all",
        "_Child.kill",
        "signal.SIGKILL",
        "signal.SIGTERM",
        (IN_TIME,),
    ),
    Mutant(
        "a question is about the run as it is when it is sent",
        "a question is what was so when it was noted",
        "PolicyProcess.note",
        """\
message = wire.Question(question, view.now_s, view.mode, news, anew, dict(view.spent))
self._question = question, wire.frame(message)""",
        """\
more = lambda: [known.news(view.trials[name]) for name, known in self._known.items()]
late = lambda: [*news, *filter(None, more())]
sent = lambda: wire.frame(wire.Question(question, view.now_s, view.mode, late(), anew))
self._question = (part() for part in (lambda: question, sent))""",
        (f"{PROCESS}::test_a_question_is_what_was_so_when_it_was_noted",),
    ),
    Mutant(
        "reports that were taken back and made anew are not told to the policy",
        "a question is what was so when it was noted",
        "_Known.news",
        "len(history) < kept or history[kept - 1] is not self.last",
        "len(history) < kept",
        (f"{PROCESS}::test_history_that_was_taken_back_and_made_anew_arrives_as_it_is",),
    ),
    Mutant(
        "the policy's process goes on from its own answers alone",
        STANDS,
        "PolicyProcess.forget",
        "self._in_step = False",
        "",
        (f"{PROCESS}::test_it_answers_as_if_it_were_asked_here",),
    ),
    Mutant(
        "the policy's process outlives a daemon that is killed",
        "nothing is left behind",
        "policy_main.main",
        "_thread.start_new_thread(_end_with, (questions.fileno(),))",
        "",
        (f"{PROCESS}::test_it_ends_when_the_daemon_is_killed",),
    ),
    Mutant(
        "what the policy's process has started outlives it",
        "nothing is left behind",
        "_Child.kill",
        "os.killpg(self._process.pid, signal.SIGKILL)",
        "os.kill(self._process.pid, signal.SIGKILL)",
        (f"{PROCESS}::test_what_it_has_started_ends_with_it",),
    ),
    Mutant(
        "what a policy prints gets into its answers",
        "nothing that a policy does hurts the daemon",
        "_streams",
        "os.dup2(2, 1)",
        "",
        (f"{PROCESS}::test_what_it_prints_and_reads_is_no_part_of_what_is_said",),
    ),
    Mutant(
        "a policy that raises takes its process down",
        "nothing that a policy does hurts the daemon",
        "Answering.reply",
        "Exception",
        "OSError",
        (f"{PROCESS}::test_one_that_raises_says_what_and_where_and_lives_on",),
    ),
    Mutant(
        "what was kept beside a memory is given twice",
        "a policy is a function",
        "IndexCache.take",
        "self._kept.pop(id(memory), None)",
        "self._kept.get(id(memory))",
        (f"{REMEMBERED}::test_what_is_beside_a_memory_is_given_once_and_for_the_same_problem",),
    ),
    Mutant(
        "where trials stand is kept beside the memory alone",
        "what a policy remembers is in the journal",
        "Search.take_changes",
        "self._changes[AT + name] = to_builtins(place)",
        "pass",
        (f"{REMEMBERED}::test_nothing_that_is_kept_beside_is_needed",),
    ),
    Mutant(
        "a memory of another version is believed",
        "a memory is believed as a whole or not at all",
        "recall",
        'if memory.values.get("version") != version:\n    return None',
        "",
        (f"{FUNCTIONS}::test_without_the_memory_it_goes_on_from_the_reports",),
    ),
    Mutant(
        "what is forgotten is remembered",
        "what a policy remembers is in the journal",
        "enact._",
        "plan.memory.pop(key, None)",
        "pass",
        (f"{ANSWERS}::test_what_the_policy_forgets_is_not_given_back_to_it",),
    ),
)


SEER_PLUS = "tests/planner/test_seer_plus.py"
CHANCE = "tests/planner/test_chance.py"
SEARCHING = (
    Mutant(
        "a trial that would begin anew is paused",
        "where a trial that is stopped begins anew, none is paused",
        "adapted._carried_on",
        "name in live and live[name].reports < most",
        "name in live and name in waiting",
        ("tests/planner/test_unpaused.py",),
    ),
    Mutant(
        "a trial that would begin anew keeps its GPUs, however poor it is",
        "where a trial that is stopped begins anew, poor ones make room",
        "adapted._carried_on",
        "c.metric is None or c.place > c.best",
        "False",
        ("tests/planner/test_unpaused.py",),
    ),
    Mutant(
        "who has stopped improving keeps its GPU",
        "nobody who has clearly converged holds a GPU that another could use",
        "planner.draft.settled",
        "late <= early",
        "False",
        (f"{SEER_PLUS}::test_who_has_settled_waits_though_nobody_is_better",),
    ),
    Mutant(
        "nothing is learned of what cannot be trained",
        "a configuration of a kind that has failed is hardly tried",
        "planner.chance.learned",
        "not failed or not every_axis",
        "True",
        (f"{CHANCE}::test_what_fails_is_left_out_though_half_of_the_space_does",),
    ),
    Mutant(
        "what was never tried counts as what has failed",
        "a configuration of a kind that was never tried is tried",
        "planner.chance.Chances._hoped",
        "mean + HOPE * shared",
        "mean - HOPE * shared",
        (f"{CHANCE}::test_what_was_never_tried_is_tried",),
    ),
    Mutant(
        "what has failed once is never tried again",
        "what stood in the way may be gone",
        "planner.chance.is_weighed",
        "1 / ANYWAY",
        "0",
        (f"{CHANCE}::test_the_wall_is_tried_now_and_then",),
    ),
    Mutant(
        "whoever has reported can be trained",
        "who has not come as far as those that failed says little",
        "planner.chance.evidence_of",
        "failed or t.reports > came",
        "True",
        (
            f"{CHANCE}::test_only_who_came_further_than_those_that_failed_says_that_it_can_be_trained",
        ),
    ),
    Mutant(
        "a search ends when there are no more configurations",
        "what there is of time and GPUs is used",
        "seer_plus._search",
        "queue.take() or _new(draft) or queue.take_rest()",
        "queue.take() or _new(draft)",
        (
            f"{SEER_PLUS}::test_few_configurations_train_until_the_end_whether_they_have_settled_or_not",
        ),
    ),
    Mutant(
        "the first finalist takes all GPUs at once",
        "finalists are hedged as long as they are close",
        "planner.windows.Windows.finalists",
        "max(1, FINALISTS >> self._part(now_s))",
        "1",
        (f"{SEER_PLUS}::test_in_the_last_window_finalists_are_halved_until_one_is_left",),
    ),
    Mutant(
        "rounds of rented GPUs may take more than the budget",
        "a plan is within its limits",
        "planner.windows.rounds_of",
        "sum(round_.gpu_s for round_ in made) <= limits.budget_gpu_s",
        "True",
        ("tests/planner/test_narrowing.py::test_rounds_fill_the_time_and_keep_to_the_budget",),
    ),
    Mutant(
        "a run draws what the run that it learns from has drawn",
        "what is known is not tried again for nothing",
        "planner.draws.draws",
        'f"{params.seed} after {count}" if count else params.seed',
        "params.seed",
        (
            "tests/test_earlier.py::test_nothing_is_drawn_again_that_an_earlier_run_of_the_same_seed_has_drawn",
        ),
    ),
)
