"""The proof: `seerd`'s policies beside other tools, each by its own code, on one simulated clock
(docs/comparison.md).

The one rule: what is chosen is chosen on the tasks of `dev`; those of `test` are looked at once.
"""
