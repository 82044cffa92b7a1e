"""The pure decision core: events in, commands out. No clock, no I/O, no randomness; it may import
planner and nothing else of ours.
"""
