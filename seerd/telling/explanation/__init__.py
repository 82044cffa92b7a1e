"""Why a run went as it did, told from its events and decisions, with the reasons that were
recorded.

The one rule: nothing is decided or guessed here. What a journal does not say is told as unknown.

`timeline` reads a run entry by entry. `reasons` turns each entry into `explanations`, and
`attempts` keeps those of trials. `costs` divides the ledger between the chapters of the timeline.
`as_json` makes JSON of all this; `sentences` says it, using `words`; `pages` are printed.
"""
