"""What `import seerd` gives to scripts and notebooks that begin runs or look at them: as thin as
the command line.

The one rule: nothing is decided here that a command does not decide. Errors are raised, never
printed, and a run is shown only where somebody looks.
"""

from seerd.api.handle import Best, Run, load
from seerd.api.running import run, run_async

__all__ = ["Best", "Run", "load", "run", "run_async"]
