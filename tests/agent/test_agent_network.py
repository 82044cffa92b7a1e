"""Which interface has an address."""

from __future__ import annotations

import pytest

from seerd.agent.launch import node_environment
from seerd.agent.protocol import Node


def node_at(address):
    return Node(0, 2, address, f"{address}:29400", 16)


def test_the_loopback_is_found_by_its_address():
    assert node_environment(node_at("127.0.0.1")) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
    }


@pytest.mark.parametrize("address", ["192.0.2.200", "127.0.0.2", "gpu-1", "", "::1"])
def test_an_address_that_is_no_interfaces_own_decides_nothing(address):
    assert node_environment(node_at(address)) == {}
