"""The report of a run: one HTML file, readable without network and without scripts."""
