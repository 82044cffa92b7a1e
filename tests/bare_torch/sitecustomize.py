"""torch without what compiles, traces, exports and quantizes models, for whoever has this folder on
PYTHONPATH: half of the time that an import of torch takes goes to it, and small scripts of tests use
none of it. Frameworks do, and sharded models: they have `no_compiler`.
"""

import sys
import types

ABSENT = (
    *("torch._decomp", "torch._export", "torch._higher_order_ops", "torch._meta_registrations"),
    *("torch._native", "torch._prims", "torch._refs", "torch._subclasses", "torch.ao"),
    *("torch.distributed._meta_registrations", "torch.distributions", "torch.export", "torch.func"),
    *("torch.fx.experimental", "torch.fx.passes", "torch.masked", "torch.nested"),
    *("torch.nn.intrinsic", "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized"),
    "torch.quantization",
)
BELOW = tuple(f"{name}." for name in ABSENT)


class Anything:
    """Any class or function of an absent module; as a decorator it changes nothing."""

    def __new__(cls, *args, **_):
        return args[0] if len(args) == 1 and callable(args[0]) else super().__new__(cls)

    def __call__(self, function=None, *_, **__):
        return function


class Absent(types.ModuleType):
    """A module that has whatever is imported from it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, type(name, (Anything,), {}))


class Finder:
    """Finds absent modules, before any other is asked."""

    @staticmethod
    def find_spec(name, *_):
        if not name.startswith("torch"):
            return None
        from importlib.machinery import ModuleSpec

        if name == "torch":
            from runpy import run_path

            run_path(__file__.replace("bare_torch", "no_compiler"))
        if name in ABSENT or name.startswith(BELOW):
            return ModuleSpec(name, Finder, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return Absent(spec.name)

    @staticmethod
    def exec_module(module):
        if module.__name__ == "torch._meta_registrations":  # imports a module that does this
            import torch._opaque_base

            torch._C._set_generator_metaclass(torch._opaque_base.OpaqueBaseMeta)


sys.meta_path.insert(0, Finder)
