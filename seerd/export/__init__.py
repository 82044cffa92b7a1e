"""A run for other programs: tables, and the formats of trackers. Exporting again adds nothing
twice.
"""
