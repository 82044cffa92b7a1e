"""Why a run went as it did: told from its events and from what was decided, with the reasons that
were recorded.

The one rule: nothing is decided or guessed here. What a journal does not say is told as unknown.

`historian` reads a run entry by entry; `facts` and `decisions` say what each entry means, as
`beats`, and `chapters` and `attempts` keep them. `costs` divides the ledger between chapters;
`moment` describes the state at one moment. `told` turns all of it into JSON, `words` into
sentences, `pages`, `trial_page` and `moment_page` into what is printed.
"""
