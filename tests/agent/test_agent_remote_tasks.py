"""How a remote task becomes an agent: it never goes on as what it was."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BECOMES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from seerd.agent import remote_tasks
print("said", end=" ")
pid = os.fork()
if pid == 0:
    os.dup2(2, 300)
    try:
        remote_tasks._become_agent([sys.argv[1], "--no-such-option"], os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY))
    finally:
        os.write(300, b"the task goes on in the agent's process")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_an_agent_that_cannot_even_say_why_it_ends_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", BECOMES, str(ROOT)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout in ("said 1\n", "said 2\n"), (
        "argparse minds that it cannot speak in some versions of Python"
    )
    assert done.stderr == ""
