"""Trains the network: a report for each pass."""

import device

import seerd

trial = seerd.trial()
network = device.Network(trial.config["lr"])
trial.track(**network.tracked())
while trial.running():
    trial.report(accuracy=network.epoch())
