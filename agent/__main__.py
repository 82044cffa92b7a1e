"""The agent's program (`agent.pyz`, `python -m seerd.agent`, or a remote task that becomes it). The
process that holds the lock on `agent.lock` is the agent of its folder.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional, Sequence

from seerd.agent import clock, host
from seerd.agent.launch import LIBRARY, unpack_library
from seerd.agent.orders import Here
from seerd.agent.serve import Agent, Lease
from seerd.agent.timings import TIMINGS, Timings

NAME = "seerd-agent"
"""Name of the process, which an instance's boot script looks for (seerd/aws/userdata.py)."""
LOCK_POLL_S = 0.01
PRIVATE = 0o700
WAYS = (("shutdown", "-h", "now"), ("poweroff",), ("systemctl", "poweroff"))
ADMIN_PATH = "/usr/sbin:/sbin"
"""Where these commands are, which is often not on the PATH of an ordinary user."""
ONE_S, AGAIN_S, GIVE_UP_S = 20.0, 5.0, 600.0
"""Seconds that one of these commands has, until they are tried again, and until that ends."""
log = logging.getLogger("agent")


def main(timings: Timings = TIMINGS) -> int:
    """Run the agent until its end; return the exit status: 1 if the folder has an agent."""
    options = _options()
    program, folder = Path(sys.argv[0]).resolve(), Path(options.folder).resolve()
    library = Path(options.library).resolve() if options.library else None
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    folder.chmod(PRIVATE)
    os.chdir(folder)
    if not _lock(timings.lock_s):
        print(f"another agent lives in {folder}", file=sys.stderr)
        return 1
    host.show_as(NAME)
    asyncio.run(_live(options, timings, folder, program, library))
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
    parser.add_argument("--spot", action="store_true", help="watch for the cloud's notices")
    parser.add_argument("--power-off", action="store_true", help="when nobody renews the lease")
    parser.add_argument("--share", type=float, help="weight beside other runs on this machine")
    parser.add_argument("--library", help="where to import `seerd` from; default: this zip")
    return parser.parse_args()


def _lock(for_s: float) -> bool:
    """Take the lock for as long as this process lives; return whether that worked."""
    descriptor = os.open("agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + for_s
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
    options: argparse.Namespace,
    timings: Timings,
    folder: Path,
    program: Path,
    library: Optional[Path],
) -> None:
    """Run the agent; power the machine off after it, if asked, when it let go or failed."""
    try:
        library = library or unpack_library(program, folder / LIBRARY)
        (folder / "agent.pid").write_text(str(os.getpid()))
        logging.basicConfig(
            filename="agent.log", level=logging.INFO, format="%(asctime)s %(message)s"
        )
        host.adopt_orphans()
        own = (folder, library, options.share, timings)
        here = Here(options.run, options.gpus, options.cuda, *own)
        clock.begin(folder, host.boot_id())
        lease = Lease(clock.now() + options.lease_s, options.grace_s)
        forsaken = await Agent(here, lease, spot=options.spot).serve()
    except Exception:
        log.exception("the agent has to end")
        if options.power_off:
            host.kill(lambda: host.each_of_run(options.run), set())
            power_off()
        raise
    if forsaken and options.power_off:
        power_off()


def power_off() -> bool:
    """Power the machine off; return whether it has agreed to, at the latest after `GIVE_UP_S`: what
    is left then is its own timer.

    An instance launched with InstanceInitiatedShutdownBehavior=terminate is then terminated
    (docs.aws.amazon.com/AWSEC2/latest/UserGuide/, "Change the instance initiated shutdown
    behavior").
    """
    end = time.monotonic() + GIVE_UP_S
    while True:
        if any(_has_agreed(command) for command in power_off_commands(os.geteuid() == 0)):
            return True
        if time.monotonic() + AGAIN_S > end:
            log.error("this machine cannot be powered off from here")
            return False
        time.sleep(AGAIN_S)


def power_off_commands(root: bool) -> list[list[str]]:
    """Return every way to power off, the best first; an ordinary user needs `sudo`."""
    return [[*(() if root else ("sudo", "-n")), *way] for way in WAYS]


def _has_agreed(command: Sequence[str]) -> bool:
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', os.defpath)}:{ADMIN_PATH}")
    if program is None:
        log.error("there is no %s here", command[0])
        return False
    argv, words = [program, *command[1:]], " ".join(command)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ONE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", words, error)
        return False
    if done.returncode:
        message = (done.stderr or done.stdout).decode(errors="replace").strip()
        log.error("%s ended with exit status %d: %.300s", words, done.returncode, message)
        return False
    log.warning("powering off: %s", words)
    return True


if __name__ == "__main__":
    sys.exit(main())
