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
    below = levels - 1
    match node:
        case ast.Constant(bool() | int() | float() | str() as value):
            return lambda config: value
        case ast.Name(name):
            return _name(name)
        case ast.BinOp(first, op, second) if type(op) in ARITHMETIC:
            apply = ARITHMETIC[type(op)]
            left, right = _computed(first, below), _computed(second, below)
            return lambda config: apply(_number(left(config)), _number(right(config)))
        case ast.UnaryOp(ast.Not(), inner):
            operand = _computed(inner, below)
            return lambda config: not operand(config)
        case ast.UnaryOp(op, inner) if type(op) in SIGNS:
            sign, operand = SIGNS[type(op)], _computed(inner, below)
            return lambda config: sign(_number(operand(config)))
        case ast.BoolOp(op, values):
            parts = [_computed(part, below) for part in values]
            joined = all if isinstance(op, ast.And) else any
            return lambda config: joined(bool(part(config)) for part in parts)
        case ast.Compare() if all(type(sign) in COMPARISONS for sign in node.ops):
            return _comparison(node, below)
        case ast.Call(ast.Name(name), _, []) if name in FUNCTIONS:
            return _call(node, name, below)
    raise ValueError(
        f"{ast.unparse(node):.80} is not allowed: parameters, numbers, texts, comparisons, "
        "+ - * / // % **, and, or, not, min, max and abs are"
    )


def _name(name: str) -> Compute:
    if name in FUNCTIONS:
        raise ValueError(f"{name} is a function: {name}(...)")
    return (lambda config: WORDS[name]) if name in WORDS else (lambda config: config[name])


def _comparison(node: ast.Compare, levels: int) -> Compute:
    operands = [_computed(part, levels) for part in (node.left, *node.comparators)]
    compares = [COMPARISONS[type(sign)] for sign in node.ops]

    def compute(config: Config) -> bool:
        values = [operand(config) for operand in operands]
        pairs = zip(compares, values, values[1:], strict=False)
        return all(compare(left, right) for compare, left, right in pairs)

    return compute


def _call(node: ast.Call, name: str, levels: int) -> Compute:
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
