"""Imported by each Python of an attempt on a part of a GPU when it starts (docs.python.org,
`site`): holds it to its share, and imports the `sitecustomize` that it would have had.
"""

import sys
import types
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from seerd.agent.warm.gpu_share import hold

hold()
own = str(Path(__file__).parent)
spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if entry != own])
sys.modules[__name__] = module = (
    types.ModuleType(__name__) if spec is None else module_from_spec(spec)
)
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(module)
