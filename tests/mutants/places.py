"""Where a mistake is made: a name in the product, and a piece of the code that has this name.

The one rule: what is compared are syntax trees, so neither a file's path, nor how its lines are
wrapped, nor a comment is part of the list.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_PRODUCT = frozenset({"tests", "bench", "docs", "examples", "build", "dist"})


class ListError(Exception):
    """The list of mutants is not true any more: a place or its code has changed, or its tests."""


@dataclass(frozen=True, slots=True)
class Named:
    """A function, a class or a constant: its file, its module's name and its own within that."""

    path: Path
    module: tuple[str, ...]
    name: tuple[str, ...]

    def is_called(self, place: tuple[str, ...]) -> bool:
        """Whether `place` is the end of its full name; one word alone is no method's."""
        ends = (*self.module, *self.name)[-len(place) :] == place
        return ends and len(place) >= min(2, len(self.name))


def where(place: str) -> Named:
    """Find what has this name in the product. Raises `ListError`: nothing, or more than one."""
    parts = tuple(place.split("."))
    found = {one for one in _product().get(parts[-1], ()) if one.is_called(parts)}
    if len(found) != 1:
        full = sorted(".".join((*one.module, *one.name)) for one in found)
        said = f"is any of {', '.join(full)}: put the module before it" if full else "is not there"
        raise ListError(f"{place} {said}")
    return found.pop()


def changed(place: Named, old: str, new: str) -> str:
    """Make the mistake in the text of the place's file. Raises `ListError` unless `old` is there
    once.

    Both are expressions, or both are statements (`new` may be empty). A dict stands for entries
    of a larger one, a text for a part of a longer one.
    """
    file = _read_file(place.path.read_text(encoding="utf-8"))
    places = [
        (at, node)
        for at, statement in enumerate(file.tree.body)
        for name, node in _names([statement], ())
        if name == place.name
    ]
    edits = [(at, edit) for at, scope in places for edit in _edits(scope, old, new)]
    if len(edits) != 1:
        name = ".".join(place.name)
        raise ListError(f"this stands {len(edits)} times in {name} of {place.path}:\n{old}")
    ((at, edit),) = edits
    with edit.made():
        return _joined([*file.texts[:at], ast.unparse(file.tree.body[at]), *file.texts[at + 1 :]])


def unchanged(path: Path) -> str:
    """Return a file's code as `changed` writes it: without comments, wrapped alike."""
    return _joined(_read_file(path.read_text(encoding="utf-8")).texts)


def _joined(statements: Sequence[str]) -> str:
    return "\n".join(statements) + "\n"


@dataclass(frozen=True, slots=True)
class _File:
    """A file's tree, and the code of each of its statements."""

    tree: ast.Module
    texts: list[str]


@lru_cache(maxsize=1)
def _read_file(text: str) -> _File:
    """Read it once for all mistakes in it, each of which is undone: this takes longest."""
    tree = ast.parse(text)
    return _File(tree, [ast.unparse(statement) for statement in tree.body])


@cache
def _product() -> dict[str, set[Named]]:
    """All of them, by the last word of their names."""
    found = defaultdict(set)
    tops = [top for top in ROOT.iterdir() if top.name not in NO_PRODUCT and top.name[0] != "."]
    for path in (path for top in tops for path in (top, *top.rglob("*")) if path.suffix == ".py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = parts[:-1] if parts[-1] == "__init__" else parts
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for name, _ in _names(body, ()):
            found[name[-1]].add(Named(path, module, name))
    return found


def _names(
    body: Sequence[ast.stmt], prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    """Functions, classes and constants, and those in classes. A name may stand several times."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield (*prefix, node.name), node
            case ast.ClassDef():
                yield (*prefix, node.name), node
                yield from _names(node.body, (*prefix, node.name))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield (*prefix, name), node


def _edits(scope: ast.stmt, old: str, new: str) -> Iterator[_Edit]:
    """One for each place in `scope` where `old` could become `new`."""
    match _read(old), _read(new):
        case [ast.Expr(ast.Constant(str(was)))], [ast.Expr(ast.Constant(str(becomes)))]:
            yield from _in_texts(scope, was, becomes)
        case [ast.Expr(ast.Dict() as was)], [ast.Expr(ast.Dict() as becomes)]:
            yield from _in_dicts(scope, was, becomes)
        case [ast.Expr(was)], [ast.Expr(becomes)]:
            yield from _in_expressions(scope, was, becomes)
        case were, become:
            yield from _in_blocks(scope, were, become)


def _read(code: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except SyntaxError:
        raise ListError(f"this is no code:\n{code}") from None


def _in_texts(scope: ast.stmt, old: str, new: str) -> Iterator[_Edit]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.replace(old, new, 1)
            for _ in range(node.value.count(old)):
                yield _Edit(node, {"value": text})


def _in_dicts(scope: ast.stmt, old: ast.Dict, new: ast.Dict) -> Iterator[_Edit]:
    wanted, becomes = (list(zip(one.keys, one.values, strict=True)) for one in (old, new))
    for node in ast.walk(scope):
        if isinstance(node, ast.Dict):
            entries = list(zip(node.keys, node.values, strict=True))
            for at in _found(entries, wanted):
                after = entries[:at] + becomes + entries[at + len(wanted) :]
                keys, values = [key for key, _ in after], [value for _, value in after]
                yield _Edit(node, {"keys": keys, "values": values})


def _in_expressions(scope: ast.stmt, old: ast.expr, new: ast.expr) -> Iterator[_Edit]:
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and _same(value, old):
                yield _Edit(node, {field: new})
            elif isinstance(value, list):
                for at, one in enumerate(value):
                    if isinstance(one, ast.expr) and _same(one, old):
                        yield _Edit(node, {field: [*value[:at], new, *value[at + 1 :]]})


def _in_blocks(scope: ast.stmt, old: list[ast.stmt], new: list[ast.stmt]) -> Iterator[_Edit]:
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                for at in _found(value, old):
                    after = [*value[:at], *new, *value[at + len(old) :]]
                    yield _Edit(node, {field: after or [ast.Pass()]})


@dataclass(frozen=True, slots=True)
class _Edit:
    """Gives fields of a node other values."""

    node: ast.AST
    fields: dict[str, object]

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make it, and undo it at the end."""
        before = {field: getattr(self.node, field) for field in self.fields}
        self._set(before | self.fields)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, fields: dict[str, object]) -> None:
        for field, value in fields.items():
            setattr(self.node, field, value)


def _found(items: Sequence[object], wanted: Sequence[object]) -> Iterator[int]:
    """The places where `wanted` begins in `items`."""
    for at in range(len(items) - len(wanted) + 1):
        if all(map(_same, items[at : at + len(wanted)], wanted)):
            yield at


def _same(one: object, other: object) -> bool:
    """Whether two nodes, or pairs of nodes, are the same code."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(_same, one, other))
    if isinstance(one, ast.AST) and isinstance(other, ast.AST):
        return type(one) is type(other) and ast.unparse(one) == ast.unparse(other)
    return one is other
