"""What other programs are given of a run: tables, and the formats of trackers.

The one rule: what is exported follows from the journal alone, so that exporting again adds nothing
twice.
"""
