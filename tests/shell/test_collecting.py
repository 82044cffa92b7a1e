"""What trials print elsewhere: asked for once at a time, kept as if they ran here, whatever a
machine says.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from seerd.backends.base import Printed
from seerd.errors import ProviderError
from seerd.shell.collecting import LAST_S, MOST_AT_ONCE, MOST_FILES, Collector

LOG = "trials/t0001/1/logs/launcher.log"
NAMES = (
    st.sampled_from(
        [
            "../x.log",
            "/etc/x",
            "trials/t0001/1/logs/../../../../x",
            "trials/t1/1/logs/.hidden",
            f"{LOG}/",
            LOG,
        ]
    )
    | st.text(max_size=20)
    | st.from_regex(r"trials/t[0-9]{4}/[0-9]/logs/[./\\a-z]{1,9}", fullmatch=True)
)


def kept(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_look_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    asked: list[float] = []

    async def source(instance: str, after: float) -> Printed:
        asked.append(after)
        return Printed(instance, {LOG: f"{len(asked)} times".encode()}, 10.0 * len(asked))

    async def scenario() -> None:
        collector = Collector(source, tmp_path)
        looks = {collector.look("i-1") for _ in range(5)}
        assert len(looks) == 1, "asked together, told together"
        await asyncio.gather(*looks)
        await collector.last("i-1", 9.0)
        await collector.close()

    asyncio.run(scenario())
    assert asked == [0.0, 10.0]
    assert kept(tmp_path) == {f"i-1/{LOG}": b"2 times"}


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    async def source(instance: str, after: float) -> Printed:
        return Printed(instance, {LOG: b"the token is hidden-value, not hid"}, 10.0)

    async def scenario() -> None:
        await Collector(source, tmp_path, ["hidden-value", "hid"]).look("i-1")

    asyncio.run(scenario())
    assert kept(tmp_path) == {f"i-1/{LOG}": b"the token is ************, not hid"}


def test_who_asks_while_a_look_is_under_way_gets_another_one(tmp_path: Path) -> None:
    gate = asyncio.Event()
    asked = 0

    async def source(instance: str, after: float) -> Printed:
        nonlocal asked
        asked += 1
        await gate.wait()
        return Printed(instance, {LOG: str(asked).encode()}, after)

    async def scenario() -> None:
        collector = Collector(source, tmp_path)
        first = collector.look("i-1")
        await asyncio.sleep(0)
        second = collector.look("i-1")
        assert second is not first
        gate.set()
        await asyncio.gather(first, second)

    asyncio.run(scenario())
    assert asked == 2


def test_a_machine_that_does_not_answer_is_not_waited_for_nor_does_it_end_anything(
    tmp_path: Path,
) -> None:
    async def source(instance: str, after: float) -> Printed | None:
        if instance == "i-2":
            raise ProviderError("i-2 is gone")
        if instance == "i-3":
            return None
        if instance == "i-4":
            raise OverflowError
        await asyncio.sleep(3600)
        raise AssertionError

    async def scenario() -> None:
        collector, began = Collector(source, tmp_path), asyncio.get_running_loop().time()
        await collector.last("i-1", 0.0)
        assert asyncio.get_running_loop().time() - began < LAST_S / 2, "nothing can be spared"
        await collector.last("i-1", 60.0)
        for instance in ("i-2", "i-3", "i-4"):
            await collector.look(instance)
        assert asyncio.get_running_loop().time() - began < 2 * LAST_S
        await collector.close()

    asyncio.run(scenario())
    assert kept(tmp_path) == {}


def test_a_machine_with_much_to_tell_is_asked_at_once_again_and_not_for_ever(
    tmp_path: Path,
) -> None:
    asked: list[float] = []

    async def source(instance: str, after: float) -> Printed:
        asked.append(after)
        return Printed(instance, {LOG: b"x"}, after + 1.0, more=len(asked) < 4 or len(asked) > 9)

    async def scenario() -> None:
        collector = Collector(source, tmp_path)
        await collector.look("i-1")
        assert asked == [0.0, 1.0, 2.0, 3.0]
        asked.extend([0.0] * 9)
        await collector.look("i-1")
        assert len(asked) == 4 + 9 + MOST_AT_ONCE

    asyncio.run(scenario())


def test_the_longest_names_that_there_are(tmp_path: Path) -> None:
    """torchrun's folder is named for run, trial and attempt."""
    run = f"{'n' * 64}-20261122-120000-abcd"
    log = f"trials/t0001/12/logs/{run}-t0001-12_abcd1234/attempt_0/7/stderr.log"

    async def source(instance: str, after: float) -> Printed:
        return Printed(instance, {log: b"x"}, after)

    async def scenario() -> None:
        await Collector(source, tmp_path).look("i-1")

    asyncio.run(scenario())
    assert kept(tmp_path) == {f"i-1/{log}": b"x"}


@given(
    st.dictionaries(NAMES, st.binary(max_size=3), max_size=4),
    st.sampled_from(["i-1", "..", ".", "me@host:22", "a/../../b"]),
)
@example({LOG: b"x", f"{LOG}/launcher.log": b"y"}, "i-1")
def test_nothing_is_written_outside_and_nothing_ends_it(logs: dict[str, bytes], place: str) -> None:
    async def source(instance: str, after: float) -> Printed:
        return Printed(place, logs, 1.0)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run", "instances")
        folder.mkdir(parents=True)

        async def scenario() -> None:
            collector = Collector(source, folder)
            await collector.look("i-1")

        asyncio.run(scenario())
        found = kept(Path(name))
        assert all(path.startswith("run/instances/") and "/trials/t" in path for path in found)
        assert not any(part.startswith(".") for path in found for part in path.split("/"))
        assert set(found.values()) <= set(logs.values())


def test_a_machine_fills_no_disk_with_files_and_the_newest_are_kept(tmp_path: Path) -> None:
    async def source(instance: str, after: float) -> Printed:
        names = (f"trials/t{number:04d}/1/logs/{int(after)}.log" for number in range(MOST_FILES))
        return Printed(instance, dict.fromkeys(names, b"x"), after + 1)

    async def scenario() -> None:
        collector = Collector(source, tmp_path)
        for _ in range(2):
            await collector.look("i-1")

    asyncio.run(scenario())
    found = kept(tmp_path)
    assert len(found) == MOST_FILES
    assert all(name.endswith("/1.log") for name in found)
