"""Where a script saves, and whether it goes on from there. A path counts if it is inside the folder
that the script runs in; what changes from save to save is a `*`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from seerd.commands.init.options import (
    ScriptOption,
    by_format,
    by_percent,
    called,
    declared,
    keywords_of,
    value_of,
    walked,
)

# last names of calls that save
SAVES = re.compile(
    r"^_?save(?!fig|txt|_?image)|^dump$|^(?:ModelCheckpoint|BackupAndRestore)$|TrainingArguments$"
)
# names of the argument with the path
PATHS = ("filepath", "path", "f", "fname", "backup_dir", "dirpath", "output_dir")
# What is called once, and saves often: what it adds to the folder that it is given.
OFTEN = {"ModelCheckpoint": "/*.ckpt", "BackupAndRestore": "", "TrainingArguments": "/checkpoint-*"}
# what is saved and is no checkpoint
NO_CHECKPOINTS = re.compile(
    r"\.(?:png|jpe?g|gif|pdf|svg|html|csv|tsv|txt|log|ya?ml|npy|mp4|wav)$"
    r"|(?:result|metric|log)s?\.json"
)
LOADS = re.compile(r"load|restore|exists|is_?file|is_?dir|read_text|read_bytes")
HERE = ("__file__", "cwd", "getcwd")
JOINS = (
    *("join", "joinpath", "Path", "PurePath", "PosixPath", "str", "fspath", "abspath", "realpath"),
)
ITSELF = ("resolve", "absolute", "expanduser", "as_posix", "format")
# options that name the folder to save to
FOLDERS = (
    *("output_dir", "out_dir", "outdir", "outf", "save_dir", "savedir", "workdir", "work_dir"),
    *("output", "save_path", "checkpoint_dir", "ckpt_dir", "model_dir", "logdir", "log_dir"),
)
OUT = "out"
LATEST = re.compile(r"last|latest|checkpoint|ckpt|state")
OLDEST = 8
MOST_NAMES = 60  # names that are looked up for one path: one that needs more cannot be read off


@dataclass(slots=True)
class Saves:
    """What a script saves."""

    paths: list[str]  # paths of checkpoints, the one to go on from first
    at_end: bool = False  # whether it saves only when it has trained
    resumes: bool = False  # whether it looks for them by itself


def given_folder(option: ScriptOption) -> bool:
    """Return whether an option must be given a folder, so that what is saved is the trial's own."""
    inside = isinstance(option.default, str) and option.default not in ("", "/")
    leaves = inside and option.default.startswith(("/", "~", ".."))
    return option.word in FOLDERS and option.kind != "bool" and (not inside or leaves)


def saves_of(trees: list[ast.Module], options: list[ScriptOption]) -> Saves:
    """Return where a script, with its own modules, saves."""
    values = NamedValues(trees, options)
    calls = [row for tree in trees for row in _calls(tree, "", looped=False)]
    again = {called(call) for call, _, looped in calls if looped}
    for _ in range(OLDEST):  # functions that are called by those that a loop calls
        again |= {called(call) for call, function, _ in calls if function in again}
    often: dict[str, bool] = {}  # path -> whether it is saved more than once
    final: dict[str, str] = {}
    before: set[str] = set()
    after: dict[str, set[str]] = {}  # function -> what it has saved so far
    for call, function, looped in calls:
        for path in _saved(call, values):
            repeated = looped or function in again or called(call) in OFTEN or "*" in path
            often[path] = often.get(path, False) or repeated
            after.setdefault(function, set()).add(path)
        if called(call) in ("replace", "rename", "move"):
            ends = call.args if len(call.args) > 1 else [*_owner(call), *call.args]
            moved = [path for one in ends[:2] if (path := values.path(one))]
            if len(moved) > 1:
                final[moved[0]] = moved[1]
        if LOADS.search(called(call)):
            loaded = {values.path(one) for one in [*call.args[:1], *_owner(call)]}
            before |= loaded - after.get(function, set())
    often = {final.get(path, path): repeated for path, repeated in often.items()}

    def unlikely(path: str) -> tuple[bool, ...]:
        return not often[path], path.endswith(".json"), not LATEST.search(path), "step" in path

    paths = sorted(often, key=unlikely)
    at_end = bool(paths) and not any(often.values())
    return Saves(paths, at_end=at_end, resumes=bool(before & set(paths[:1])))


def _calls(node: ast.AST, function: str, *, looped: bool) -> Iterator[tuple[ast.Call, str, bool]]:
    """Yield all calls, with the function that each is in, and whether a loop repeats it there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function, looped
        if isinstance(child, ast.FunctionDef):
            yield from _calls(child, child.name, looped=False)
        else:
            loops = isinstance(child, ast.For | ast.While)
            yield from _calls(child, function, looped=looped or loops)


def _saved(call: ast.Call, values: NamedValues) -> Iterator[str]:
    name = called(call)
    if name in ("write_text", "write_bytes"):
        places = _owner(call)
    elif SAVES.search(name):
        named = [one.value for one in call.keywords if one.arg in PATHS]
        places = [*named, *call.args[1:2], *call.args[:1]]
    else:
        return
    path = next(filter(None, map(values.path, places)), "")
    if path and not NO_CHECKPOINTS.search(path):
        yield path if "." in PurePosixPath(path).name else path + OFTEN.get(name, "")


def _owner(call: ast.Call) -> list[ast.expr]:
    return [call.func.value] if isinstance(call.func, ast.Attribute) else []


class NamedValues:
    """What names stand for in a script: its assignments, and the defaults of its parameters and
    options. `args.out`, `self.out`, `config["out"]` and `out` are the same.
    """

    def __init__(self, trees: list[ast.Module], options: list[ScriptOption]) -> None:
        self._of: dict[str, list[ast.expr]] = {}
        self._defaults: dict[str, ast.expr] = {}
        self._line = self._left = 0
        self._given = {one.name: OUT for one in options if given_folder(one)}
        self._given |= {
            one.name: str(one.default)
            for one in options
            if one.name not in self._given and one.default not in (None, "")
        }
        for node in walked(trees):
            for name, value in assigned(node):
                self._of.setdefault(name, []).append(value)
                if isinstance(node, ast.Call):
                    self._defaults[name] = value

    def path(self, node: ast.expr) -> str:
        """Return the path that an expression stands for; empty if it is not known, or outside."""
        self._line, self._left = node.lineno, MOST_NAMES
        text = re.sub(r"\*+|\{[^{}]*\}", "*", self._text(node, self._of))
        first = text.lstrip("./").partition("/")[0]
        if (
            self._left <= 0
            or not text.strip("*./")
            or not first.strip("*0123456789")
            or text.startswith(("/", "~"))
        ):
            return ""
        return "" if ".." in text else PurePosixPath(text).as_posix()

    def _text(self, node: ast.expr, of: dict[str, list[ast.expr]]) -> str:
        def text(inner: ast.expr) -> str:
            return self._text(inner, of)

        match node:
            case ast.Constant():
                return node.value if isinstance(node.value, str) else "*"
            case ast.JoinedStr():
                return "".join(map(text, node.values))
            case ast.BoolOp():
                return next((one for one in map(text, node.values) if one.strip("*")), "*")
            case ast.BinOp(op=ast.Mod(), right=right):
                values = map(text, right.elts if isinstance(right, ast.Tuple) else [right])
                return by_percent(text(node.left), lambda _: next(values, "*"))
            case ast.BinOp():
                between = "/" if isinstance(node.op, ast.Div) else ""
                return f"{text(node.left)}{between}{text(node.right)}"
            case (
                ast.FormattedValue(value=inner)
                | ast.IfExp(body=inner)
                | ast.List(elts=[inner, *_])
                | ast.Tuple(elts=[inner, *_])
                | ast.Subscript(value=ast.Attribute(attr="parents") as inner)
            ):
                return text(inner)
            case ast.Call():
                return self._called(node, text)
            case _:
                return self._named(node, of)

    def _called(self, call: ast.Call, text: Callable[[ast.expr], str]) -> str:
        name, owner = called(call), _owner(call)
        if name == "format" and owner:
            values = map(text, call.args)
            # what cannot be filled in may change from save to save
            filled = by_format(text(owner[0]), lambda key, _: "*" if key else next(values, "*"))
            return filled or "*"
        if name in ITSELF and owner:
            return text(owner[0])
        if name in JOINS:
            before = owner if name == "joinpath" else []
            return "/".join(map(text, [*before, *call.args]))
        if name in HERE:
            return "."
        first = text(call.args[0]) if call.args else "*"
        if name in ("relpath", "dirname", "open"):
            return first
        return f"{first}*" if "/" in first else "*"  # it may be made of a path

    def _named(self, node: ast.expr, of: dict[str, list[ast.expr]]) -> str:
        """Return the text of a name: what it was assigned last, where that is in what it was
        assigned before. An option is what it is given.
        """
        key = _key(node)
        if key in HERE:
            return "."
        if key in ("parent", "parents") and isinstance(node, ast.Attribute):
            return "/".join(self._text(node.value, of).split("/")[:-1]) or "."
        self._left -= 1
        candidates = of.get(key, []) if self._left > 0 else []
        if not (candidates and isinstance(node, ast.Name)):
            if key in self._given:
                return self._given[key]
            if candidates and key in self._defaults:
                return self._text(self._defaults[key], {**of, key: []})
        if not candidates:
            return "*"
        last = max(candidates, key=lambda one: (one.lineno <= self._line, one.lineno))
        return self._text(last, {**of, key: [one for one in candidates if one is not last]})


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield what names are given a value here, and the value."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            yield from zip(map(_key, names), values, strict=False)
        case ast.Assign(value=value):
            yield from ((_key(one), value) for one in node.targets)
        case ast.AnnAssign(value=ast.expr() as value):
            yield _key(node.target), value
        case ast.withitem(context_expr=ast.Call() as opened, optional_vars=ast.expr() as name):
            places = [*opened.args, *_owner(opened)] if called(opened) == "open" else []
            yield from ((_key(name), value) for value in places[:1])
        case ast.For() if not isinstance(node.iter, ast.Call):
            yield _key(node.target), node.iter
        case ast.FunctionDef(args=ast.arguments(args=names, defaults=values)):
            yield from (
                (name.arg, value) for name, value in zip(names[::-1], values[::-1], strict=False)
            )
        case ast.Call():
            if default := keywords_of(node).get("default"):
                yield from ((option.name, default) for option in declared(node))


def _key(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return str(value_of(node.slice))
    return called(node) if isinstance(node, ast.Name | ast.Attribute) else ""
