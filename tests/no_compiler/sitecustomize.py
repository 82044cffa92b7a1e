"""torch without its compiler, for whoever has this folder on PYTHONPATH: each optimizer would import
it, which takes seconds, and nothing is compiled.
"""

import sys
import types


def disable(function=None, recursive=True, **_):
    """Nothing has to be kept from a compiler that is not there."""
    return function if function is not None else disable


compiler = types.ModuleType("torch._dynamo")
compiler.disable = disable
compiler.graph_break = lambda: None
compiler.OptimizedModule = type("OptimizedModule", (), {})
compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
compiler.utils = types.ModuleType("torch._dynamo.utils")
compiler.utils.get_optimize_ddp_mode = lambda: "no_optimization"
sys.modules |= {one.__name__: one for one in (compiler, compiler.utils)}
