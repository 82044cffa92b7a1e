"""What runs beside the trials on every instance. It starts and stops their processes, keeps their
checkpoints and logs, and reports every fact to the daemon exactly once.

It uses the standard library only (Python 3.9 or newer), imports nothing else of seerd or planner,
and ships as one zip.
"""

KEPT = 2
"""Newest checkpoints of a trial that stay, beside the best one; a damaged one has a predecessor."""
