"""A run for other programs: tables, and trackers' formats; exporting again adds nothing twice."""
