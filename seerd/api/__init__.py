"""What `import seerd` gives to scripts and notebooks. Nothing is decided here that a command does
not decide. Errors are raised, never printed.
"""

from seerd.api.handle import Best, Run, load
from seerd.api.running import run, run_async

__all__ = ["Best", "Run", "load", "run", "run_async"]
