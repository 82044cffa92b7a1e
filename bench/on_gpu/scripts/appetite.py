"""Holds memory of the device: BENCH_MIB where `lr` is large, else a part of that."""

import os
import time

import device

import seerd

trial = seerd.trial()
state = device.State(8)
trial.track(state=state)
mib = int(os.environ["BENCH_MIB"])
memory = device.hold(mib if trial.config["lr"] > 0.05 else mib // 8)
while trial.running():
    time.sleep(0.2)
    state.mark += 1
    trial.report(accuracy=1 - 1 / (2 + state.mark))
