"""Started in a container as `python -u keeper.py SOCKET MARK`, in the agent's folder: starts the
warm process there, and stays as the first process of the container, which would end with it.

The one rule: forks whose parents have ended come to the keeper, so it writes their exit statuses
for the agent, whose children they cannot be. It ends when none is left.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder; what is in it is imported by its whole name

from seerd.agent import host
from seerd.agent.warm import identity

OF_ENGINES = ("HOSTNAME", "TERM", "container")
"""Variables of engines' own: what its forks are not given would seem to be removed by scripts."""


def main(address: str, mark: str) -> None:
    """Start the warm process, connected with the agent; write how others end."""
    host.adopt_orphans()
    own = {name: value for name, value in os.environ.items() if name not in OF_ENGINES}
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(address)
        argv = [sys.executable, "-u", program, str(control.fileno()), str(os.getpid())]
        server = subprocess.Popen(
            [*argv, " " * identity.ARGUMENTS],
            env={**own, host.MARKER: identity.padded(mark)},
            pass_fds=[control.fileno()],
        )
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            if pid != server.pid:
                name = identity.ENDED.format(pid)
                with open(f".{name}", "w") as file:
                    file.write(str(status))
                os.replace(f".{name}", name)


if __name__ == "__main__":
    main(*sys.argv[1:])
