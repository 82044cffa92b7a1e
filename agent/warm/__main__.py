"""Started by the agent as `python -u PATH/warm/__main__.py DESCRIPTOR AGENT PADDING`, with the
descriptor of its socket and the agent's process id. `serve` returns only in a forked child, with
its work, which so runs on an empty stack.
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
