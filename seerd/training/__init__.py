"""The training side: what a training script uses of seerd, in each of its processes (ranks).

    trial = seerd.trial()                            # in every rank
    trial.track(model=model, optimizer=optimizer)    # restores the last checkpoint if there is one
    while trial.running():                           # the same answer on every rank
        ...                                          # an epoch, or any unit of work
        trial.report(accuracy=accuracy)              # rank 0's counts

The one rule: seerd touches nothing between two calls of `running()`. There, and only there, all
ranks agree (by one small all_reduce) whether to leave and whether to save.

It travels in the agent's zip and runs with the script's own Python (3.9 or newer). It needs the
standard library alone, and uses torch if it is there. Environment variables, files and the format
of checkpoints are in docs/training-side.md.
"""
