"""The promises of the agent to its daemon, checked on a real one with real trials."""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest

from bench.testbed.agents import RUN
from seerd.agent.gpu_leases import LeaseFolder, folder_path
from seerd.agent.protocol import (
    MAX_LINE,
    VERSION,
    Ack,
    Checkpointed,
    Hello,
    Prepare,
    Prepared,
    Refused,
    Renew,
    Reported,
    Shutdown,
    Start,
    Started,
    Stop,
    Training,
    Welcome,
)
from seerd.agent.serve import PULSE_S

TELLS = """
import json, os, time
folder = os.environ["SEERD_DIR"]
about = json.load(open(os.path.join(folder, "trial.json")))
out = open(os.path.join(folder, "out.jsonl"), "a")
def tell(**line):
    out.write(json.dumps({"at": time.time(), **line}) + "\\n")
    out.flush()
def stopped():
    return os.path.exists(os.path.join(folder, "stop"))
def save(name, epoch):
    import hashlib
    data = name.encode() * 100
    place = os.path.join(about["checkpoints"], name)
    open(place + ".pt", "wb").write(data)
    manifest = {"version": 1, "name": name, "epoch": epoch, "metrics": {"accuracy": epoch / 10},
                "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    open(place + ".json", "w").write(json.dumps(manifest))
    tell(kind="checkpoint", name=name, save_s=0.01)
"""
REPORTS = (
    TELLS + 'tell(kind="training", epoch=0)\ntell(kind="report", epoch=1, metrics={"accuracy": '
    "0.5}, unit_s=0.1)\n"
)
WAITS = REPORTS + "while True: time.sleep(60)\n"
SAVES_WHEN_ASKED = REPORTS + 'while not stopped(): time.sleep(0.01)\nsave("000001-00000010", 1)\n'
IGNORES = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
HAS_CHILDREN = (
    "import subprocess, sys\n"
    "for session in (False, True):\n"
    "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    "start_new_session=session)\n" + WAITS
)


def kinds(facts: list[Any]) -> list[str]:
    return [fact.kind for fact in facts]


KNOWS_ITS_END = (
    REPORTS
    + """
def ends_at():
    try:
        return json.load(open(os.path.join(folder, "horizon.json")))["ends_at"]
    except FileNotFoundError:
        return 0.0
told = []
while len(told) < 2:
    if ends_at() not in (0.0, *told):
        told.append(ends_at())
        tell(kind="report", epoch=1 + len(told), metrics={"accuracy": told[-1]}, unit_s=0.1)
    time.sleep(0.01)
"""
)


def test_a_trial_is_told_when_training_ends_before_it_starts_and_whenever_that_changes(rig):
    client = rig.ready(rig.job(KNOWS_ITS_END))
    began = time.time()
    client.say(Renew(60.0, 20.0, ends_in_s=100.0))
    client.start()
    first = client.until(Reported, lambda fact: fact.epoch == 2).metrics["accuracy"]
    client.say(Renew(60.0, 20.0, ends_in_s=5000.0))
    second = client.until(Reported, lambda fact: fact.epoch == 3).metrics["accuracy"]
    assert began + 100.0 <= first <= time.time() + 100.0
    assert began + 5000.0 <= second <= time.time() + 5000.0
    assert client.exit_of("t1").cause == "finished"


def test_the_last_checkpoint_waits_for_a_store_that_cannot_be_written_just_now(rig):
    rig.store.write_text("not mounted")
    client = rig.ready(rig.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    client.stop(grace_s=60.0)
    log = rig.folder / "agent.log"
    while "have to wait" not in log.read_text():
        time.sleep(0.01)
    rig.store.unlink()
    assert client.exit_of().cause == "asked"
    assert client.until(Checkpointed).epoch == 1
    assert (rig.store / "t1" / "000001-00000010.json").is_file()


def test_an_attempt_is_told_from_start_to_end_in_order_and_numbered_from_one(rig):
    client = rig.ready(rig.job(REPORTS + 'save("000001-00000010", 1)'))
    client.start()
    end = client.exit_of()
    assert kinds(client.facts) == [
        "prepared",
        "started",
        "training",
        "reported",
        "checkpointed",
        "exited",
    ]
    assert [fact.seq for fact in client.facts] == [1, 2, 3, 4, 5, 6]
    assert (end.cause, end.code, end.tail) == ("finished", 0, [])
    assert client.until(Reported).metrics == {"accuracy": 0.5}
    stored = client.until(Checkpointed)
    assert (rig.store / "t1" / f"{stored.name}.pt").stat().st_size == stored.size
    assert stored.metrics == {"accuracy": 0.1}


def test_a_trial_sees_what_the_training_side_documents(rig):
    client = rig.ready(
        rig.job(
            TELLS + 'tell(kind="training", epoch=0)\nprint(json.dumps([about, dict(os.environ)]))'
        )
    )
    client.start(gpus=(2, 3))
    client.exit_of()
    about, env = json.loads((rig.attempt() / "logs" / "launcher.log").read_text())
    assert (about["trial"], about["attempt"], about["config"], about["gpus"]) == (
        "t1",
        1,
        {"lr": 0.1},
        2,
    )
    assert env["SEERD_ATTEMPT"] == f"{about['run']}/t1/1"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["OMP_NUM_THREADS"] == "1"


def test_a_trial_imports_the_training_side_out_of_the_zip(rig):
    client = rig.ready(rig.job("import seerd\nprint(seerd.__file__)"))
    client.start()
    assert client.exit_of().cause == "finished"
    assert (
        str(rig.folder / "lib" / "seerd") in (rig.attempt() / "logs" / "launcher.log").read_text()
    )


def test_facts_behind_the_last_committed_one_are_sent_again_on_every_connection(rig):
    client = rig.ready(rig.job(REPORTS))
    client.start()
    client.exit_of()
    first = client.facts
    client.close()
    again = rig.connect(seen=2)
    again.exit_of()
    assert again.facts == first[2:]


def test_acknowledged_facts_can_still_be_had_by_a_daemon_that_lost_them(rig):
    client = rig.ready(rig.job(REPORTS))
    client.start()
    client.exit_of()
    client.say(Ack(4))
    again = rig.connect(seen=0)
    again.exit_of()
    assert again.facts == client.facts


def test_what_the_daemon_does_not_know_is_ended_first(rig):
    client = rig.ready(rig.job(WAITS))
    client.start()
    client.start("t2", gpus=(1,))
    for trial in ("t1", "t2"):
        client.until(Reported, lambda fact, trial=trial: fact.trial == trial)
    client.say(Ack(4))
    again = rig.client()
    again.say(Hello(VERSION, RUN, 0, holds=["t1/1"]))
    welcome = again.read()
    assert (welcome.acked, welcome.ended, welcome.attempts) == (4, ["t2/1"], ["t1/1"])
    assert again.exit_of("t2").cause == "asked"
    again.stop()
    assert again.exit_of("t1").cause == "asked"


def test_a_newer_connection_replaces_the_older(rig):
    client = rig.ready(rig.job(WAITS))
    client.start()
    client.until(Reported)
    newer = rig.connect(seen=client.facts[-1].seq)
    assert client.read() is None
    newer.stop()
    assert newer.exit_of().cause == "asked"


@pytest.mark.parametrize(
    ("hello", "why"), [({"run": "other"}, "not of other"), ({"version": VERSION + 1}, "version")]
)
def test_a_daemon_of_another_run_or_version_is_told_so(rig, hello, why):
    rig.launch()
    client = rig.client()
    answer = client.hello(**hello)
    assert isinstance(answer, Refused)
    assert answer.seq == 0
    assert why in answer.why
    assert client.read() is None
    assert isinstance(rig.client().hello(), Welcome)


@pytest.mark.parametrize(
    "junk", [b"\n", b"\xff\xfe\n", b"[1]\n", b'{"kind":"welcome"}\n', b"x" * (MAX_LINE + 9) + b"\n"]
)
def test_junk_ends_the_connection_and_nothing_else(rig, junk):
    client = rig.ready(rig.job(WAITS))
    client.start()
    client.until(Started)
    broken = rig.connect()
    broken.send(junk)
    assert {fact.kind for fact in broken.rest()} <= {"prepared", "started", "training", "reported"}
    assert rig.client().hello().attempts == ["t1/1"]


def test_a_look_whether_an_agent_is_there_is_no_news(rig):
    rig.launch()
    rig.client().close()
    assert isinstance(rig.client().hello(), Welcome)
    assert (rig.folder / "agent.log").read_text() == ""


def test_an_order_said_twice_is_carried_out_once_also_by_the_next_agent(rig):
    client = rig.ready(rig.job(REPORTS))
    client.start()
    client.start()
    client.exit_of()
    rig.lose_agent()
    rig.launch()
    again = rig.connect()
    again.start()
    again.start("t2")
    again.exit_of("t2")
    assert [fact.trial for fact in again.facts if isinstance(fact, Started)] == ["t1", "t2"]


def test_gpus_are_given_once(rig):
    client = rig.ready(rig.job(WAITS))
    client.start("t1", gpus=(0, 1))
    client.start("t2", gpus=(1, 2))
    refusal = client.until(Refused)
    assert refusal.why == "GPUs [1] are held by t1/1"
    client.stop("t1")
    client.exit_of("t1")
    client.start("t3", gpus=(1, 2))
    assert client.until(Started, lambda fact: fact.trial == "t3")


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"trial": "../t1"}, "not allowed"),
        ({"trial": ".hidden"}, "not allowed"),
        ({"checkpoints": ("a/b",)}, "not allowed"),
        ({"gpus": (4,)}, "not among the 4"),
        ({"gpus": ()}, "not among the 4"),
    ],
)
def test_a_start_that_cannot_be_is_refused(rig, order, why):
    client = rig.ready(rig.job(REPORTS))
    client.start(**order)
    assert why in client.until(Refused).why


def test_a_start_without_preparation_or_without_a_program_is_refused(rig):
    rig.launch()
    client = rig.connect()
    client.start("t1")
    assert "not prepared" in client.until(Refused).why
    client.say(Prepare("p", rig.job(python="no-such-python")))
    client.until(Prepared)
    client.start("t2")
    missing = client.until(Refused, lambda fact: "t2" in fact.id)
    assert "no-such-python" in missing.why


def test_a_trial_that_is_asked_saves_and_what_it_saved_is_stored_before_its_end_is_told(rig):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    client.stop(grace_s=20)
    assert client.exit_of().cause == "asked"
    assert client.facts[-1].code == 0
    assert kinds(client.facts)[-2:] == ["checkpointed", "exited"]


def test_every_process_of_an_attempt_is_gone_when_its_end_is_told(rig):
    client = rig.ready(rig.job(HAS_CHILDREN))
    client.start()
    client.until(Reported)
    assert len(rig.processes_of()) == 3
    client.stop()
    assert client.exit_of().code == -signal.SIGKILL
    assert rig.processes_of() == []


def test_a_trial_that_ignores_being_asked_is_killed_after_the_grace_period(rig):
    client = rig.ready(rig.job(IGNORES))
    client.start()
    client.until(Reported)
    client.stop(grace_s=0.3)
    end = client.exit_of()
    assert (end.cause, end.code) == ("asked", -signal.SIGKILL)


def test_a_second_stop_can_shorten_the_grace_period(rig):
    client = rig.ready(rig.job(IGNORES))
    client.start()
    client.until(Reported)
    client.stop(grace_s=500)
    client.stop()
    assert client.exit_of().cause == "asked"


def test_what_a_finished_trial_leaves_behind_is_ended(rig):
    client = rig.ready(rig.job(HAS_CHILDREN.replace("while True: time.sleep(60)", "")))
    client.start()
    assert client.exit_of().cause == "finished"
    assert rig.processes_of() == []


def test_a_stop_right_behind_its_start_is_not_lost(rig):
    client = rig.ready(rig.job(WAITS))
    client.say(
        Start("a", "t1", 1, [0], {}, 17, []),
        Stop("b", "t1", 1, checkpoint=True, grace_s=20),
    )
    assert client.exit_of().cause == "asked"
    assert rig.processes_of() == []


def test_stopping_what_is_over_or_unknown_is_harmless(rig):
    client = rig.ready(rig.job(REPORTS))
    client.start()
    client.exit_of()
    client.stop("t1")
    client.stop("t9")
    client.start("t2")
    assert client.exit_of("t2").cause == "finished"
    assert kinds(client.facts).count("exited") == 2


def test_a_crash_is_told_with_its_exit_status_and_its_last_lines(rig):
    client = rig.ready(rig.job("print('hello')\nraise ValueError('lr is too large')"))
    client.start()
    end = client.exit_of()
    assert (end.cause, end.code, end.rank) == ("crashed", 1, None)
    assert end.tail[0] == "hello"
    assert end.tail[-1] == "ValueError: lr is too large"


def test_checkpoints_named_by_a_start_are_there_to_be_restored(rig):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    client.stop(grace_s=20)
    name = client.until(Checkpointed).name
    client.exit_of()
    for path in (rig.folder / "trials" / "t1" / "checkpoints").iterdir():
        path.unlink()
    client.start(attempt=2, checkpoints=(name,))
    client.until(Started, lambda fact: fact.attempt == 2)
    assert (rig.folder / "trials" / "t1" / "checkpoints" / f"{name}.pt").exists()
    client.stop(attempt=2)
    client.exit_of(attempt=2)


def test_setup_commands_run_once_for_each_content(rig):
    client = rig.ready(rig.job(setup=["echo $WHO >> ran"], env={"WHO": "us"}))
    client.say(Prepare("again", rig.job(setup=["echo $WHO >> ran"], env={"WHO": "us"})))
    client.until(Prepared, lambda fact: fact.id == "again")
    assert (rig.source / "ran").read_text() == "us\n"


def test_a_later_preparation_takes_the_place_of_one_that_hangs(rig):
    """As when a job is taken back whose setup command never ends."""
    client = rig.ready(rig.job())
    client.say(Prepare("hangs", rig.job(setup=["echo > begun; sleep 1000"])))
    while not (rig.source / "begun").exists():
        time.sleep(0.01)
    client.say(Prepare("next", rig.job(setup=["echo > made"])))
    # 137: of the two processes that are killed its child is gone first, and the shell says so
    assert re.search("ended with exit status (-9|137)", client.until(Refused).why)
    client.until(Prepared, lambda fact: fact.id == "next")
    assert (rig.source / "made").exists()


def test_a_setup_command_that_fails_says_what_it_wrote(rig):
    rig.launch()
    client = rig.connect()
    client.say(Prepare("p", rig.job(setup=["true", "echo no such wheel; exit 3"])))
    why = client.until(Refused).why
    assert "exit status 3" in why
    assert why.endswith("no such wheel")


def test_without_renewal_trials_save_and_the_agent_ends(rig):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    client.say(Renew(0.1, 20))
    assert kinds(client.rest())[-2:] == ["checkpointed", "exited"]
    assert client.facts[-1].cause == "lease"
    assert rig.processes[0].wait(10) == 0


def test_a_trial_that_does_not_save_in_time_does_not_keep_the_agent_from_ending(rig):
    client = rig.ready(rig.job(IGNORES))
    client.start()
    client.until(Reported)
    client.say(Renew(0.0, 0.3))
    client.close()
    assert rig.processes[0].wait(10) == 0
    assert rig.processes_of() == []
    rig.launch()
    assert rig.connect(seen=4).exit_of().cause == "lease"


def test_an_agent_that_is_never_renewed_ends(rig):
    assert rig.launch(lease_s=2.0).wait(10) == 0


def test_a_shut_down_kills_and_closes_the_connection_when_that_is_done(rig):
    client = rig.ready(rig.job(IGNORES))
    client.start()
    client.until(Reported)
    client.say(Shutdown("s"))
    assert client.rest()[-1].cause == "asked"
    assert rig.processes_of() == []
    assert rig.processes[0].wait(10) == 0


def test_a_terminated_agent_lets_trials_save(rig):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    rig.processes[0].terminate()
    assert kinds(client.rest())[-2:] == ["checkpointed", "exited"]
    assert rig.processes[0].wait(10) == 0


def test_after_the_death_of_an_agent_the_next_one_ends_tells_and_cleans_up_what_it_left(rig):
    client = rig.ready(rig.job(HAS_CHILDREN))
    client.start()
    client.until(Reported)
    rig.lose_agent()
    late = {"kind": "report", "at": 1.0, "epoch": 2, "metrics": {"accuracy": 0.6}, "unit_s": 0.1}
    with (rig.attempt() / "out.jsonl").open("a") as out:
        out.write(json.dumps(late) + "\n")
    rig.launch()
    assert rig.processes_of() == []
    again = rig.connect()
    assert again.exit_of().cause == "lost"
    assert kinds(again.facts) == [
        "prepared",
        "started",
        "training",
        "reported",
        "reported",
        "exited",
    ]
    again.start(attempt=2)
    again.until(Training, lambda fact: fact.attempt == 2)
    again.stop(attempt=2)
    again.exit_of(attempt=2)


def test_what_died_with_its_agent_ended_then_and_not_when_the_next_one_looks(rig):
    """A power failure: nobody held the GPUs meanwhile."""
    client = rig.ready(rig.job(HAS_CHILDREN))
    client.start()
    client.until(Reported)
    rig.lose_agent()
    for process in rig.processes_of():
        process.kill()
    died = time.time()
    time.sleep(4 * PULSE_S)
    rig.launch()
    end = rig.connect().exit_of()
    assert end.cause == "lost"
    assert died - 0.5 <= end.at <= died + PULSE_S + 0.5


def test_what_outlived_its_agent_ended_when_it_was_found(rig):
    client = rig.ready(rig.job(HAS_CHILDREN))
    client.start()
    client.until(Reported)
    rig.lose_agent()
    assert rig.processes_of()
    time.sleep(2.5 * PULSE_S)
    before = time.time()
    rig.launch()
    assert rig.connect().exit_of().at >= before


def test_there_is_one_agent_in_a_folder(rig):
    first = rig.launch()
    assert rig.spawn().wait(10) == 1
    assert "another agent" in rig.errors.read_text()
    assert first.poll() is None


def test_the_socket_and_the_folder_are_private(rig):
    rig.launch()
    assert oct(rig.folder.stat().st_mode)[-3:] == "700"
    assert oct((rig.folder / "agent.sock").stat().st_mode)[-3:] == "600"


def test_an_agent_that_cannot_keep_its_journal_ends_loudly_and_leaves_nothing_running(rig):
    client = rig.ready(rig.job(WAITS.replace("while True: time.sleep(60)", REPORT_FOR_EVER)))
    client.start()
    client.until(Reported)
    psutil.Process(rig.processes[0].pid).rlimit(psutil.RLIMIT_FSIZE, (4096, 4096))
    assert rig.processes[0].wait(20) == 1
    assert rig.processes_of() == []
    assert "cannot be written" in rig.errors.read_text()


REPORT_FOR_EVER = """
for epoch in range(2, 10**9):
    tell(kind="report", epoch=epoch, metrics={"accuracy": 0.5}, unit_s=0.1)
    time.sleep(0.01)
"""


def test_hostile_output_is_dropped_and_the_agent_lives(rig):
    client = rig.ready(rig.job(HOSTILE))
    client.start()
    assert client.exit_of().cause == "finished"
    assert kinds(client.facts) == ["prepared", "started", "complained", "reported", "exited"]
    assert client.until(Reported).metrics == {"accuracy": None}


HOSTILE = r"""
import os
with open(os.path.join(os.environ["SEERD_DIR"], "out.jsonl"), "wb") as out:
    out.write(b"\xff\xfe\n" + b"[" * 100_000 + b"\n" + b"x" * 3_000_000 + b"\n")
    out.write(b'{"kind": "checkpoint", "name": "../../../etc/passwd"}\n{"kind": ["report"]}\n{"kind": "exited"}\nnull\n')
    out.write(b'{"kind": "report", "epoch": -1, "metrics": {}}\n{"kind": "report", "epoch": 1, "metrics": {"a": "b"}}\n')
    out.write(b'{"kind": "report", "epoch": 1, "at": "now", "metrics": {"accuracy": NaN}, "unit_s": 1e999}\n{"kind": "rep')
"""


def test_an_attempt_that_was_ordered_but_never_told_is_started_by_the_next_agent(rig):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED))
    client.start()
    client.until(Reported)
    journal = rig.folder / "journal.jsonl"
    rig.lose_agent()
    journal.write_bytes(journal.read_bytes().partition(b'{"kind":"started"')[0])
    rig.launch()
    assert rig.processes_of() == []
    again = rig.connect()
    again.start()
    again.until(Reported)
    again.stop(grace_s=20)
    assert again.exit_of().cause == "asked"
    assert kinds(again.facts) == [
        "prepared",
        "started",
        "training",
        "reported",
        "checkpointed",
        "exited",
    ]


def test_a_relative_source_is_in_the_agents_own_folder(rig):
    rig.folder.mkdir()
    rig.source.rename(rig.folder / "source")
    rig.source = rig.folder / "source"
    show = rig.source / "show"
    show.write_text("#!/bin/sh\npwd; cat made\n")
    show.chmod(0o700)
    job = replace(
        rig.job(source="source", setup=["echo here > made"], launcher="command"), script="show"
    )
    client = rig.ready(job)
    client.start()
    assert client.exit_of().cause == "finished"
    work = rig.attempt() / "work"
    assert (rig.attempt() / "logs" / "launcher.log").read_text() == f"{work}\nhere\n"


def test_a_trial_that_saves_keeps_its_gpu_until_nothing_of_it_is_left(rig):
    """Another run's trial would start on it beside this one."""
    rig.options += ("--share", "1")
    leases = LeaseFolder(folder_path())
    client = rig.ready(
        rig.job(
            REPORTS + "while not stopped(): time.sleep(0.01)\n"
            "mark = os.path.join(os.environ['SEERD_DIR'], 'saving')\n"
            "open(mark, 'w').close()\n"
            "while os.path.exists(mark): time.sleep(0.01)\n"
        )
    )
    client.start()
    client.until(Reported)
    assert leases.leased() == ["slot-0"]
    client.stop(grace_s=60.0)
    while not (marks := list(rig.folder.rglob("saving"))):
        time.sleep(0.01)
    assert leases.leased() == ["slot-0"]
    marks[0].unlink()
    client.exit_of()
    while leases.leased():
        time.sleep(0.01)
    leases.close()
