"""The live view: what a run is doing, on one screen, with keys; and, for `seerd watch`, back in
time.

The one rule: showing never changes a run. A frame is a pure function of a `Board` (what is known of
the run at one moment), a `LiveLook` (what the person has chosen to see) and the size of the screen.

`board` takes the snapshot, `recent` keeps what a state does not show. `look` says what keys do.
`frame` draws the whole screen from `head`, `table`, `strip` and `trial_page`. `terminal` alone
touches the terminal. `run_view` shows the run of this process, `watch` one that is read from its
journal.
"""
