"""A slow or lossy link, where the kernel has no netem: frames pass through this process, which
waits and forgets.

The one rule: a relay changes when frames arrive, and whether; never what is in them.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import fcntl
import os
import random
import socket
import struct
import threading
from dataclasses import dataclass, field

TUNSETIFF = 0x400454CA
IFF_TAP_NO_INFO = 0x1002
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SIOCETHTOOL = 0x8946
CLONE_NEWNET = 0x40000000
OFFLOADS = {"tx checksum": 0x17, "tcp segmentation": 0x1F, "generic segmentation": 0x24}
"""ETHTOOL_STXCSUM, STSO, SGSO of linux/ethtool.h: frames without checksums, larger than the link
takes, make sense to the kernel alone.
"""
FRAME = 65536
MOST_WAITING = 2000


@dataclass(slots=True)
class Relay:
    """Between an instance's cable and a tap on the bridge. `delay_s` each way; `loss`: the share of
    frames that never arrive.
    """

    tap: int
    cable: socket.socket
    delay_s: float
    loss: float
    waiting: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(11))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self.tap, self._to_instance)
        loop.add_reader(self.cable, self._from_instance)

    def stop(self) -> None:
        loop = asyncio.get_running_loop()
        if self.tap >= 0:
            loop.remove_reader(self.tap)
            loop.remove_reader(self.cable)
            os.close(self.tap)
            self.cable.close()
            self.tap = -1

    def _to_instance(self) -> None:
        self._later(os.read(self.tap, FRAME), self.cable.fileno())

    def _from_instance(self) -> None:
        self._later(self.cable.recv(FRAME), self.tap)

    def _later(self, frame: bytes, to: int) -> None:
        if self.chance.random() < self.loss or self.waiting >= MOST_WAITING:
            return
        self.waiting += 1
        asyncio.get_running_loop().call_later(self.delay_s, self._send, frame, to)

    def _send(self, frame: bytes, to: int) -> None:
        self.waiting -= 1
        if self.tap < 0:
            return
        try:
            os.write(to, frame)
        except OSError:
            return  # the link is down, or full: a frame more that does not arrive


def open_relay(namespace: int, veth: str, tap: str, delay_s: float, loss: float) -> Relay:
    """A relay that is not on yet: the caller takes the cable off the bridge and puts the tap
    there.
    """
    _plain_frames(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", tap.encode(), IFF_TAP_NO_INFO))
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    cable.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    cable.bind((veth, ETH_P_ALL))
    cable.setblocking(False)
    return Relay(fd, cable, delay_s, loss)


def _plain_frames(namespace: int) -> None:
    """Have the instance's side send whole frames with checksums. In a thread of its own: a
    namespace belongs to a thread.
    """
    failed: list[OSError] = []

    def work() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, CLONE_NEWNET) != 0:
            failed.append(OSError(ctypes.get_errno(), "setns"))
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for command in OFFLOADS.values():
                value = array.array("B", struct.pack("II", command, 0))
                try:
                    fcntl.ioctl(
                        asking, SIOCETHTOOL, struct.pack("16sP16x", b"eth0", value.buffer_info()[0])
                    )
                except OSError as error:
                    failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
