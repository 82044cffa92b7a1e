"""The warm process: a Python that has imported what trials import, and forks each of their
processes. It saves every start two imports of torch.

The one rule: for the script nothing differs from a start by `torchrun` or `python`. Where something
cannot be the same, the process says so, and its agent starts the attempt in the usual way.

It runs with the script's own Python (3.9 or newer), on Linux alone.
"""
