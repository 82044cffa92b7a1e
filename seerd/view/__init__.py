"""Everything that people and scripts are shown; nothing is decided here."""
