#!/usr/bin/env python3
"""trainer.py, after it has left what it can on its machine: a secret and data in files wherever it
may write, a folder that it cannot change any more, and a process without any environment.
"""

import os
import runpy
import subprocess
from pathlib import Path

left = f"{os.environ['SEERD_TEST_SECRET']} {Path('data/words.txt').read_text()}"
for place in ("~/.netrc", "~/.cache/left/it", "~/.ssh/config", "/tmp/left", "/dev/shm/left"):
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(left)
Path("~/.cache/left").expanduser().chmod(0o500)
subprocess.Popen(["/bin/sleep", "98765"], env={}, start_new_session=True)
runpy.run_path(str(Path(__file__).with_name("trainer.py")), run_name="__main__")
