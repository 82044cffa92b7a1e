"""Powers the machine off, so that nobody pays for one that is of no use any more.

The one rule: it is the last thing that an agent does. Every way to do it is tried, and tried again
for a while.

An instance launched with InstanceInitiatedShutdownBehavior=terminate is then terminated, not
stopped
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/, "Change the instance initiated shutdown behavior").
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from typing import List, Sequence

WAYS = (("shutdown", "-h", "now"), ("poweroff",), ("systemctl", "poweroff"))
ADMIN_PATH = "/usr/sbin:/sbin"
"""Where these commands are, which is often not on the PATH of a session that is not root's."""
ONE_S = 20.0
AGAIN_S = 5.0
GIVE_UP_S = 600.0
log = logging.getLogger("agent")


def power_off() -> bool:
    """Power the machine off; return whether it has agreed to.

    Blocks, and tries again for `GIVE_UP_S` seconds before it gives up. What is left then is the
    machine's own timer.
    """
    end = time.monotonic() + GIVE_UP_S
    while True:
        if any(_has_agreed(command) for command in commands(os.geteuid() == 0)):
            return True
        if time.monotonic() + AGAIN_S > end:
            log.error("this machine cannot be powered off from here")
            return False
        time.sleep(AGAIN_S)


def commands(root: bool) -> List[List[str]]:
    """Return every way to power off, the best first. All but root use `sudo`, which must not ask
    for a password.
    """
    return [[*(() if root else ("sudo", "-n")), *way] for way in WAYS]


def _has_agreed(command: Sequence[str]) -> bool:
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', os.defpath)}:{ADMIN_PATH}")
    if program is None:
        log.error("there is no %s here", command[0])
        return False
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ONE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", " ".join(command), error)
        return False
    if done.returncode:
        message = (done.stderr or done.stdout).decode(errors="replace").strip()
        log.error(
            "%s ended with exit status %d: %.300s", " ".join(command), done.returncode, message
        )
        return False
    log.warning("powering off: %s", " ".join(command))
    return True
