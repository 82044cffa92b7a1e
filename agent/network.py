"""Finds which of this machine's network interfaces has an address, so that ranks of several nodes
find each other (Linux, netdevice(7)).

The one rule: nothing is guessed. If no interface has the address as its first, torch's libraries
choose.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from typing import Dict, Optional

SIOCGIFADDR = 0x8915
NAME_BYTES = 16
ADDRESS = slice(20, 24)


def environment(address: str) -> Dict[str, str]:
    """Return the environment variables that have gloo and NCCL listen at this address; empty if no
    interface has it.

    By themselves they take the address of the machine's name, which is often its loopback.
    """
    name = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}


def interface_of(address: str) -> Optional[str]:
    """Find the interface that has this IPv4 address; None if there is none."""
    with contextlib.suppress(OSError):
        wanted = socket.inet_aton(address)
        return next(
            (name for _, name in socket.if_nameindex() if _address_of(name) == wanted), None
        )
    return None


def _address_of(name: str) -> bytes:
    request = struct.pack("256s", name.encode()[: NAME_BYTES - 1])
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket,
        contextlib.suppress(OSError),
    ):
        return fcntl.ioctl(any_socket, SIOCGIFADDR, request)[ADDRESS]
    return b""
