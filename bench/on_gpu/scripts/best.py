"""Random reports: the state has the number of the report that it was in."""

import random
import time

import device

import seerd

trial = seerd.trial()
state = device.State(64)
trial.track(state=state)
while trial.running():
    state.mark += 1
    time.sleep(0.3)
    trial.report(accuracy=random.random(), mark=state.mark)
