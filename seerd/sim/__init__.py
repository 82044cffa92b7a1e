"""A simulated world around the real core: no clock, no processes, one result for one seed."""
