"""The warm process: a Python that has imported what trials import, and forks each of their
processes. It saves every start two imports of torch.

    server.py       the process: takes requests of the agent, forks twice for each
    preload.py      imports beforehand, and finds what speaks against it
    identity.py     makes a fork look, from inside and outside, like a process that was started
    script.py       runs a script as `python script.py` does
    torchrun.py     runs torchrun, whose ranks are forked too

The one rule: for the script nothing differs from a start by `torchrun` or `python`. Where something
cannot be the same, the process says so, and its agent starts the attempt in the usual way.

It runs with the script's own Python (3.9 or newer), on Linux alone.
"""
