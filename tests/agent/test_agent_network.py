"""Which interface has an address."""

from __future__ import annotations

import pytest

from seerd.agent.network import environment, interface_of


def test_the_loopback_is_found_by_its_address():
    assert environment("127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}


@pytest.mark.parametrize("address", ["192.0.2.200", "127.0.0.2", "gpu-1", "", "::1"])
def test_an_address_that_is_no_interfaces_own_decides_nothing(address):
    assert interface_of(address) is None
    assert environment(address) == {}
