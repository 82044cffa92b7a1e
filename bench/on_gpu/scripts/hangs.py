"""The first trial holds memory, and hangs on the device after its second report, when it writes a
line. The other one ends after ten.
"""

import os
import time

import device

import seerd

trial = seerd.trial()
state = device.State(64)
trial.track(state=state)
memory = device.hold(int(os.environ["BENCH_MIB"]))
is_first = "/t0001/" in os.environ["SEERD_ATTEMPT"]
while trial.running() and (is_first or trial.epoch < 10):
    if is_first and trial.epoch == 2:
        with open(os.environ["BENCH_OUT"], "w") as out:
            out.write(f"{os.getpid()} {time.time()}\n")
        device.hang()
    time.sleep(0.1)
    state.mark += 1
    trial.report(accuracy=1 - 1 / (2 + state.mark))
