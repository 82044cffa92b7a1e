"""The keys of `[cluster]` with `provider = "hosts"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from seerd.spec import values as v
from seerd.spec.keys import BackendKeys, setting

Host = v.Host


@dataclass(frozen=True)
class HostsKeys(BackendKeys):
    """Machines that people have, reached over SSH."""

    provider: ClassVar = "hosts"
    hosts: tuple[Host, ...] = setting(v.list_of(v.host), default=())  # the machines
    weight: float = setting(v.weight, default=1.0)  # the run's share beside other runs there


KEYS = HostsKeys
