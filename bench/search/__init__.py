"""The parts of the search bench (`bench/search_quality.py`): what is run, and what it comes to.

The one rule: a run follows from its task alone, so the answer is the same on any number of cores.
"""
