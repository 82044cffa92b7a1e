"""Frozen data classes: what `dataclass(frozen=True)` makes, in a tenth of the time.

The one rule: an instance is paid for while its agent starts. `dataclass` writes, compiles and runs
the methods of each class as text, which takes a millisecond; here all classes share their methods.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, Callable, Dict, NoReturn, Tuple, Type, TypeVar

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_promises):
        """Stand in for what only type checkers use; `typing` has it since Python 3.11."""
        return lambda decorator: decorator


Class = TypeVar("Class")
_NAMES: Dict[type, Tuple[str, ...]] = {}
_DEFAULTS: Dict[type, Dict[str, Callable[[], Any]]] = {}


@dataclass_transform(frozen_default=True)
def record(cls: Type[Class]) -> Type[Class]:
    """Make a frozen data class. `fields`, `replace` and `asdict` of `dataclasses` know it."""
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    _NAMES[cls] = tuple(field.name for field in fields(made))
    _DEFAULTS[cls] = {
        field.name: _always(field.default)
        if field.default_factory is MISSING
        else field.default_factory
        for field in fields(made)
        if not (field.default is MISSING and field.default_factory is MISSING)
    }
    for method in (_init, _repr, _eq, _hash, _setattr, _delattr):
        setattr(made, f"_{method.__name__}__", method)
    return cls


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def _init(self: Any, *values: Any, **named: Any) -> None:
    names, defaults = _NAMES[type(self)], _DEFAULTS[type(self)]
    given = dict(zip(names, values))
    if len(values) > len(names) or given.keys() & named.keys():
        raise TypeError(f"{type(self).__name__} takes {', '.join(names)}, each once")
    given.update(named)
    for name in defaults.keys() - given.keys():
        given[name] = defaults[name]()
    if given.keys() != set(names):
        wrong = ", ".join(sorted(given.keys() ^ set(names)))
        raise TypeError(
            f"{type(self).__name__} takes {', '.join(names)}; missing or unknown: {wrong}"
        )
    self.__dict__.update(given)


def _values(self: Any) -> Tuple[Any, ...]:
    return tuple(getattr(self, name) for name in _NAMES[type(self)])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in zip(_NAMES[type(self)], _values(self)))
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _setattr(self: Any, name: str, value: object) -> NoReturn:  # noqa: ARG001
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> NoReturn:  # noqa: ARG001
    raise FrozenInstanceError(f"cannot delete field {name!r}")
