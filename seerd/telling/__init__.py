"""Everything that people and scripts are shown.

The one rule: nothing is decided here.
"""
