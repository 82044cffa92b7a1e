"""What runs beside the trials on every instance. It starts and stops their processes, keeps their
checkpoints and logs, and tells the daemon every fact exactly once.

It uses the standard library only (Python 3.9 or newer), imports nothing else of seerd or planner,
and ships as one zip.
"""

KEPT = 2
"""How many of a trial's newest checkpoints stay, beside the best one. If the newest is damaged, the
one before is used.
"""
