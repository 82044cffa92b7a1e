"""Mistakes in how events are kept and commands are carried out: journal, daemon, conversations,
SSH.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

JOURNAL = "tests/shell/test_journal.py"
DAEMON = "tests/shell/test_daemon.py"
CONVERSATION = "tests/shell/test_conversation.py"
MOMENT = "test_orders_carry_the_moment_from_which_their_seconds_count_in_the_agents_time"
SESSIONS = "tests/shell/test_sessions.py"
CONNECTING = "tests/shell/test_ssh_connecting.py"

CARRYING = (
    Mutant(
        "the journal does not wait for the disk",
        "what was committed survives a power cut",
        "_connect",
        '"PRAGMA synchronous=FULL"',
        '"PRAGMA synchronous=OFF"',
        (JOURNAL,),
    ),
    Mutant(
        "each entry of a batch is committed by itself",
        "a batch is committed whole or not at all",
        "Journal.append",
        'self._connection.execute("BEGIN IMMEDIATE")',
        "",
        (f"{JOURNAL}::test_a_batch_is_committed_whole_or_not_at_all",),
    ),
    Mutant(
        "commands are carried out before their events are committed",
        "nothing is done that a crash could forget",
        "Daemon._handle",
        "self._journal.append(entries)",
        "asyncio.get_running_loop().call_later(0.05, self._journal.append, entries)",
        (f"{DAEMON}::test_what_could_not_be_committed_is_neither_done_nor_shown",),
    ),
    Mutant(
        "facts are acknowledged before they are committed",
        "no fact of an agent is lost",
        "Conversation._hear",
        "self._core.emit(event)",
        "self.say(Ack(fact.seq))\nself._core.emit(event)",
        (
            f"{DAEMON}::test_a_fact_is_acknowledged_once_it_is_in_the_journal",
            f"{CONVERSATION}::test_what_was_heard_is_not_acknowledged_before_it_is_kept",
        ),
    ),
    Mutant(
        "people are told before it is committed",
        "what was shown has happened",
        "Daemon._handle",
        "self._journal.append(entries)",
        "self._watcher(self.state, self.clock.now(), entries)\nself._journal.append(entries)",
        (f"{DAEMON}::test_what_could_not_be_committed_is_neither_done_nor_shown",),
    ),
    Mutant(
        "what an agent here had noted is heard only from an agent that comes up",
        "no report is missing after a resume",
        "Dispatch._reattach",
        "self._losses.hear(instance)",
        "",
        ("tests/shell/test_reattach.py",),
    ),
    Mutant(
        "what an agent here had noted is not heard when it is given back",
        "no report is missing after a resume",
        "Losses.tell",
        "self.hear(loss.instance)",
        "",
        ("tests/shell/test_reattach.py",),
    ),
    Mutant(
        "a daemon that takes up a run does not say what it has found",
        "a killed daemon loses nothing",
        "Daemon._take_up",
        "self._queue.put_nowait(\n"
        "    RunResumed(\n"
        "        at=self.clock.now(), alive=found.alive, ended=found.ended, "
        "saved=found.saved, outline=lacking(self.state.facts)\n"
        "    )\n"
        ")",
        "",
        (f"{DAEMON}::test_a_run_is_taken_up_with_what_is_found",),
    ),
    Mutant(
        "launches under way are not named to the provider that takes up a run",
        "a launch happens once",
        "Daemon._take_up",
        "launches = [c.id for c in self.state.under_way.values() if isinstance(c, Launch)]",
        "launches: list[str] = []",
        (f"{DAEMON}::test_a_launch_under_way_is_named_to_the_provider_and_asked_for_again",),
    ),
    Mutant(
        "only the newest checkpoint is kept in the store",
        "a damaged newest checkpoint falls back to the one before",
        "Daemon._keep_checkpoints",
        "self.state.trials[name].checkpoints",
        "self.state.trials[name].checkpoints[:1]",
        (f"{DAEMON}::test_the_newest_two_checkpoints_of_a_trial_are_kept",),
    ),
    Mutant(
        "a command that is given twice is carried out twice",
        "a command is carried out once",
        "Dispatch._spawn",
        "not self._under_way[key].done()",
        "self._under_way[key].cancelled()",
        (f"{DAEMON}::test_what_is_given_twice_is_carried_out_once",),
    ),
    Mutant(
        "leases are not renewed before trials are started",
        "what is asked for does not find a lease that is about to end",
        "Dispatch.carry_out",
        "self._sessions.renew()",
        "pass",
        (f"{DAEMON}::test_an_agent_that_is_to_start_trials_has_a_fresh_lease",),
    ),
    Mutant(
        "a run that is resumed goes by the wall clock",
        "setting the coordinator's clock changes no limit and no bill",
        "clock.origin_of",
        "round(began_at + float(since_boot), 6) if known else None",
        "None",
        ("tests/shell/test_clock.py",),
    ),
    Mutant(
        "a run goes by the wall clock while it goes on",
        "setting the coordinator's clock changes no limit and no bill",
        "RunClock.now",
        "wall() - self.origin",
        "time.time() - self.origin",
        ("tests/shell/test_clock.py",),
    ),
    Mutant(
        "after a boot the run's last event may be later than now",
        "time that may have passed has passed",
        "_take_up_clock",
        "journal.origin -= behind_s",
        "pass",
        ("tests/shell/test_journal.py",),
    ),
    Mutant(
        "orders carry no moment",
        "an order that is late gives no new time",
        "Conversation.say",
        "self._dated(order)",
        "order",
        (f"{CONVERSATION}::{MOMENT}",),
    ),
    Mutant(
        "an order to stop counts from when it is said",
        "an order that is said again gives no new time",
        "Conversation._dated",
        "self._core.asked_s(order.trial) if isinstance(order, Stop) else clock.now()",
        "clock.now()",
        (f"{CONVERSATION}::{MOMENT}",),
    ),
    Mutant(
        "a fact that an agent sends again is handed on again",
        "a fact is handed on once",
        "Conversation._listen",
        "message.seq > self._seen",
        "message.seq > 0",
        (CONVERSATION,),
    ),
    Mutant(
        "after a lost connection the conversation begins anew",
        "an agent sends what was not heard, and only that",
        "Conversation._talk",
        "Hello(VERSION, self._environment.run, self._seen)",
        "Hello(VERSION, self._environment.run, 0)",
        (CONVERSATION,),
    ),
    Mutant(
        "orders of unknown outcome are not said again on a new connection",
        "an order reaches its agent, however often the connection breaks",
        "Conversation._talk",
        "await self._say_again()",
        "",
        (CONVERSATION,),
    ),
    Mutant(
        "an agent that has lost what it had told goes on",
        "no fact of an agent is lost",
        "Conversation._welcome",
        "welcome.last < self._seen",
        "False",
        ("tests/shell/test_conversation.py::test_an_agent_that_has_lost_what_it_had_told_is_lost",),
    ),
    Mutant(
        "a machine that was rebooted is taken for the one that it was",
        "an instance is its boot, not its address",
        "Conversation._welcome",
        "welcome.boot != self.boot",
        "not welcome.boot",
        (f"{SESSIONS}::test_a_machine_that_was_rebooted_is_lost_at_once",),
    ),
    Mutant(
        "what is said later may arrive earlier",
        "orders reach an agent in their order",
        "Conversation._speak",
        "self._speaking",
        "asyncio.Lock()",
        (f"{SESSIONS}::test_what_is_ordered_later_is_said_later_however_long_signing_takes",),
    ),
    Mutant(
        "a stop waits until other trials can be started",
        "a trial ends in time, whatever else waits",
        "Conversation.order",
        "not self._starting[command.trial]",
        "not self._starting.total()",
        (f"{SESSIONS}::test_a_stop_waits_for_no_other_trial_s_urls",),
    ),
    Mutant(
        "any host key is accepted",
        "nobody is trusted on first use",
        "connecting._identity",
        "([asyncssh.import_public_key(text) for text in machine.host_keys], [], [])",
        "None",
        (
            f"{CONNECTING}::test_a_machine_with_another_host_key_than_it_was_launched_with_gets_nothing",
        ),
    ),
    Mutant(
        "a host key that is not known is accepted when it is shown",
        "nobody is trusted on first use",
        "_Witness.validate_host_public_key",
        "return False",
        "return True",
        (
            f"{CONNECTING}::test_a_machine_with_another_host_key_than_it_was_launched_with_gets_nothing",
        ),
    ),
    Mutant(
        "a stop becomes a stop without a grace period",
        "a trial that moves may save first",
        "order_of",
        "command.grace_s",
        "0.0",
        ("tests/shell/test_translate.py",),
    ),
    Mutant(
        "a machine names the files that its logs become",
        "what a machine says becomes no path",
        "Collector._keep",
        "NAME.fullmatch(name)",
        "name",
        ("tests/shell/test_collecting.py::test_nothing_is_written_outside_and_nothing_ends_it",),
    ),
)
