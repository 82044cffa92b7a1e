"""Leave a machine that waits for another run, so that nothing of this one stays there. The machine
and the user were made for seerd: whatever this user has, and is not needed to log in, is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Iterator

from seerd.agent import host

END_IN = "/run/seerd-end-in"
"""The script by which root moves the machine's own power-off (seerd/aws/userdata.py)."""
ANSWER_S = 15.0
ON_SCRATCH = "seerd"  # this user's home there
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where any user may write
SKELETON = Path("/etc/skel")
LOGINS = ("sshd", "systemd", "(sd-pam)")
"""How the names of processes begin by which the user is logged in."""


class LettingGoError(Exception):
    """The machine cannot be left: it does not confirm its end, or something of a run stays."""


def end_in(seconds: float) -> float:
    """Have the machine power itself off in so many whole seconds, and at no other time; return by
    when it does, in seconds of the monotonic clock. Raises `LettingGoError` unless it confirms it.
    """
    whole = int(seconds)
    if whole <= 0:
        raise LettingGoError("it would have to end at once")
    command = [*([] if os.geteuid() == 0 else ["sudo", "-n"]), "/bin/sh", END_IN, str(whole)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LettingGoError(f"it does not set its own end: {error}") from None
    if done.returncode or done.stdout.split() != [b"ends", b"in", str(whole).encode()]:
        answer = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise LettingGoError(f"it does not confirm its own end: {answer}")
    return time.monotonic() + whole


def clean(scratch: str = "") -> None:
    """Kill everything of this user but the login, and remove its files, also those on the disk that
    is mounted at `scratch` (empty: none is). Raises `OSError` and `LettingGoError`.
    """
    user = os.getuid()
    if user == 0:
        raise LettingGoError("root's files are not a run's")
    spared = _ancestors()
    if left := host.kill(lambda: _others(user, spared), set(), spared=spared):
        raise LettingGoError(f"the processes {sorted(left)} cannot be killed")
    home = Path.home()
    os.chdir("/")
    for path in (*home.iterdir(), *(home / ".ssh").glob("*")):
        if path != home / ".ssh" and path.name != "authorized_keys":
            _remove(path)
    for top in (*SHARED, *filter(None, [scratch and os.path.join(scratch, ON_SCRATCH)])):
        for entry in os.scandir(top):
            with contextlib.suppress(FileNotFoundError):  # somebody else may tidy up too
                if entry.stat(follow_symlinks=False).st_uid == user:
                    _remove(Path(entry.path))
    if SKELETON.is_dir():
        shutil.copytree(SKELETON, home, dirs_exist_ok=True)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for top, folders, _ in os.walk(path):  # those that trials have made read-only
        for name in folders:
            if not os.path.islink(os.path.join(top, name)):
                os.chmod(os.path.join(top, name), 0o700)
    shutil.rmtree(path)


def _others(user: int, spared: set[int]) -> Iterator[int]:
    for pid in (int(name) for name in os.listdir(host.PROC) if name.isdecimal()):
        try:
            is_own = os.stat(f"{host.PROC}/{pid}").st_uid == user
            name = Path(f"{host.PROC}/{pid}/comm").read_text()
        except OSError:
            continue
        if is_own and pid not in spared and not name.startswith(LOGINS) and host.is_there(pid):
            yield pid


def _ancestors() -> set[int]:
    """Return this process and those that have started it."""
    pids, pid = set(), os.getpid()
    while pid > 1:
        pids.add(pid)
        status = Path(f"{host.PROC}/{pid}/status").read_text()
        pid = int(status.partition("\nPPid:")[2].split()[0])
    return pids
