"""Mistakes in how events are kept and commands are carried out: journal, daemon, conversations, SSH."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

JOURNAL = "tests/shell/test_journal.py"
DAEMON = "tests/shell/test_daemon.py"
CONVERSATION = "tests/shell/test_conversation.py"
TALKS = "tests/shell/test_talks.py"
CONNECTING = "tests/shell/test_ssh_connecting.py"

CARRYING = (
    Mutant(
        "the journal does not wait for the disk",
        "what was committed survives a power cut",
        "seerd/shell/journal.py",
        'connection.execute("PRAGMA synchronous=FULL")',
        'connection.execute("PRAGMA synchronous=OFF")',
        (JOURNAL,),
    ),
    Mutant(
        "each entry of a batch is committed by itself",
        "a batch is committed whole or not at all",
        "seerd/shell/journal.py",
        '                self._connection.execute("BEGIN IMMEDIATE")\n',
        "",
        (f"{JOURNAL}::test_a_batch_is_committed_whole_or_not_at_all",),
    ),
    Mutant(
        "commands are carried out before their events are committed",
        "nothing is done that a crash could forget",
        "seerd/shell/daemon.py",
        "        self._journal.append(entries)\n",
        "        asyncio.get_running_loop().call_later(0.05, self._journal.append, entries)\n",
        (f"{DAEMON}::test_what_could_not_be_committed_is_neither_done_nor_shown",),
    ),
    Mutant(
        "facts are acknowledged before they are committed",
        "no fact of an agent is lost",
        "seerd/shell/daemon.py",
        "            entries.append(entry)\n",
        "            entries.append(entry)\n"
        "            if isinstance(event, AgentFact):\n                self._dispatch.committed(event.instance, event.fact)\n",
        (f"{DAEMON}::test_a_fact_is_acknowledged_once_it_is_in_the_journal",),
    ),
    Mutant(
        "people are told before it is committed",
        "what was shown has happened",
        "seerd/shell/daemon.py",
        "        self._journal.append(entries)\n        self._dispatch",
        "        self._watcher(self.state, self.clock.now(), entries)\n"
        "        self._journal.append(entries)\n        self._dispatch",
        (f"{DAEMON}::test_what_could_not_be_committed_is_neither_done_nor_shown",),
    ),
    Mutant(
        "a daemon that takes up a run does not say what it has found",
        "a killed daemon loses nothing",
        "seerd/shell/daemon.py",
        "            self._queue.put_nowait(\n                RunResumed(\n"
        "                    at=self.clock.now(),\n"
        "                    alive=found.alive,\n"
        "                    ended=found.ended,\n"
        "                    saved=found.saved,\n"
        "                    outline=lacking(self.state.facts),\n"
        "                )\n            )\n",
        "",
        (f"{DAEMON}::test_a_run_is_taken_up_with_what_is_found",),
    ),
    Mutant(
        "launches under way are not named to the provider that takes up a run",
        "a launch happens once",
        "seerd/shell/daemon.py",
        "launches = [c.id for c in self.state.under_way.values() if isinstance(c, Launch)]",
        "launches: list[str] = []",
        (f"{DAEMON}::test_a_launch_under_way_is_named_to_the_provider_and_asked_for_again",),
    ),
    Mutant(
        "only the newest checkpoint is kept in the store",
        "a damaged newest checkpoint falls back to the one before",
        "seerd/shell/daemon.py",
        "[checkpoint.name for checkpoint in self.state.trials[name].checkpoints])",
        "[checkpoint.name for checkpoint in self.state.trials[name].checkpoints[:1]])",
        (f"{DAEMON}::test_the_newest_two_checkpoints_of_a_trial_are_kept",),
    ),
    Mutant(
        "a command that is given twice is carried out twice",
        "a command is carried out once",
        "seerd/shell/dispatch.py",
        "if key in self._tasks and not self._tasks[key].done():",
        "if key in self._tasks and self._tasks[key].cancelled():",
        (f"{DAEMON}::test_what_is_given_twice_is_carried_out_once",),
    ),
    Mutant(
        "leases are not renewed before trials are started",
        "what is asked for does not find a lease that is about to end",
        "seerd/shell/dispatch.py",
        "            self._talks.renew()\n",
        "            pass\n",
        (f"{DAEMON}::test_an_agent_that_is_to_start_trials_has_a_fresh_lease",),
    ),
    Mutant(
        "a fact that an agent sends again is handed on again",
        "a fact is handed on once",
        "seerd/shell/agents.py",
        "            if message.seq > self._seen:\n",
        "            if message.seq > 0:\n",
        (CONVERSATION,),
    ),
    Mutant(
        "after a lost connection the conversation begins anew",
        "an agent sends what was not heard, and only that",
        "seerd/shell/agents.py",
        "writer.write(encode(Hello(VERSION, self._run, self._seen)))",
        "writer.write(encode(Hello(VERSION, self._run, 0)))",
        (CONVERSATION,),
    ),
    Mutant(
        "orders whose outcome is unknown are not said again on a new connection",
        "an order reaches its agent, however often the connection breaks",
        "seerd/shell/agents.py",
        "            await self.speak(lambda: self._ears.pending(self.instance))\n",
        "",
        (CONVERSATION,),
    ),
    Mutant(
        "a machine that was rebooted is taken for the one that it was",
        "an instance is its boot, not its address",
        "seerd/shell/agents.py",
        "if self.boot and welcome.boot != self.boot:",
        "if self.boot and not welcome.boot:",
        (f"{TALKS}::test_a_machine_that_was_rebooted_is_lost_at_once",),
    ),
    Mutant(
        "what is said later may arrive earlier",
        "orders reach an agent in their order",
        "seerd/shell/agents.py",
        "        async with self._speaking:\n",
        "        async with asyncio.Lock():\n",
        (f"{TALKS}::test_what_is_ordered_later_is_said_later_however_long_signing_takes",),
    ),
    Mutant(
        "any host key is accepted",
        "nobody is trusted on first use",
        "seerd/shell/ssh/connecting.py",
        'options["known_hosts"] = ([asyncssh.import_public_key(text) for text in machine.host_keys], [], [])',
        'options["known_hosts"] = None',
        (f"{CONNECTING}::test_a_machine_with_another_host_key_than_it_was_launched_with_gets_nothing",),
    ),
    Mutant(
        "a host key that is not known is accepted when it is shown",
        "nobody is trusted on first use",
        "seerd/shell/ssh/connecting.py",
        "        self.shown = key\n        return False",
        "        self.shown = key\n        return True",
        (f"{CONNECTING}::test_a_machine_with_another_host_key_than_it_was_launched_with_gets_nothing",),
    ),
    Mutant(
        "a stop becomes a stop without a grace period",
        "a trial that moves may save first",
        "seerd/shell/translate.py",
        "return Stop(command.id, command.trial, command.attempt, command.checkpoint, command.grace_s)",
        "return Stop(command.id, command.trial, command.attempt, command.checkpoint, 0.0)",
        ("tests/shell/test_translate.py",),
    ),
    Mutant(
        "a machine names the files that its logs become",
        "what a machine says becomes no path",
        "seerd/shell/collecting.py",
        "            if NAME.fullmatch(name):",
        "            if name:",
        ("tests/shell/test_collecting.py::test_nothing_is_written_outside_and_nothing_ends_it",),
    ),
)
