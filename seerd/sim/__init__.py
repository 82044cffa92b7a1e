"""A world of events on a heap around the real core: no clock, no processes, the same result for the
same seed.
"""
