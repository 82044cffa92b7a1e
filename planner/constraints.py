"""Constraints: what a configuration has to satisfy, as expressions that users write.

Every node of the syntax tree is known here; nothing is ever run as Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from seerd.planner.parameter import Config, Value

Compute = Callable[[Config], Value]

LONGEST = 500  # most characters of an expression
DEEPEST = 30  # most levels of an expression: deeper ones could exhaust the stack

WORDS: dict[str, Value] = {"true": True, "false": False}  # names that mean a value, as in TOML

ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
SIGNS: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}


@dataclass(frozen=True, slots=True)
class Constraint:
    """An expression that was understood."""

    text: str  # as it was written
    names: frozenset[str]  # the parameters that it names
    # whether a configuration that has these parameters satisfies it. Raises `TypeError` if texts
    # are taken for numbers, `ArithmeticError` or `ValueError` if there is no result
    compute: Callable[[Config], bool]

    def met(self, config: Config) -> bool:
        """Return whether a configuration has a result that satisfies it, or no such parameter."""
        if not self.names <= config.keys():
            return True
        try:
            return self.compute(config)
        except (ArithmeticError, TypeError, ValueError):
            return False

    def mistaken(self, config: Config) -> str:
        """Say which text it takes for a number in a configuration; empty if none."""
        if not self.names <= config.keys():
            return ""
        try:
            self.compute(config)
        except TypeError:
            values = ", ".join(f"{name} = {config[name]!r:.80}" for name in sorted(self.names))
            has_list = any(isinstance(config[name], tuple) for name in self.names)
            return f"it takes a {'list' if has_list else 'text'} for a number where {values}"
        except (ArithmeticError, ValueError):
            pass
        return ""


@lru_cache(maxsize=1024)
def constraint(text: str) -> Constraint:
    """Read an expression. Raises `ValueError` that says what is wrong with it."""
    if len(text) > LONGEST:
        raise ValueError(f"at most {LONGEST} characters are allowed")
    try:
        tree = _Dotted().visit(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"it cannot be read as an expression: {why}") from error
    negated = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    if not negated and not isinstance(tree, ast.Compare | ast.BoolOp):
        raise ValueError("a comparison is needed, for example lr * batch <= 4")
    compute = _computed(tree, DEEPEST)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parameters = frozenset(names - FUNCTIONS.keys() - WORDS.keys())
    return Constraint(text, parameters, lambda config: bool(compute(config)))


class _Dotted(ast.NodeTransformer):
    """Makes one name of a name with points."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = ast.unparse(node)
        return ast.Name(name) if all(map(str.isidentifier, name.split("."))) else node


def _computed(node: ast.expr, levels: int) -> Compute:
    """Return the function that computes a node. Raises `ValueError` for one that is not allowed."""
    if levels == 0:
        raise ValueError(f"more than {DEEPEST} levels of parentheses and operators")
    make = _MAKE.get(type(node))
    if make is None:
        raise _refused(node)
    return make(node, levels - 1)


def _refused(node: ast.expr) -> ValueError:
    return ValueError(
        f"{ast.unparse(node):.80} is not allowed: parameters, numbers, texts, comparisons, "
        "+ - * / // % **, and, or, not, min, max and abs are"
    )


def _constant(node: ast.Constant, levels: int) -> Compute:
    value = node.value
    if not isinstance(value, bool | int | float | str):
        raise _refused(node)
    return lambda config: value


def _name(node: ast.Name, levels: int) -> Compute:
    name = node.id
    if name in FUNCTIONS:
        raise ValueError(f"{name} is a function: {name}(...)")
    if name in WORDS:
        return lambda config: WORDS[name]
    return lambda config: config[name]


def _arithmetic(node: ast.BinOp, levels: int) -> Compute:
    apply = ARITHMETIC.get(type(node.op))
    if apply is None:
        raise _refused(node)
    left, right = _computed(node.left, levels), _computed(node.right, levels)
    return lambda config: apply(_number(left(config)), _number(right(config)))


def _unary(node: ast.UnaryOp, levels: int) -> Compute:
    operand = _computed(node.operand, levels)
    if isinstance(node.op, ast.Not):
        return lambda config: not operand(config)
    apply = SIGNS.get(type(node.op))
    if apply is None:
        raise _refused(node)
    return lambda config: apply(_number(operand(config)))


def _logic(node: ast.BoolOp, levels: int) -> Compute:
    parts = [_computed(part, levels) for part in node.values]
    joined = all if isinstance(node.op, ast.And) else any
    return lambda config: joined(bool(part(config)) for part in parts)


def _comparison(node: ast.Compare, levels: int) -> Compute:
    operands = [_computed(part, levels) for part in (node.left, *node.comparators)]
    signs = [COMPARISONS.get(type(sign)) for sign in node.ops]
    compares = [sign for sign in signs if sign is not None]
    if len(compares) < len(signs):
        raise _refused(node)

    def compute(config: Config) -> bool:
        values = [operand(config) for operand in operands]
        pairs = zip(compares, values, values[1:], strict=False)
        return all(compare(left, right) for compare, left, right in pairs)

    return compute


def _call(node: ast.Call, levels: int) -> Compute:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in FUNCTIONS or node.keywords:
        raise _refused(node)
    if len(node.args) != 1 if name == "abs" else len(node.args) < 2:
        needed = "one argument" if name == "abs" else "two arguments or more"
        raise ValueError(f"{ast.unparse(node)}: {name} takes {needed}")
    apply, arguments = FUNCTIONS[name], [_computed(part, levels) for part in node.args]
    return lambda config: apply(*(_number(part(config)) for part in arguments))


def _number(value: Value) -> float:
    """Return a value as a number: texts are not multiplied, and no integer grows without bound."""
    if isinstance(value, str | tuple):
        raise TypeError(f"{value!r:.80} is no number")
    return float(value)


_MAKE: dict[type[ast.expr], Callable[..., Compute]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _arithmetic,
    ast.UnaryOp: _unary,
    ast.BoolOp: _logic,
    ast.Compare: _comparison,
    ast.Call: _call,
}
