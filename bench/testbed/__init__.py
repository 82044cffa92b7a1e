"""Real parts to try seerd on, for tests and benchmarks: instances that are rented, agents, a clock.

The one rule: nothing here knows of a test or of a benchmark.
"""
