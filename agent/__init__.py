"""What runs beside the trials on every instance: starts and stops their processes, keeps their
checkpoints and logs, and tells the daemon every fact exactly once. Standard library only (Python
3.9 or newer), imports nothing of seerd or planner, ships as one zip.
"""
