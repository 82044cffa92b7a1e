"""The report of a run: one HTML file that says which trial won and why, what it cost and where the
money went.

The one rule: pictures are drawn once, here; the page needs no network and no script to be read.
"""
