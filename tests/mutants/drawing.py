"""Draws mistakes at random: small changes of the code that nobody has chosen.

The one rule: what is drawn could change what seerd does. Annotations, docstrings, texts for people,
what is raised and how objects are printed are left alone.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants.places import ROOT

ROOMS = {
    "core": ("seerd/core",),
    "agent": ("agent",),
    "shell": ("seerd/shell", "seerd/backends", "seerd/stores", "seerd/aws"),
    "planner": ("planner",),
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
FOR_PEOPLE = frozenset({"__repr__", "__str__"})


@dataclass(frozen=True, slots=True)
class Drawn:
    """One mistake.

    file    relative to the project
    around  the lines of what is replaced and of the statements around it, the innermost first
    place   the function or class around it
    name    the constant or field whose value it is, if it is read with its module
    old     the code that is replaced
    new     what stands there instead
    text    the file's whole text with the mistake in it
    """

    file: str
    around: list[range]
    place: str
    name: str
    old: str
    new: str
    text: str


def drawn(room: str, count: int, seed: int) -> list[Drawn]:
    """Draw so many different mistakes of a room: the same ones for the same code and seed."""
    random_numbers = random.Random(f"{room} {seed}")
    sites = [(*site, random_numbers.choice(news)) for *site, news in _sites_of(room)]
    return [_made(*site) for site in random_numbers.sample(sites, min(count, len(sites)))]


@cache
def _sites_of(room: str) -> list[tuple[Path, str, ast.expr | ast.stmt, list[ast.AST]]]:
    trees = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in _files_of(room))
    return [(path, *site) for path, tree in trees for site in _sites(tree)]


def _files_of(room: str) -> list[Path]:
    return [path for folder in ROOMS[room] for path in sorted((ROOT / folder).rglob("*.py"))]


def _made(path: Path, place: str, old: ast.expr | ast.stmt, new: ast.AST) -> Drawn:
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    begin = sum(map(len, lines[: old.lineno - 1])) + old.col_offset
    end = sum(map(len, lines[: (old.end_lineno or 0) - 1])) + (old.end_col_offset or 0)
    written = ast.unparse(new)
    instead = f"({written})" if isinstance(new, ast.expr) else written
    changed = (text[:begin] + instead.encode() + text[end:]).decode()
    file = str(path.relative_to(ROOT))
    compile(changed, file, "exec")
    around, name = _around(ast.parse(text), old)
    was = text[begin:end].decode()
    return Drawn(file, around, place, name, was, written, changed)


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _around(tree: ast.Module, changed: ast.expr | ast.stmt) -> tuple[list[range], str]:
    """Return the lines of what is changed and of the statements around it, the innermost first, and
    the name that gets a value there when the module is read.
    """
    lines, name, is_read_with_module = [], "", True
    block: Sequence[ast.stmt] = tree.body
    while inside := [node for node in block if _is_within(_lines(changed), _lines(node))]:
        (node,) = inside[:1]
        lines, block = [_lines(node), *lines], getattr(node, "body", [])
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                is_read_with_module = False
            case ast.Assign(targets=[ast.Name(id=target)]) if is_read_with_module:
                name = target
            case ast.AnnAssign(target=ast.Name(id=target)) if is_read_with_module:
                name = target
    return [_lines(changed), *lines], name


def _is_within(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


@cache
def uses(name: str) -> dict[str, list[int]]:
    """Return the lines of the rooms that read a constant or field of this name, by file."""
    lines: dict[str, list[int]] = {}
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if name and name in {getattr(node, "id", ""), getattr(node, "attr", "")}:
                lines.setdefault(str(path.relative_to(ROOT)), []).append(node.lineno)
    return lines


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = [path for room in ROOMS for path in _files_of(room)]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


Site = tuple[str, "ast.expr | ast.stmt", "list[ast.AST]"]
"""The place's name, what stands there, and what could stand there instead."""
NOT_ENTERED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
NOT_ENTERED_FIELDS = frozenset({"annotation", "returns", "decorator_list", "bases", "msg"})


def _sites(node: ast.AST, place: str = "") -> Iterator[Site]:
    """Yield all places below a node where a mistake can be made."""
    for child in _children(node):
        name = place
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{place}.{child.name}".lstrip(".")
        elif isinstance(child, (ast.expr, ast.stmt)) and (news := list(_mistakes(child, name))):
            yield name or "module", child, news
        if isinstance(child, (ast.If, ast.While)) and not list(_mistakes(child.test, name)):
            yield name, child.test, [ast.UnaryOp(ast.Not(), child.test)]
        if not isinstance(child, ast.Raise):
            yield from _sites(child, name)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is directly below a node, without what is for people and for type checkers, and
    without `strict=`, which changes nothing where its iterables are equally long.
    """
    for field, value in ast.iter_fields(node):
        if field not in NOT_ENTERED_FIELDS and not (
            isinstance(node, ast.ClassDef) and field == "keywords"
        ):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_for_people(child):
                    yield child


def _is_for_people(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name("log")))):
            return True
        case ast.keyword(arg="strict"):
            return True
        case ast.FunctionDef(name=name):
            return name in FOR_PEOPLE
        case ast.Assign(value=ast.Call(func=ast.Name("TypeVar"))):
            return True
    return isinstance(node, NOT_ENTERED)


def _mistakes(node: ast.expr | ast.stmt, place: str) -> Iterator[ast.AST]:  # noqa: C901
    """Yield what could stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (_with(node, ops=[other()]) for other in COMPARISONS[type(op)])
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd()) if not place:
            return  # a type, or flags of a pattern
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            if not any(map(_is_text, (left, right))):
                yield _with(node, op=OPERATORS[type(op)]())
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            others = dict.fromkeys((value + 1, value - 1, value * 2))
            yield from (ast.Constant(other) for other in others if other != value)
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            yield from node.values[:1]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Call(func=ast.Name(id=name)) if name in OPPOSITES:
            yield _with(node, func=ast.Name(OPPOSITES[name]))
        case ast.Call(args=[first, second, *others]) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred) and ast.dump(first) != ast.dump(second):
                yield _with(node, args=[second, first, *others])
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return()
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield ast.Pass()
        case ast.Continue() | ast.Break() | ast.Raise() | ast.Delete():
            yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a node with other fields; the conditions of `if` and `while` are expressions, too."""
    values = {**dict(ast.iter_fields(node)), **fields}
    return type(node)(**values)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
