"""Trials in containers of Podman."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bench.testbed.agents import Rig
from seerd.agent.protocol import Prepare, Refused
from tests.agent.test_agent_containers import Cases, the_same_job
from tests.podman import IMAGE, Podman, podman_here


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Podman, which has the image."""
    with podman_here() as podman:
        yield podman


class TestPodman(Cases):
    """With Podman: nothing of this machine but Python and a shell is in the image."""

    image = IMAGE

    @pytest.fixture
    def inside(self, rig: Rig, podman: Podman) -> Iterator[Rig]:
        """A place for an agent that finds this Podman."""
        del rig.env["PYTHONPATH"]
        rig.env |= podman.env
        rig.fork = None
        yield rig
        if rig.processes and rig.processes[-1].poll() is None:
            rig.processes[-1].send_signal(signal.SIGTERM)
            assert rig.processes[-1].wait() == 0
        assert podman("ps", "--all", "--quiet") == ""

    def look_closer(self, seen: dict[str, Any]) -> None:
        """Look at the image's own files and variables."""
        assert "home" not in seen["root"]
        assert seen["environ"]["MADE_BY"] == "image"

    def test_an_image_that_is_nowhere_is_refused_in_podmans_own_words(self, inside: Rig) -> None:
        inside.launch()
        client = inside.connect()
        client.say(Prepare("p", the_same_job(inside, "", "localhost:1/none:1")))
        why = client.until(Refused).why
        assert "podman cannot fetch the image localhost:1/none:1" in why
        assert "refused" in why
