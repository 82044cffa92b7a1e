"""What sets the hyperparameters of a script without options: Hydra's configuration, its place in
`sys.argv`, its environment, or nothing but numbers in its text. A number that must be changed in
the script becomes an option that names the edit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from seerd.commands.init.options import ScriptOption, called, value_of
from seerd.commands.init.saving import assigned

OF_YAML = re.compile(r"(?P<indent> *)(?P<key>[\w./-]+) *:(?:\s+(?P<value>[^#\n]*?))?\s*(?:#.*)?$")
IN_A_GROUP = re.compile(r"\s*- *(?P<group>[\w/]+) *: *(?P<name>[\w.-]+)\s*(?:#.*)?$")
WORDS_OF_YAML = {"true": True, "false": False, "null": None, "~": None}
MISSING = "???"  # stands for a value that must be given
ENVIRONMENT = "$"  # how an option begins that is an environment variable


def config_of_hydra(nodes: Iterable[ast.AST], roots: Iterable[Path]) -> Path | None:
    """Return the configuration that `hydra.main` names, in one of these folders, or None."""
    for node in nodes:
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "hydra.main":
            continue
        texts = {
            one.arg: [part.value for part in ast.walk(one.value) if isinstance(part, ast.Constant)]
            for one in node.keywords
        }
        path, name = (str([*texts.get(key, []), ""][0]) for key in ("config_path", "config_name"))
        for place in roots:
            file = (place / path / name).with_suffix(".yaml").resolve()
            if name and file.is_file():
                return file
    return None


def options_of_yaml(file: Path, begin: str = "") -> Iterator[ScriptOption]:
    """Yield the keys of a configuration, and of those that its `defaults` name, as overrides."""
    above: list[tuple[int, str]] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if (found := IN_A_GROUP.match(line)) and [key for _, key in above] == ["defaults"]:
            inner = (file.parent / found["group"] / found["name"]).with_suffix(".yaml")
            if inner.is_file():
                yield from options_of_yaml(inner, f"{begin}{found['group'].replace('/', '.')}.")
        if not (found := OF_YAML.match(line)):
            continue
        indent = len(found["indent"])
        above = [*((at, key) for at, key in above if at < indent), (indent, found["key"])]
        text = (found["value"] or "").strip("'\"")
        if text and not text.startswith(("$", "[", "{", "|", ">")) and found["key"][0] != "_":
            value = _of_yaml(text)
            yield ScriptOption(
                f"{begin}{'.'.join(key for _, key in above)}=",
                "choice" if isinstance(value, bool) else type(value).__name__,
                None if text == MISSING else value,
                required=text == MISSING,
            )


def _of_yaml(text: str) -> object:
    if text in WORDS_OF_YAML:
        return WORDS_OF_YAML[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def other_options(nodes: list[ast.AST]) -> list[ScriptOption]:
    """Return what a script takes by place, else its environment variables and the numbers in its
    text.
    """
    placed = sorted(_by_place(nodes))
    if placed:
        return [option for _, _, option in placed]
    found = [*_of_environment(nodes), *_numbers(nodes)]
    return list({one.name: one for one in reversed(found)}.values())[::-1]


def _by_place(nodes: list[ast.AST]) -> Iterator[tuple[int, str, ScriptOption]]:
    for name, value in _named(nodes):
        found = re.search(r"\bargv\[(\d+)\]", ast.unparse(value))
        if found:
            kind = called(value) if isinstance(value, ast.Call) else ""
            about = f"argument {found[1]}"
            yield int(found[1]), name, ScriptOption(name, kind, required=True, about=about)


def _of_environment(nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    for node in nodes:
        read = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        found = re.match(r"(?:os\.)?(?:getenv\(|environ\.get\(|environ\[)'(\w+)'", read)
        if found:
            args = list(getattr(node, "args", ()))
            default = value_of(args[1]) if len(args) > 1 else None
            value = _of_yaml(str(default)) if default is not None else None
            yield ScriptOption(f"{ENVIRONMENT}{found[1]}", default=value)


def _numbers(nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    """Yield the numbers that have a name, with the edit that has the environment set them."""
    for name, node in _named(nodes):
        value = value_of(node)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            kind = type(value).__name__
            read = f'{kind}(os.environ.get("{name.upper()}", {value!r}))'
            yield ScriptOption(
                f"{ENVIRONMENT}{name.upper()}",
                kind,
                value,
                edit=f"line {node.lineno}: the value of {name} becomes {read}",
            )


def _named(nodes: list[ast.AST]) -> list[tuple[str, ast.expr]]:
    """Return names and their values: variables first, then keys of dicts, then arguments, and last
    what counts only where nothing is passed.
    """
    of_kinds: list[list[tuple[str, ast.expr]]] = [[], [], [], []]
    for node in nodes:
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            of_kinds[1] += [(str(value_of(key)), value) for key, value in pairs]
        elif isinstance(node, ast.Call):
            of_kinds[2] += [(one.arg, one.value) for one in node.keywords if one.arg]
        else:
            of_kinds[3 if isinstance(node, ast.FunctionDef) else 0] += assigned(node)
    return [pair for pairs in of_kinds for pair in pairs]
