"""Why a run went as it did: told from the same steps of the pure core that made it, with what was so before and after each.

The one rule: nothing here is recorded while a run goes on. What is told follows from its journal alone, so that any journal can be explained.

`historian` watches the steps and writes down `beats` (what happened, and a typed reason), of which `reasons_of_trials`, `reasons_of_instances`
and `reasons_of_the_run` find the reasons; `costs` divides the ledger between stages; `moment` describes the state at one moment. `told` turns
all of it into JSON, `words` into sentences, `pages`, `trial_page` and `moment_page` into what is printed.
"""
