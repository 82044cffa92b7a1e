"""Mistakes that show only when several things go wrong at once: those that the fault world has
found, and some that it alone would.

The one rule: one run of the fault world catches each of them, so that it is told in a second.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LIMITS = "tests/core/test_limits.py"
WORLD = "tests/faults/test_fault_world.py"
SEED = f"{WORLD}::test_a_seed_that_once_failed_is_kept"
STRAINED = f"{WORLD}::test_a_seed_with_strains_is_kept"
DAMAGED = f"{WORLD}::test_a_seed_with_a_damaged_journal_is_kept"

ENDURING = (
    Mutant(
        "a launch that is giving back what it has is cancelled again",
        "a run comes to its end, whatever goes wrong",
        "Ec2Provider._give_up",
        "if not flight.undoing:\n    task.cancel()",
        "task.cancel()",
        (f"{WORLD}::test_a_launch_that_is_called_off_while_it_is_given_back_is_still_given_back",),
    ),
    Mutant(
        "a launch that is taken up without credentials is given up at once",
        "the ledger is the cloud's own account",
        "Flight._taken_up",
        "self._unclear = True",
        "",
        (
            f"{WORLD}::test_a_launch_that_is_taken_up_without_credentials_is_looked_for_until_there_are_some",
        ),
    ),
    Mutant(
        "a launch of unknown outcome is not looked for without credentials",
        "the ledger is the cloud's own account",
        "Ec2Fleet.hunt",
        "error.kind not in AGAIN and not mended",
        "error.kind not in AGAIN",
        (
            f"{WORLD}::test_a_launch_of_unknown_outcome_is_looked_for_once_there_are_credentials_again",
        ),
    ),
    Mutant(
        "a run can be stopped before its first event",
        "every journal can be replayed",
        "Daemon.begin",
        "self._queue.put(event)\nawait self._at_work(self._run)",
        "async def work() -> None:\n    self._queue.put(event)\n    await "
        "self._run()\n\nawait self._at_work(work)",
        (
            f"{WORLD}::test_a_stop_before_the_first_event_is_one_of_a_run_that_has_begun",
            f"{SEED}[623]",
        ),
    ),
    Mutant(
        "an instance that was never ready counts as lost when a run is taken up",
        "the ledger is the cloud's own account",
        "record._",
        "i.ready_at is not None",
        "True",
        (f"{LIMITS}::test_what_is_being_ended_and_was_never_ready_is_ended_by_nobody_else",),
    ),
    Mutant(
        "a launch that is repeated without its ClientToken launches again",
        "a launch happens once",
        "run_instances",
        '{"ClientToken": client_token(settings.run, token, candidate)}',
        "{}",
        (f"{SEED}[38]", f"{SEED}[3898]"),
    ),
    Mutant(
        "an instance whose agent cannot be reached counts as lost while it runs on",
        "no trial runs twice at once",
        "Losses._lose",
        "span = await self._environment.provider.terminate(instance, spare_s)",
        "pass",
        (f"{SEED}[12]", f"{SEED}[1110]"),
    ),
    Mutant(
        "an instance that is no good is told of and kept",
        "the ledger is the cloud's own account",
        "Dispatch._launch",
        "until = (await self._end(launched.instance, command.id)).until",
        "pass",
        (f"{SEED}[62]",),
    ),
    Mutant(
        "the best model is asked for once",
        "the model that is handed back is the best",
        "Dispatch._fetch",
        "if error.damaged or self._clock.now() > end:\n    raise",
        "raise",
        (f"{SEED}[318]",),
    ),
    Mutant(
        "a launch that is taken up does not look for what it has brought",
        "the ledger is the cloud's own account",
        "Flight._taken_up",
        "entries = await self._context.fleet.find_launched(self._token)",
        "entries: list[RegisterEntry] = []",
        (f"{SEED}[318]",),
    ),
    Mutant(
        "an instance that is launched is not told how long it may cost alone",
        "the budget is kept, with what is committed",
        "Flight._ask_at",
        "Boot(\n"
        "    settings.run,\n"
        "    settings.hard_end,\n"
        "    host.private,\n"
        "    host.public,\n"
        "    client.public,\n"
        "    root=settings.root,\n"
        "    orphan_timeout_s=self._orphan_timeout_s,\n"
        "    python=settings.python,\n"
        '    scratch=settings.scratch or "",\n'
        ")",
        "Boot(\n"
        "    settings.run,\n"
        "    settings.hard_end,\n"
        "    host.private,\n"
        "    host.public,\n"
        "    client.public,\n"
        "    root=settings.root,\n"
        ")",
        (f"{WORLD}::test_instances_that_nobody_has_brought_an_agent_keep_the_budget",),
    ),
    Mutant(
        "an instance is told how long it may cost alone without itself",
        "the budget is kept, with what is committed",
        "asked_together",
        "orphan_timeout_s(ahead)",
        "orphan_timeout_s(state)",
        (f"{STRAINED}[44100070]",),
    ),
    Mutant(
        "an answer of the policy that is no JSON is taken",
        "every journal can be replayed",
        "Dispatch._ask_policy",
        "is_kept(answered)",
        "True",
        (f"{SEED}[173]",),
    ),
    Mutant(
        "trials together may get more GPUs than there may be",
        "nonsense of a policy is never carried out",
        "_too_many",
        "together > most",
        "together > 1000 * most",
        (f"{SEED}[20]",),
    ),
    Mutant(
        "at a resume newer facts overtake what agents had told",
        "what agents know to be committed is in the journal, in order, once",
        "Daemon._take_up",
        "self._queue.is_bounded = True",
        "self._queue.is_bounded = True\nawait asyncio.sleep(2)",
        (f"{STRAINED}[31000056]",),
    ),
    Mutant(
        "a new agent has a whole lease before the daemon has spoken to it",
        "the budget is kept, with what is committed",
        "Dispatch.open",
        "self._environment.provider.open(lambda: self._core.lease()[0])",
        "self._environment.provider.open()",
        (f"{STRAINED}[30044]",),
    ),
    Mutant(
        "events that are missing are not noticed when a run is taken up",
        "the ledger is the cloud's own account",
        "Daemon._gap",
        "gap(self.state, acked, strays, backlog, self._journal.lost_until)",
        "None",
        (f"{DAMAGED}[52000075]", f"{DAMAGED}[52000229]"),
    ),
    Mutant(
        "instances that the journal lacks are ended without a word",
        "the ledger is the cloud's own account",
        "Daemon._take_up",
        "lacks(self.state, loss.instance, loss.launch)",
        "False",
        (f"{DAMAGED}[52000150]", f"{DAMAGED}[52000229]"),
    ),
    Mutant(
        "instances that the journal lacks are not charged",
        "the ledger is the cloud's own account",
        "record._",
        "add_lost(state, event.lost, event.strays)",
        "add_lost(state, event.lost, {})",
        (f"{DAMAGED}[52000229]",),
    ),
    Mutant(
        "a launch that was under way before events were lost goes on, whatever it has begun",
        "no trial runs twice at once",
        "Daemon._take_up",
        "await self._dispatch.call_off(launches)",
        "pass",
        (f"{DAMAGED}[52000271]",),
    ),
    Mutant(
        "agents' facts from while launches are called off come before older ones",
        "facts are in the journal in order, once",
        "Daemon._take_up",
        "backlog += [_happened_by(let_go_s, event) for event in self._queue.take()]",
        "",
        (f"{DAMAGED}[53000229]",),
    ),
    Mutant(
        "an end before its beginning counts as the end of a gap",
        "the ledger is the cloud's own account",
        "Ledger.end",
        "at_s if at_s >= charge.since_s else max(now_s, charge.since_s)",
        "max(at_s, charge.since_s)",
        ("tests/core/test_ledger.py",),
    ),
    Mutant(
        "a damaged last line of an agent's journal counts as torn",
        "facts are in the journal in order, once",
        "agent.journal._read",
        'return messages, good, f"{path}, line {number}: {error}"',
        'return messages, good, f"{path}, line {number}: {error}" if number < len(lines) else ""',
        (f"{DAMAGED}[52000592]", "tests/agent/test_agent_journal.py"),
    ),
)
