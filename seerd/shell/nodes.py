"""An attempt on several instances, as each of their agents gets its order.

The one rule: these functions are pure. Every node meets the others at node 0, on a port that
follows from the id of the command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from seerd.agent.protocol import Node, Start
from seerd.core.commands import AnyCommand, StartTrial, StopTrial
from seerd.shell.translate import order_of

FIRST_PORT, PORTS = 29_400, 500
"""First and number of ports for these meetings, below the ports that Linux hands out by itself
(32768 and more), where torchrun's own default port is, too.
"""


def instances_of(command: AnyCommand) -> tuple[str, ...]:
    """Return the instances whose agents carry out this command."""
    return command.nodes if isinstance(command, StartTrial | StopTrial) else ()


def start_on(command: StartTrial, instance: str, address: Callable[[str], str]) -> Start:
    """Return the order to start, as the agent of this instance gets it. `address` returns that of
    an instance.
    """
    start = order_of(command)
    assert isinstance(start, Start)
    if not command.beside:
        return start
    nodes = ((command.instance, command.gpus), *command.beside)
    rank = instances_of(command).index(instance)
    node = Node(
        rank=rank,
        count=len(nodes),
        address=address(instance),
        endpoint=f"{address(command.instance)}:{_port(command)}",
        gpus=sum(len(gpus) for _, gpus in nodes),
    )
    return replace(start, gpus=list(nodes[rank][1]), node=node)


def _port(command: StartTrial) -> int:
    return FIRST_PORT + sum(map(int, command.id.split("."))) % PORTS
