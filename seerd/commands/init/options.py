"""The options of a training script, whichever library reads them. A library is a line of a table:
it declares options by calls (`CALLS`) or makes them of a signature (`SIGNATURES`).
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

FLAGS = ("store_true", "store_false", "store_const", "count", "BooleanOptionalAction")
NO_OPTIONS = ("help", "version")
# `nargs` of a positional that may be missing
NO_VALUE = ("?", "*", "...", "argparse.REMAINDER", "REMAINDER", "-1")
# What argparse, optparse, click and those that extend them call to declare an option; `add` does if
# its first argument begins with dashes.
CALLS = ("add_argument", "add_option", "option", "argument", "add")
DEFINES = "DEFINE_"  # how the name of such a call begins in absl
# what makes options of transformers' own classes, among others
PARSERS = ("HfArgumentParser", "TrlParser")
# what stands for a default in a signature, with the default inside
FORMS = ("Option", "Argument", "field")
OF_PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*(\*|\d*)(?:\.\d+)?[diouxXeEfFgGrsa]")


class Signature(NamedTuple):
    """How a library makes options of a function's parameters, or a class's fields."""

    calls: tuple[str, ...]  # what the function or class is given to, or is decorated with
    between: str = "_"  # what is between the words of a flag
    positional: bool = False  # whether a parameter without a default has no flag
    nested: bool = False  # whether the flag of a field of a field begins with the name of the outer


SIGNATURES = {
    "typer": Signature(("run", "command"), "-", positional=True),
    "fire": Signature(("Fire",)),
    "tyro": Signature(("cli",), "-", nested=True),
    "transformers": Signature(PARSERS),
    "trl": Signature(PARSERS),
    "simple_parsing": Signature(("add_arguments", "parse")),
    "jsonargparse": Signature(("CLI", "auto_cli"), positional=True, nested=True),
    "draccus": Signature(("wrap", "parse"), nested=True),
}
# LightningCLI's arguments in their order, and how the options begin that it makes of each
OF_LIGHTNING = {"model_class": "--model.", "datamodule_class": "--data."}


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """An option of the script."""

    # as it is written before its value: "--lr", "--lr=", "optim.lr="; "$LR" for a variable of the
    # environment; "data" if there is none
    flag: str
    # the name of its type: "float", "int", "str", "Path", "bool" for a flag, "list" for several
    # values; empty if it is not known
    kind: str = ""
    default: Any = None  # None if there is none, or it cannot be read
    choices: tuple[Any, ...] = ()  # what it may be; empty: anything
    required: bool = False  # whether the script ends without it
    about: str = ""  # its help

    @property
    def name(self) -> str:
        """The name of its value, without a section's name."""
        return re.sub(r"\W", "_", self.flag.strip("-=$").rpartition(".")[2])

    @property
    def word(self) -> str:
        """The name in lower case with underscores, as well-known names are written."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()

    def arguments(self, value: str) -> list[str]:
        """Return the arguments that give it this value."""
        if self.flag.startswith("$"):
            return []
        if self.kind == "bool":
            return [self.flag]
        if self.flag.endswith("="):
            return [f"{self.flag}{value}"]
        return [self.flag, value] if self.flag.startswith("-") else [value]


def options_of(trees: Iterable[ast.Module], modules: set[str]) -> list[ScriptOption]:
    """Return the options of a script and its own modules, which import these packages."""
    nodes = walked(trees)
    command = command_of(nodes)
    of_others = walked(node for name, node in _commands(nodes).items() if name != command)
    not_ours = set(map(id, of_others))
    nodes = [node for node in nodes if id(node) not in not_ours]
    calls = calls_in(nodes)
    others = {made for made, name in _made(nodes, "add_parser") if name != command}
    options = [one for call in calls if owner_of(call) not in others for one in declared(call)]
    for group, _ in _made(nodes, "add_mutually_exclusive_group"):
        flags = [one.flag for call in calls if owner_of(call) == group for one in declared(call)]
        options.append(ScriptOption(" or ".join(flags), required=True))
    defined = {node.name: node for node in nodes if isinstance(node, DEFINITIONS)}
    for library, style in SIGNATURES.items():
        if library in modules:
            options += _of_signatures(nodes, defined, style)
    for call in [call for call in calls if called(call).endswith("LightningCLI")]:
        options.append(ScriptOption("--trainer.max_epochs", "int", 1000))
        given = keywords_of(call) | dict(zip(OF_LIGHTNING, call.args, strict=False))
        for name, begin in OF_LIGHTNING.items():
            if name in given and called(given[name]) in defined:
                style = Signature((), nested=True)
                options += _fields(defined[called(given[name])], defined, style, begin)
    marks = [call.args[0] for call in calls if called(call).startswith("mark_flag") and call.args]
    marked = str([value_of(one) for one in marks])  # by absl's `mark_flags_as_required`
    options = [replace(one, required=True) if repr(one.name) in marked else one for one in options]
    return by_name(options or [*_overrides(nodes), *_globals(nodes)])


def by_name(options: list[ScriptOption]) -> list[ScriptOption]:
    """Return the first option of each name."""
    return list({one.name: one for one in reversed(options)}.values())[::-1]


def walked(trees: Iterable[ast.AST]) -> list[ast.AST]:
    """Return all nodes of these trees."""
    return [node for tree in trees for node in ast.walk(tree)]


def calls_in(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """Return the calls among these nodes."""
    return [node for node in nodes if isinstance(node, ast.Call)]


def keywords_of(call: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments that a call gives by name."""
    return {one.arg: one.value for one in call.keywords if one.arg}


def command_of(nodes: list[ast.AST]) -> str:
    """Return which command of a script with several trains; empty if it has none."""
    has_commands = any(called(call) == "add_subparsers" for call in calls_in(nodes))
    parsers = _made(nodes, "add_parser") if has_commands else ()
    names = [*(name for _, name in parsers), *_commands(nodes)]
    return next((name for name in names if re.search("train|fit|tune", name)), "".join(names[:1]))


def _commands(nodes: Iterable[ast.AST]) -> dict[str, ast.FunctionDef]:
    """Return the functions that click or typer makes the commands of a script, by their names. A
    single command has a name only if its group is a function, as click's are.
    """
    found, groups, owners = {}, set(), set()
    for node in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        for made in node.decorator_list:
            if called(made) == "group":
                groups.add(node.name)
            place = made.func if isinstance(made, ast.Call) else made
            owner = ast.unparse(place.value) if isinstance(place, ast.Attribute) else "click"
            if called(made) == "command" and not owner.endswith("click"):
                named = value_of(made.args[0]) if isinstance(made, ast.Call) and made.args else None
                found[str(named or node.name.lower().replace("_", "-"))] = node
                owners.add(owner)
    return found if len(found) > 1 or owners & groups else {}


def _made(nodes: Iterable[ast.AST], maker: str) -> Iterator[tuple[str, str]]:
    """Yield what calls of this name make for options of their own: its name and the first argument.
    A group of options counts if one of them is needed.
    """
    for node in nodes:
        match node:
            case ast.Assign([target, *_], ast.Call(_, args) as call) if called(call) == maker:
                required = keywords_of(call).get("required")
                if value_of(required) if required else maker == "add_parser":
                    yield ast.unparse(target), str(value_of(args[0]) if args else "")


def by_percent(template: str, show: Callable[[str], str]) -> str:
    """Fill a template as `%` does; `show` writes a value by its width."""
    return OF_PERCENT.sub(lambda place: show(place[1]), template).replace("%%", "%")


def by_format(template: str, show: Callable[[str, str], str]) -> str:
    """Fill a template as `format` does; `show` writes a value by its key and format. Return empty
    if it is none.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        return ""
    return "".join(
        text + ("" if key is None else show(key, form or "")) for text, key, form, _ in parts
    )


def owner_of(call: ast.Call) -> str:
    """Return whose method is called, as it is written; empty if it is none."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def called(node: ast.expr) -> str:
    """Return the last name of what is called, or decorates."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def value_of(node: ast.expr | None) -> Any:
    """Return the value of a literal, `Path("out")` included; None for anything else."""
    if isinstance(node, ast.Call) and called(node).endswith("Path") and node.args:
        return value_of(node.args[0])
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def declared(call: ast.Call) -> Iterator[ScriptOption]:
    """Yield the option that a call declares, if it does."""
    given = keywords_of(call)
    if called(call) in CALLS and isinstance(call.func, ast.Attribute):
        texts = [value for one in call.args if isinstance(value := value_of(one), str)]
        flag = max(texts, key=lambda text: (text.startswith("--"), text[:1] == "-"), default="")
        flag = flag if called(call) != "add" or flag.startswith("--") else ""
    elif called(call).startswith(DEFINES) and call.args and value_of(call.args[0]):
        flag = f"--{value_of(call.args[0])}="
        names = ("", "default", "enum_values" if "enum" in called(call) else "help")
        given = {**dict(zip(names, call.args, strict=False)), **given}
        if "bool" in called(call):
            given["action"] = ast.Constant("store_true")
    else:
        return
    if flag.strip("-"):
        yield from _option(flag.partition("/")[0], given)


def _option(flag: str, given: dict[str, ast.expr]) -> Iterator[ScriptOption]:
    def text(node: ast.expr | None) -> str:
        value = value_of(node)
        return ast.unparse(node).rpartition(".")[2] if node and value is None else str(value or "")

    action, nargs = (text(given.get(key)) for key in ("action", "nargs"))
    if action in NO_OPTIONS:
        return
    default, kind = value_of(given.get("default")), _kind(given.get("type"))
    choices = value_of(given.get("choices", given.get("enum_values"))) or ()
    if isinstance(given.get("type"), ast.Call) and kind == "Choice":  # click's
        choices = value_of(given["type"].args[0]) or ()  # type: ignore[attr-defined]
    if action in FLAGS or value_of(given.get("is_flag")):
        kind, default = "bool", default if default is not None else action == "store_false"
    elif nargs and nargs != "?":
        kind = "list"
    required = value_of(given.get("required"))
    if required is None and not flag.startswith("-"):
        required = nargs not in NO_VALUE and kind != "bool" and "default" not in given
    yield ScriptOption(
        flag,
        kind or ("" if default is None or isinstance(default, bool) else type(default).__name__),
        default,
        tuple(choices) if isinstance(choices, list | tuple) else (),
        required=bool(required),
        about=str(value_of(given.get("help")) or ""),
    )


def _kind(node: ast.expr | None) -> str:
    """Return the name of a type as it is annotated, or given to `type`."""
    if isinstance(node, ast.Subscript):  # Optional[float], Annotated[float, ...], list[int]
        inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        return "list" if called(node.value).lower() in ("list", "tuple") else _kind(inner)
    if isinstance(node, ast.BinOp):  # float | None
        return _kind(node.left)
    return "" if node is None else (called(node) or str(value_of(node) or ""))


def given_to(makers: Collection[str], nodes: list[ast.AST]) -> list[str]:
    """Return the names of the functions and classes that calls of `makers` are given, alone or in a
    tuple, which may have a name.
    """
    named = {
        called(node.targets[0]): node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List)
    }
    calls = [call for call in calls_in(nodes) if called(call) in makers]
    first = [named.get(called(one), one) for call in calls for one in call.args[:1]]
    return [called(part) for one in first for part in getattr(one, "elts", [one])]


def _of_signatures(
    nodes: list[ast.AST], defined: dict[str, Any], style: Signature
) -> Iterator[ScriptOption]:
    marked = [
        name
        for name, node in defined.items()
        for one in (*node.decorator_list, *getattr(node, "bases", ()))
        if called(one) in style.calls
    ]
    for name in dict.fromkeys([*given_to(style.calls, nodes), *marked]):
        node = defined.get(name)
        if "wrap" in style.calls and isinstance(node, ast.FunctionDef) and node.args.args:
            node = defined.get(_kind(node.args.args[0].annotation))
        if node is not None:
            yield from _fields(node, defined, style)


def _fields(
    node: Any, defined: dict[str, Any], style: Signature, begin: str = "--"
) -> Iterator[ScriptOption]:
    """Yield the options of a function's parameters, or a class's fields, whose flags begin so."""
    if isinstance(node, ast.ClassDef):
        for base in node.bases:
            if called(base) in defined:
                yield from _fields(defined[called(base)], defined, style, begin)
        rows = [
            (one.target.id, one.annotation, one.value)
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
        for made in node.body:
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                yield from _fields(made, defined, style, begin)
    else:
        named = [*node.args.args, *node.args.kwonlyargs]
        last: list[ast.expr | None] = [*node.args.defaults, *node.args.kw_defaults]
        first = [None] * (len(node.args.args) - len(node.args.defaults))
        rows = [
            (one.arg, one.annotation, default)
            for one, default in zip(named, [*first, *last], strict=True)
        ]
    for name, annotation, default in rows:
        inner = defined.get(_kind(annotation))
        flag = f"{begin}{name.replace('_', style.between)}"
        if isinstance(inner, ast.ClassDef) and inner is not node:
            inside = _fields(inner, defined, style, f"{flag}." if style.nested else begin)
            yield from (replace(one, required=one.required and default is None) for one in inside)
        elif name != "self":
            yield from _field(flag, annotation, default, style)


def _field(
    flag: str, annotation: ast.expr | None, default: ast.expr | None, style: Signature
) -> Iterator[ScriptOption]:
    given: dict[str, ast.expr] = {"default": default} if default is not None else {}
    if isinstance(default, ast.Call) and called(default) in FORMS:
        given = keywords_of(default)
        if default.args and value_of(default.args[0]) is not Ellipsis:
            given["default"] = default.args[0]
        if isinstance(about := value_of(given.get("metadata")), dict) and "help" in about:
            given["help"] = ast.Constant(about["help"])
    bare = not {"default", "default_factory"} & set(given)
    if bare and style.positional and default is None:
        flag = flag.strip("-")
    kind = _kind(annotation)
    if kind == "bool":
        given["action"] = ast.Constant("store_true")
    for one in _option(flag, {**given, "required": ast.Constant(value=bare)}):
        yield replace(one, kind=kind or one.kind)


def _globals(nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    """Yield the globals of a script that runs another file over them, which sets them from
    `--name=value`.
    """
    execs = [call for call in calls_in(nodes) if called(call) == "exec"]
    if not any("open(" in ast.unparse(call) for call in execs):
        return
    for node in [one for tree in nodes if isinstance(tree, ast.Module) for one in tree.body]:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = value_of(node.value)
            if isinstance(value, bool | int | float | str):
                kind = "choice" if isinstance(value, bool) else type(value).__name__
                yield ScriptOption(f"--{node.targets[0].id}=", kind, value)


def _overrides(nodes: list[ast.AST]) -> Iterator[ScriptOption]:
    """Yield what a script reads of its configuration by Hydra, which `name=value` overrides."""
    roots = {
        node.args.args[0].arg
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.args.args
        if any(ast.unparse(one).startswith("hydra.main") for one in node.decorator_list)
    }
    for node in nodes if roots else ():
        if isinstance(node, ast.Attribute):
            root, _, path = ast.unparse(node).partition(".")
            if root in roots and re.fullmatch(r"[\w.]+", path):
                yield ScriptOption(f"{path}=")
