"""The training side: what a training script uses of seerd, in each of its processes (ranks).

    trial = seerd.trial()                            # in every rank
    trial.track(model=model, optimizer=optimizer)    # restores the last checkpoint if there is one
    while trial.running():                           # the same answer on every rank
        ...                                          # an epoch, or any unit of work
        trial.report(accuracy=accuracy)              # rank 0's counts

The one rule: seerd touches nothing between two calls of `running()`. There, and only there, all
ranks agree (by one small all_reduce) whether to leave and whether to save.

    trial.py          the public class, `Trial`, and how its parts work together
    attempt.py        what the agent says about this attempt, and what it reports
    by_hand.py        the configuration of a script that was started without seerd
    ranks.py          the processes of the trial: the process group, and what all must agree on
    data.py           global batches, split over the ranks; samplers
    checkpoints.py    files of checkpoints: written, checked, read
    randomness.py     random states: seeded, saved, restored
    marks.py          what the agent sees of this rank; backward passes and steps, counted
    pace.py           how long units of work and saves take, and how much of the training is over
    end.py            how this process ends
    framework.py      a trial whose training loop is a framework's
    for_transformers.py, for_lightning.py    callbacks for these
    observer/         takes part for a script that does not import seerd

It travels in the agent's zip and runs with the script's own Python (3.9 or newer). It needs the
standard library alone, and uses torch if it is there. Environment variables, files and the format
of checkpoints are in docs/training-side.md.
"""
