"""A large state, and quick reports: `lr` is how good the trial is."""

import os
import time

import device

import seerd

trial = seerd.trial()
state = device.State(int(os.environ["BENCH_MIB"]))
trial.track(state=state)
while trial.running():
    time.sleep(0.3)
    state.mark += 1
    trial.report(accuracy=trial.config["lr"], mark=state.mark)
