"""Holds memory of the device until it is killed, or has made its reports; each is a line."""

import os
import time

import device

import seerd

trial = seerd.trial()
state = device.State(64)
trial.track(state=state)
memory = device.hold(int(os.environ["BENCH_MIB"]))
while trial.running() and trial.epoch < int(os.environ["BENCH_REPORTS"]):
    time.sleep(0.1)
    state.mark += 1
    trial.report(accuracy=1 - 1 / (2 + state.mark))
    with open(os.environ["BENCH_OUT"], "a") as out:
        out.write(f"{os.getpid()}\n")
