"""The live view: what a run is doing, on one screen, with keys; and, for `seerd watch`, back in
time.

The one rule: showing never changes a run. A frame is a pure function of a `Board` (what is known of
the run at one moment), a `LiveLook` (what the person has chosen to see) and the size of the screen.

`board` takes the snapshot, `heard` keeps what a state does not say of itself. `look` says what keys
do. `frame` draws the whole screen from `head`, `table`, `strip`, `trial_page` and `help_page`.
`terminal` is the only one that touches the terminal, `keys` only turns bytes into names of keys.
`run_view` shows the run of this process; `player` and `watch` one that is read from its journal.
"""
