"""A large state: `lr` is how good the trial is. Reports are slow until it comes back."""

import os
import time

import device

import seerd

trial = seerd.trial()
state = device.State(int(os.environ["BENCH_MIB"]))
trial.track(state=state)
is_first = os.environ["SEERD_ATTEMPT"].endswith("/1")
while trial.running():
    time.sleep(0.3 if is_first else 0.02)
    state.mark += 1
    trial.report(accuracy=trial.config["lr"], mark=state.mark)
