"""A simulated world around the real core: no clock and no processes, and the same result for the
same seed.
"""
