"""Mistakes beside the trials: orders, facts, the lease, notices, messages."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SERVE = "tests/agent/test_agent_serve.py"
JOURNAL = "tests/agent/test_agent_journal.py"
TRANSFER = "tests/agent/test_agent_transfer.py"

OBEYING = (
    Mutant(
        "the lease never ends",
        "an agent without a daemon lets go",
        "Lease.ended",
        "now >= self.ends_at",
        "False",
        ("tests/agent/test_agent_lease.py",),
    ),
    Mutant(
        "a renewal can only prolong the lease",
        "the newest word on the lease counts",
        "Lease.renew",
        "now + told.for_s",
        "max(self.ends_at, now + told.for_s)",
        ("tests/agent/test_agent_lease.py",),
    ),
    Mutant(
        "a daemon of another run is obeyed",
        "only the run's own daemon renews the lease",
        "Talk._checked",
        "message.run != self._here.run",
        "not message.run",
        (f"{SERVE}::test_a_daemon_of_another_run_or_version_is_told_so",),
    ),
    Mutant(
        "a connection that was replaced is still obeyed",
        "only the run's own daemon renews the lease",
        "Agent._obey",
        "if self._talk is not talk:\n    return",
        "",
        ("tests/agent/test_agent_lease.py::test_only_the_newest_connection_renews_it",),
    ),
    Mutant(
        "an order that is said twice is carried out twice",
        "an order is carried out once",
        "AgentJournal.take",
        "if order.id in self._orders:\n    return False",
        "",
        (f"{JOURNAL}::test_an_order_is_new_once",),
    ),
    Mutant(
        "the agent's journal does not wait for the disk",
        "what was told survives a power cut",
        "AgentJournal._write",
        "sync and data",
        "sync and not data",
        (JOURNAL,),
    ),
    Mutant(
        "damage in the middle of the agent's journal is passed over",
        "no fact of an agent is lost",
        "journal._read",
        "number == len(lines)",
        "number",
        (f"{JOURNAL}::test_damage_before_the_last_line_is_an_error_and_not_a_loss",),
    ),
    Mutant(
        "GPUs that an attempt holds are given to the next",
        "no GPU is given to two trials",
        "Orders._why_not",
        "if attempt.gpus & set(order.gpus):\n"
        '    return f"GPUs {sorted(attempt.gpus & set(order.gpus))} are held by {attempt.key}"',
        "if attempt.gpus < set(order.gpus):\n"
        '    return f"GPUs {sorted(attempt.gpus & set(order.gpus))} are held by {attempt.key}"',
        (f"{SERVE}::test_gpus_are_given_once",),
    ),
    Mutant(
        "a stop kills at once",
        "a trial that moves may save first",
        "Orders._stop",
        "order.grace_s if order.checkpoint else 0.0",
        "0.0",
        (
            f"{SERVE}::test_a_trial_that_is_asked_saves_and_what_it_saved_is_stored_before_its_end_is_told",
        ),
    ),
    Mutant(
        "the grace period never ends",
        "the end is in time, whoever answers",
        "LocalAttempt.stop",
        "SUMMARY_S if self._is_crashing else grace_s",
        "SUMMARY_S if self._is_crashing else 999 * grace_s",
        (f"{SERVE}::test_a_trial_that_ignores_being_asked_is_killed_after_the_grace_period",),
    ),
    Mutant(
        "the end is told while processes are left",
        "no GPU is given to two trials",
        "LocalAttempt._until_gone",
        "await self._kill(process)",
        "",
        (
            f"{SERVE}::test_every_process_of_an_attempt_is_gone_when_its_end_is_told",
            f"{SERVE}::test_what_a_finished_trial_leaves_behind_is_ended",
        ),
    ),
    Mutant(
        "the end is told before the last checkpoint is stored",
        "a trial that moves goes on from where it was",
        "LocalAttempt._until_gone",
        "await self._store_last()",
        "",
        (
            "tests/agent/test_agent_s3_serve.py::test_reports_are_told_while_a_checkpoint_is_on_its_way_and_the_end_only_after_it",
        ),
    ),
    Mutant(
        "processes are killed only when all have been found",
        "no GPU is given to two trials",
        "kill",
        "find()",
        "list(find())",
        ("tests/agent/test_agent_host.py",),
    ),
    Mutant(
        "whose descendants processes are is looked up when those are dead",
        "no GPU is given to two trials",
        "each_member",
        "chain(marked, family)",
        "(pid for find in (lambda: marked, lambda: _descendants(launcher)) for pid in find())",
        ("tests/agent/test_agent_host.py",),
    ),
    Mutant(
        "an agent that lets go leaves the machine on",
        "no instance is left behind",
        "Agent._keep_looking",
        "self._forsaken = True",
        "",
        (
            "tests/agent/test_agent_power.py::test_a_lease_that_ends_ends_the_machine_after_trials_have_left",
        ),
    ),
    Mutant(
        "notices of an interruption are not seen",
        "a notice is acted upon",
        "_interruption",
        'Notice("interruption", _moment(said.get("time")))',
        "None",
        ("tests/agent/test_agent_spot.py::test_what_the_service_says_becomes_notices",),
    ),
    Mutant(
        "a message may lack any of its fields",
        "nothing is let through that is not exactly a message",
        "wire._made",
        "_required(cls) <= body.keys() <= hints.keys()",
        "body.keys() <= hints.keys()",
        ("tests/agent/test_agent_protocol.py",),
    ),
    Mutant(
        "a text passes as a number",
        "nothing is let through that is not exactly a message",
        "wire._scalar",
        "hint is str and isinstance(value, str)",
        "hint in (int, str, bool) and isinstance(value, str)",
        ("tests/agent/test_agent_protocol.py",),
    ),
    Mutant(
        "a name in a message stands twice, and the last one counts",
        "nothing is let through that is not exactly a message",
        "_object",
        "len(body) != len(pairs)",
        "len(body) > len(pairs)",
        ("tests/agent/test_agent_protocol.py",),
    ),
    Mutant(
        "a metric that is not finite is told as it is",
        "the model that is handed back is the best",
        "_finite",
        "value if math.isfinite(value) else None",
        "value",
        ("tests/agent/test_agent_trial_output.py",),
    ),
    Mutant(
        "a report that stands twice is told twice",
        "progress is never counted twice",
        "TrialOutput._once",
        "if (kind, key) in self._told:\n    return None",
        "",
        (
            "tests/agent/test_agent_trial_output.py::test_nothing_is_told_twice_also_not_by_the_next_agent",
        ),
    ),
    Mutant(
        "the end of an attempt waits as reports do",
        "facts are told in order and none is held up",
        "Agent._tell",
        "wait_s <= 0 or not all(map(_is_report, makers))",
        "wait_s <= 0",
        ("tests/agent/test_agent_reports.py",),
    ),
    Mutant(
        "a checkpoint's name may lead out of its folder",
        "nothing that a trial writes names a path outside",
        "is_safe",
        "NAME.fullmatch(name) is not None",
        "bool(name)",
        (f"{TRANSFER}::test_names_that_may_not",),
    ),
    Mutant(
        "what died with its agent is thought to have run until the next one looks",
        "every billed second is accounted for, once",
        "recover",
        "time.time() if ran[key] else _last_sign(here, *key)",
        "time.time()",
        (
            "tests/agent/test_agent_serve.py::test_what_died_with_its_agent_ended_then_and_not_when_the_next_one_looks",
        ),
    ),
)
