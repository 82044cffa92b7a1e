"""The agent's promises where checkpoints travel by grants: on a real agent, with real trials and
S3's answers.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from bench.testbed.agents import RUN
from seerd.agent.protocol import (
    Ask,
    Checkpointed,
    Complained,
    Download,
    Downloads,
    Prepare,
    Prepared,
    Refused,
    Renew,
    Reported,
    Shutdown,
    Started,
    Training,
)
from seerd.stores.s3.store import S3Store
from tests.agent.test_agent_serve import REPORTS, TELLS
from tests.s3front import hold, refuse

SAVES = REPORTS + 'save("000001-00000010", 1)\n'
SAVES_WHEN_ASKED = REPORTS + 'while not stopped(): time.sleep(0.01)\nsave("000001-00000010", 1)\n'
RESTORES = TELLS + (
    "names = sorted(os.listdir(about['checkpoints']))\n"
    "tell(kind='training', epoch=len(names))\n"
    "print(names, open(os.path.join(about['checkpoints'], names[-1])).read()[:20])\n"
)
LARGE = SAVES.replace("name.encode() * 100", "os.urandom(1 << 20) * 40")


def daemon(work: Callable[[S3Store], Awaitable[Any]]) -> Any:
    """What the daemon's store answers."""

    async def run() -> Any:
        store = S3Store("s3://bucket/seerd", RUN, time.time() + 3600)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def grant(
    trial: str = "t1", attempt: int = 1, first: int = 1, checkpoints: tuple[str, ...] = ()
) -> Any:
    return daemon(lambda store: store.presign(trial, attempt, first, checkpoints))


def objects() -> list[str]:
    listed = boto3.client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])
    return [found["Key"].removeprefix(f"seerd/{RUN}/") for found in listed]


def kinds(facts: list[Any]) -> list[str]:
    return [fact.kind for fact in facts]


def test_a_checkpoint_is_told_under_the_name_of_its_place_and_before_the_end(rig, s3):
    client = rig.ready(rig.job(SAVES, store=""))
    client.say(grant())
    client.start()
    client.exit_of()
    assert kinds(client.facts) == [
        "prepared",
        "started",
        "training",
        "reported",
        "checkpointed",
        "exited",
    ]
    told = client.until(Checkpointed)
    assert (told.name, told.epoch, told.metrics) == ("0001-000001", 1, {"accuracy": 0.1})
    assert objects() == ["t1/0001-000001.json", "t1/0001-000001.pt"]


def test_reports_are_told_while_a_checkpoint_is_on_its_way_and_the_end_only_after_it(rig, s3):
    script = SAVES + 'tell(kind="report", epoch=2, metrics={"accuracy": 0.6}, unit_s=0.1)\n'
    client = rig.ready(rig.job(script, store=""))
    arrived = threading.Event()
    s3.fail("PUT .pt", hold(arrived))
    client.say(grant())
    client.start()
    client.until(Reported, lambda fact: fact.epoch == 2)
    assert "checkpointed" not in kinds(client.facts)
    (process,) = [fact.pid for fact in client.facts if isinstance(fact, Started)]
    while Path(f"/proc/{process}").exists():
        time.sleep(0.01)
    threading.Timer(1.0, arrived.set).start()  # an end that does not wait for it is told before
    client.exit_of()
    assert kinds(client.facts)[-2:] == ["checkpointed", "exited"]


def test_of_checkpoints_that_wait_only_the_newest_is_put(rig, s3):
    script = (
        REPORTS
        + 'for n in range(1, 6): save(f"00000{n}-00000010", n)\ntell(kind="report", epoch=2, '
        "metrics={}, unit_s=0)\n"
    )
    client = rig.ready(rig.job(script, store=""))
    arrived = threading.Event()
    s3.fail("PUT .pt", hold(arrived))
    client.say(grant())
    client.start()
    client.until(Reported, lambda fact: fact.epoch == 2)
    arrived.set()
    client.exit_of()
    told = [fact.epoch for fact in client.facts if isinstance(fact, Checkpointed)]
    assert told[-1] == 5
    assert len(told) <= 2


def test_a_stopped_trial_saves_and_its_checkpoint_is_put_before_its_end(rig, s3):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED, store=""))
    client.say(grant())
    client.start()
    client.until(Reported)
    client.stop(grace_s=30)
    assert client.exit_of().cause == "asked"
    assert kinds(client.facts)[-2:] == ["checkpointed", "exited"]


def test_an_upload_that_outlasts_the_grace_period_is_called_off(rig, s3):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED, store=""))
    never = threading.Event()
    s3.fail("PUT .pt", hold(never))
    client.say(grant())
    client.start()
    client.until(Reported)
    began = time.monotonic()
    client.stop(grace_s=2)
    client.exit_of()
    assert time.monotonic() - began < 10
    assert "checkpointed" not in kinds(client.facts)
    never.set()


def test_a_store_that_takes_nothing_is_told_and_gets_what_waits_once_it_takes_it(rig, s3):
    client = rig.ready(rig.job(SAVES, store=""))
    s3.fail("PUT .pt", refuse(403, "AccessDenied", "explicit deny"))
    client.say(grant())
    client.start()
    told = client.until(Complained)
    assert told.what == "store-refused"
    assert told.why.endswith("refused with status 403 (AccessDenied: explicit deny)")
    client.exit_of()
    assert client.until(Checkpointed).name == "0001-000002"
    assert [fact.what for fact in client.facts if isinstance(fact, Complained)] == [told.what]


@pytest.mark.parametrize(
    ("status", "told"), [(403, ["store-refused"]), (503, [])], ids=["403", "503"]
)
def test_that_the_store_lacks_a_checkpoint_is_told_before_the_end(rig, s3, status, told):
    client = rig.ready(rig.job(SAVES_WHEN_ASKED, store=""))
    s3.fail("PUT .pt", refuse(status, "AccessDenied"), times=99)
    client.say(grant())
    client.start()
    client.until(Reported)
    client.stop(grace_s=2)  # what is put again and again is called off
    client.exit_of()
    assert "checkpointed" not in kinds(client.facts)
    assert [fact.what for fact in client.facts if isinstance(fact, Complained)] == [
        *told,
        "promised",
        "left",
    ]


def test_a_trial_that_is_killed_at_once_puts_nothing(rig, s3):
    client = rig.ready(rig.job(SAVES + "while True: time.sleep(60)\n", store=""))
    client.start()
    client.until(Reported)
    client.stop()
    assert client.exit_of().cause == "asked"
    assert objects() == []


def test_when_the_lease_has_ended_the_last_checkpoint_is_put_where_it_was_granted(rig, s3):
    saves_often = REPORTS + (
        "n = 0\n"
        "while not stopped():\n"
        "    n += 1\n"
        '    save(f"{n:06d}-1", n)\n'
        "    time.sleep(0.01)\n"
        'save("900000-1", 900000)\n'
    )
    client = rig.ready(rig.job(saves_often, store=""))
    client.say(grant())
    client.start()
    client.until(Checkpointed, lambda fact: fact.name == "0001-000002")
    client.say(Renew(0.2, 20))
    client.rest()
    told = [(fact.name, fact.epoch) for fact in client.facts if isinstance(fact, Checkpointed)]
    assert told[-1] == ("0001-000003", 900000)
    assert client.exit_of().cause == "lease"
    assert "t1/0001-000003.json" in objects()


def test_a_large_checkpoint_is_put_in_parts_that_the_daemon_grants(rig, s3):
    client = rig.ready(rig.job(LARGE, store=""))
    client.say(grant())
    client.start()
    asked = client.until(Ask)
    assert (asked.trial, asked.attempt, asked.name, asked.size) == (
        "t1",
        1,
        "0001-000001",
        40 << 20,
    )
    client.close()
    again = rig.connect()
    assert again.until(Ask) == asked
    again.say(daemon(lambda store: store.parts(asked)))
    again.exit_of()
    assert again.until(Checkpointed).size == 40 << 20
    assert {request.query.get("partNumber") for request in s3.agents("PUT", ".pt")} == {
        "1",
        "2",
        "3",
    }


def test_an_expired_place_waits_for_a_fresh_grant(rig, s3):
    client = rig.ready(rig.job(SAVES, store=""))
    s3.ahead_s = 10_000
    client.say(grant())
    client.start()
    client.until(Reported)
    while not s3.agents("PUT"):
        time.sleep(0.01)
    s3.ahead_s = 0
    client.say(grant())
    client.exit_of()
    assert client.until(Checkpointed).name == "0001-000001"


def test_the_next_attempt_restores_it_by_its_own_name(rig, s3):
    client = rig.ready(rig.job(SAVES, store=""))
    client.say(grant())
    client.start()
    client.exit_of()
    client.close()
    rig.end()
    rig.folder = rig.folder.parent / "other"
    again = rig.ready(rig.job(RESTORES, store=""))
    again.say(grant(attempt=2, checkpoints=("0001-000001",)))
    again.start(attempt=2, checkpoints=("0001-000001",))
    again.exit_of(attempt=2)
    assert again.until(Training).epoch == 2
    assert "000001-00000010.pt" in (rig.attempt(attempt=2) / "logs" / "launcher.log").read_text()


def test_a_store_out_of_reach_is_told_and_the_trial_does_not_begin_anew(rig, s3):
    client = rig.ready(rig.job(SAVES, store=""))
    s3.fail("GET .json", refuse(403, "AccessDenied"), times=9)
    client.say(grant(attempt=2, checkpoints=("0001-000001",)))
    client.start(attempt=2, checkpoints=("0001-000001",))
    assert (
        "checkpoint 0001-000001: GET at 127.0.0.1: refused with status 403 (AccessDenied)"
        in client.until(Refused).why
    )


def test_no_url_is_on_the_disk_of_the_instance(rig, s3):
    boto3.client("s3").put_object(Bucket="bucket", Key="data/a.bin", Body=b"a")
    items = daemon(lambda store: store.downloads("s3://bucket/data", "data"))
    rig.launch()
    client = rig.connect()
    client.say(Downloads(True, items), grant(), Prepare("p", rig.job(SAVES, store="")))
    s3.fail("PUT .pt", refuse(503), times=1)
    client.until(Prepared)
    client.start()
    client.exit_of()
    client.say(Shutdown("s"))
    client.rest()
    files = [path for top in (rig.folder, rig.source) for path in top.rglob("*") if path.is_file()]
    assert rig.folder / "journal.jsonl" in files
    assert [
        path for path in files if b"X-Amz" in path.read_bytes() or b"secret" in path.read_bytes()
    ] == []


# ---------------------------------------------------------------- data


def prepared(rig: Any, *messages: Downloads) -> Any:
    """The outcome of a preparation with this data."""
    rig.launch()
    client = rig.connect()
    client.say(*messages, Prepare("p", rig.job("", setup=["cat data/* > seen"])))
    return client.until(object, lambda fact: isinstance(fact, (Prepared, Refused)))


def test_data_is_there_before_the_setup_commands(rig, s3):
    big = b"x" * ((16 << 20) + 3)
    for key, data in (("a", b"first"), ("b", b""), ("c", big)):
        boto3.client("s3").put_object(Bucket="bucket", Key=f"data/{key}", Body=data)
    items = daemon(lambda store: store.downloads("s3://bucket/data", "data"))
    assert isinstance(
        prepared(rig, Downloads(True, items[:1]), Downloads(False, items[1:])), Prepared
    )
    assert (rig.source / "seen").read_bytes() == b"first" + big
    assert sorted(path.name for path in (rig.source / "data").iterdir()) == ["a", "b", "c"]


def test_data_that_is_there_is_kept_and_the_first_message_begins_anew(rig, s3):
    for key in ("a", "b"):
        boto3.client("s3").put_object(Bucket="bucket", Key=f"data/{key}", Body=key.encode())
    (rig.source / "data").mkdir()
    (rig.source / "data" / "a").write_text("A")
    items = daemon(lambda store: store.downloads("s3://bucket/data", "data"))
    unwanted = Downloads(True, [Download("http://127.0.0.1:9/x", "never", 1)])
    assert isinstance(prepared(rig, unwanted, Downloads(True, items)), Prepared)
    assert (rig.source / "seen").read_text() == "Ab"


@pytest.mark.parametrize("to", ["../up", "/etc/up", "", "a//b", "a/./b", "a/../b", "out/x", "a\0b"])
def test_a_path_that_leads_out_of_the_working_folder_is_refused(rig, s3, to):
    (rig.source / "out").symlink_to(rig.source.parent)
    refused = prepared(rig, Downloads(True, [Download(f"{s3.url}/bucket/x", to, 1)]))
    assert isinstance(refused, Refused)
    assert "is refused" in refused.why
    assert s3.agents("GET") == []
    assert sorted(path.name for path in rig.source.parent.iterdir()) == ["agent.err", "i", "source"]


def test_data_that_cannot_be_had_is_told_without_its_address(rig, s3):
    boto3.client("s3").put_object(Bucket="bucket", Key="data/a", Body=b"a")
    items = daemon(lambda store: store.downloads("s3://bucket/data", "data"))
    boto3.client("s3").delete_object(Bucket="bucket", Key="data/a")
    refused = prepared(rig, Downloads(True, items))
    assert (
        refused.why
        == "data for data/a cannot be fetched: GET at 127.0.0.1: refused with status 404 "
        "(NoSuchKey)"
    )
    assert list((rig.source / "data").iterdir()) == []


def test_data_does_not_replace_a_folder(rig, s3):
    boto3.client("s3").put_object(Bucket="bucket", Key="data", Body=b"a")
    (rig.source / "data").mkdir()
    items = daemon(lambda store: store.downloads("s3://bucket/data", ""))
    assert "there is a folder of this name" in prepared(rig, Downloads(True, items)).why


def test_the_journal_of_the_agent_has_orders_and_facts_alone(rig: Any, s3: Any) -> None:
    client = rig.ready(rig.job(SAVES, store=""))
    client.say(grant())
    client.start()
    client.exit_of()
    lines = (Path(rig.folder) / "journal.jsonl").read_text().splitlines()
    assert {json.loads(line.partition("\t")[0])["kind"] for line in lines} <= {
        *(
            "prepare",
            "prepared",
            "start",
            "started",
            "training",
            "reported",
            "checkpointed",
            "exited",
            "ack",
        )
    }
