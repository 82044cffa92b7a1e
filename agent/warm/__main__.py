"""Started by the agent as `python -u PATH/warm/__main__.py DESCRIPTOR AGENT PADDING`: the
descriptor of its socket, and the agent's process id. It is started as a file, since the interpreter
ends modules that are interrupted in another way than scripts.

The one rule: `serve` comes back in forks alone, with what they are to do, so that what they do runs
on an empty stack.
"""

from __future__ import annotations

import socket
import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder; what is in it is imported by its whole name

from seerd.agent.warm import identity, server

identity.die_with(int(sys.argv[2]))
work = server.serve(socket.socket(fileno=int(sys.argv[1])))
if work is not None:
    work.run()
