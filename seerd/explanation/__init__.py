"""Why a run went as it did: told from its events and from what was decided, with the reasons that
were recorded.

The one rule: nothing is decided or guessed here. What a journal does not say is told as unknown.

`timeline` reads a run entry by entry; `reasons` says what each entry means, as `explanations`, and
`attempts` keeps those of trials. `costs` divides the ledger between the chapters of the timeline.
`as_json` turns all of it into JSON, `sentences` says it in `words`, `pages` are what is printed.
"""
