"""The pure decision core: events in, commands out.

The one rule: no clock, no I/O, no randomness. It may import `planner` and nothing else of seerd.
"""
