"""Why a run went as it did, from its events and decisions, with the reasons that were recorded.

Nothing is decided or guessed here. `timeline` reads a run; `reasons` makes explanations of each
entry; `costs` divides the ledger; `as_json`, `sentences` and `pages` render all this.
"""
