"""Why a run went as it did, from its events and decisions, with the reasons that were recorded.

Nothing is decided or guessed here. `timeline` reads a run and divides what it cost; `reasons` makes
explanations of each entry; `as_json`, `sentences` and `pages` render all this.
"""
