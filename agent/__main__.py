"""The agent's program: one agent for one folder. It is started as `python -I agent.pyz ...`, as
`python -m seerd.agent ...`, or by a remote task that becomes it (`remote_tasks`).

The one rule: the process that holds the lock on `agent.lock` is the agent of its folder. It does
everything else after it has the lock.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import sys
import time
from pathlib import Path
from typing import Optional

from seerd.agent import clock, host
from seerd.agent.launch import LIBRARY, unpack_library
from seerd.agent.lease import Lease
from seerd.agent.orders import Here
from seerd.agent.power import power_off
from seerd.agent.serve import Agent

NAME = "seerd-agent"
"""The name of the process, which the boot script of an instance looks for
(seerd/aws/userdata.py).
"""
LOCK_S = 2.0
LOCK_POLL_S = 0.01
PRIVATE = 0o700
log = logging.getLogger("agent")


def main() -> int:
    """Run the agent until its end.

    Returns exit status 0 after an orderly end, and 1 if the folder has an agent already. A wrong
    option exits with 2. Any other error ends the process with a traceback.
    """
    options = _options()
    program, folder = Path(sys.argv[0]).resolve(), Path(options.folder).resolve()
    library = Path(options.library).resolve() if options.library else None
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    folder.chmod(PRIVATE)
    os.chdir(folder)
    if not _lock():
        print(f"another agent lives in {folder}", file=sys.stderr)
        return 1
    host.show_as(NAME)
    asyncio.run(_live(options, folder, program, library))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--cuda", action="store_true", help="GPUs are CUDA devices")
    kind.add_argument("--slots", action="store_true", help="GPUs are CPU slots")
    parser.add_argument("--lease-s", type=float, required=True)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument(
        "--spot",
        action="store_true",
        help="watch for the cloud's notice that it takes this instance away",
    )
    parser.add_argument(
        "--power-off",
        action="store_true",
        help="power the machine off when nobody renews the lease",
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="WEIGHT",
        help="share the GPUs of this machine with other runs, by weight",
    )
    parser.add_argument(
        "--library", help="where `seerd` can be imported from; default: out of this zip"
    )
    return parser.parse_args()


def _lock() -> bool:
    """Take the lock for as long as this process lives; return whether it could be taken.

    Others hold it for an instant when they look whether an agent lives, so this tries for `LOCK_S`
    seconds.
    """
    descriptor = os.open("agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(LOCK_POLL_S)
        else:
            return True


async def _live(
    options: argparse.Namespace, folder: Path, program: Path, library: Optional[Path]
) -> None:
    """Run the agent from the lock to its end. Then power the machine off, if that was asked for and
    nobody else will see to it.

    A machine whose agent has failed is powered off too: it is of no use to anybody.
    """
    try:
        forsaken = await _serve(
            options, folder, library or unpack_library(program, folder / LIBRARY)
        )
    except Exception:
        log.exception("the agent has to end")
        if options.power_off:
            host.kill(lambda: host.each_of_run(options.run), set())
            power_off()
        raise
    if forsaken and options.power_off:
        power_off()


async def _serve(options: argparse.Namespace, folder: Path, library: Path) -> bool:
    (folder / "agent.pid").write_text(str(os.getpid()))
    logging.basicConfig(filename="agent.log", level=logging.INFO, format="%(asctime)s %(message)s")
    host.adopt_orphans()
    here = Here(options.run, options.gpus, options.cuda, folder, library, options.share)
    clock.begin(folder, host.boot_id())
    lease = Lease(clock.now() + options.lease_s, options.grace_s)
    return await Agent(here, lease, spot=options.spot).serve()


if __name__ == "__main__":
    sys.exit(main())
