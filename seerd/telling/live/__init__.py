"""The live view: what a run is doing, on one screen, with keys, also back in time.

A frame is a pure function of a `Board` (the run at one moment), a `LiveLook` (what the user has
chosen to see) and the size. `terminal` alone touches the terminal.
"""
