"""Reads the text of a spec and the overrides of the command line. Mistakes are collected, each
under the name that the user wrote. A spec that is a Python dict is written as TOML first, so that
its mistakes are reported in the same words.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

from seerd.errors import Mistake, SpecError
from seerd.planner.constraints import constraint
from seerd.planner.parameter import Parameter, Value, listed
from seerd.planner.space import Space, never_met
from seerd.spec import values as v
from seerd.spec.clusters import CLUSTER_KEYS

# every key of every table except `[space]`, and how its value is read
SECTIONS: dict[str, dict[str, v.Read]] = {
    "": {"name": v.name, "on_end": v.text},
    "metric": {
        "name": v.printed_name,
        "mode": v.one_of("max", "min"),
        "target": v.number,
        "smooth": v.whole(1),
        "constraint": v.metric_constraints,
        "objectives": v.objectives,
    },
    "train": {
        "script": v.text,
        "source": v.text,
        "args": v.list_of(v.text),
        "report": v.reports,
        "fill": v.list_of(v.saved_path),
        "follow": v.list_of(v.saved_path),
        "checkpoint": v.saved_path,
        "resume": v.list_of(v.text),
        "launcher": v.one_of("torchrun", "python", "command"),
        "python": v.command,
        "setup": v.list_of(v.text),
        "preload": v.modules,
        "data": v.list_of(v.data),
        "ingress": v.size,
        "env": v.environment,
        "secrets": v.list_of(v.variable),
        "container": v.image,
        "mounts": v.list_of(v.mount),
    },
    "policy": {
        "name": v.text,
        "eta": v.more_than(1),
        "nu": v.whole(1),
        "p_min": v.gpus,
        "p_max": v.gpus,
        "t_min": v.duration,
        "seed": v.whole(0),
        "trials": v.whole(1),
        "min_reports": v.whole(1),
        "max_reports": v.whole(1),
        "start": v.list_of(v.config),
        "like": v.list_of(v.text),
    },
    "limits": {
        "deadline": v.duration,
        "budget": v.gpu_time,
        "cost": v.money,
        "max_gpus": v.whole(1),
    },
    "export": {"tensorboard": v.text, "mlflow": v.text, "optuna": v.text, "wandb": v.text},
    "cluster": {"provider": v.one_of(*CLUSTER_KEYS), "store": v.text, "parts": v.parts},
}

Sections = dict[str, dict[str, v.Read]]
LONGEST = 4 << 20  # bytes of a spec: reading a longer one would keep the user waiting
CONSTRAINTS = "constraints"  # the key of `[space]` that is no parameter
REQUIRED = ("metric.name", "metric.mode", "train.script")


class Override(NamedTuple):
    """A key of the spec that the command line, or a call from Python, sets."""

    key: str  # the key's path, for example `policy.eta`
    value: Any  # its value as it was written, or as TOML would have it
    said: str = "--set"  # the option that gives it

    @property
    def option(self) -> str:
        """The option for messages, with its key."""
        return f"--set {self.key}" if self.said == "--set" else self.said


def text_of(path: Path) -> str:
    """Read a file's text. Raises `SpecError` if it is unreadable, too long or not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise _unreadable(path, f"it has more than {LONGEST >> 20} MiB")
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"it is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise _unreadable(path, f"it cannot be read: {error.strerror}") from error


def _unreadable(path: Path, why: str) -> SpecError:
    return SpecError(str(path), [Mistake("the file", "", why)])


class Reader:
    """Reads one spec and collects its mistakes. `text`: its TOML; None: what is in the file, whose
    mistakes have line numbers. Raises `SpecError` if the file is unreadable.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.file = path.resolve() if text is None else None
        self.folder = path.resolve().parent  # what its paths are relative to
        self.problems: list[Mistake] = []
        self._text = text_of(path) if text is None else text
        self._lines = {} if self.file is None else dict(_lines(self._text))
        self._overrides: list[Override] = []

    def wrong(self, key: str, found: Any, allowed: str, hint: str = "") -> None:
        """Note a mistake. `found`: the wrong value; None if there is none."""
        table = key  # the innermost table of the key that has a line
        while table and table not in self._lines:
            table = table.rpartition(".")[0]
        shown = "" if found is None else repr(found)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        option = ""  # of the command line, if one gives (a part of) this key
        for override in self._overrides:
            if f"{key}.".startswith(f"{override.key}.") or override.key.startswith(f"{key}."):
                option = override.option
        self.problems.append(Mistake(key, shown, allowed, hint, self._lines.get(table), option))

    def check(self) -> None:
        """Raise `SpecError` with all mistakes, if there are any."""
        if self.problems:
            by_line = sorted(self.problems, key=lambda mistake: mistake.line or 10**9)
            raise SpecError(str(self.path), by_line)

    def document(self, overrides: list[Override]) -> dict[str, Any]:
        """Read the TOML, and apply the overrides. Raises `SpecError` if it is not TOML."""
        try:
            document = tomllib.loads(self._text)
        except (ValueError, RecursionError) as error:
            raise _unreadable(self.path, f"it is not TOML: {error}") from error
        self._overrides = overrides
        for override in overrides:
            self._override(document, override.key, override.value)
        return document

    def as_run(self, document: dict[str, Any]) -> str:
        """Return a text that alone makes the same run: with overrides, all of it as TOML."""
        if not self._overrides:
            return self._text
        options = dict.fromkeys(override.option for override in self._overrides)
        return f"# As it was run, with {', '.join(options)}.\n{toml_of(document)}"

    def sections(
        self, document: dict[str, Any], known: Sections | None = None, beside: str = "space"
    ) -> dict[str, Any]:
        """Read all values, by the path of their key; note what is wrong, unknown or missing.

        known   the tables and their keys; None: those of a spec
        beside  a further key of the top that is read elsewhere
        """
        values: dict[str, Any] = {}
        sections = SECTIONS if known is None else known
        tables = [*filter(None, sections), beside]
        self._section("", document, sections[""], values, tables)
        for section, keys in sections.items():
            content = document.get(section, {})
            if not section:
                continue
            if not isinstance(content, dict):
                self.wrong(section, content, "a table is needed")
                continue
            all_keys = {**keys, **self._provider_keys(content)} if section == "cluster" else keys
            self._section(section, content, all_keys, values)
        for key in REQUIRED if known is None else ():
            if key not in values and not any(
                problem.path in (key, key.split(".")[0]) for problem in self.problems
            ):
                self.wrong(key, None, "is missing")
        return values

    def table(self, path: str, content: dict[str, Any], keys: dict[str, v.Read]) -> dict[str, Any]:
        """Read one table of a list, by its keys; note mistakes."""
        values: dict[str, Any] = {}
        self._section(path, content, keys, values)
        return {key.removeprefix(f"{path}."): value for key, value in values.items()}

    def space(self, content: Any) -> Space:
        """Read the `[space]` table; note mistakes."""
        if not isinstance(content, dict) or not content.keys() - {CONSTRAINTS}:
            self.wrong("space", content, "a table [space] with at least one parameter is needed")
            return Space()
        noted = len(self.problems)
        parameters: dict[str, Parameter] = {}
        for key, value in content.items():
            if key == CONSTRAINTS:
                continue
            try:
                parameters[key] = v.parameter(key, value)
            except (ValueError, OverflowError) as error:
                self.wrong(f"space.{key}", value, str(error))
                continue
            self._conditions(parameters[key], parameters, content)
        constraints = self._constraints(content)
        space = Space(tuple(parameters.values()), constraints=constraints)
        if constraints and len(self.problems) == noted and (why := never_met(space)):
            self.wrong(f"space.{CONSTRAINTS}", None, why)
        return space

    def _conditions(
        self, parameter: Parameter, above: dict[str, Parameter], content: dict[str, Any]
    ) -> None:
        for condition in parameter.when:
            path, name = f"space.{parameter.name}.when", condition.parameter
            if name in above and name != parameter.name:
                for value in condition.values:
                    if why := _never(above[name], value):
                        self.wrong(path, value, why, *_near(value, above[name].choices))
            elif name not in content or name in (CONSTRAINTS, parameter.name):
                near = [key for key in content if key not in (CONSTRAINTS, parameter.name)]
                self.wrong(path, name, "another parameter of [space] is needed", *_near(name, near))
            elif not any(problem.path == f"space.{name}" for problem in self.problems):
                self.wrong(path, name, f"{name} has to stand above {parameter.name}")

    def _constraints(self, content: dict[str, Any]) -> tuple[str, ...]:
        path, names = f"space.{CONSTRAINTS}", content.keys() - {CONSTRAINTS}
        try:
            texts: tuple[str, ...] = v.list_of(v.text)(content.get(CONSTRAINTS, []))
        except ValueError as error:
            self.wrong(path, content[CONSTRAINTS], str(error))
            return ()
        for text in texts:
            try:
                read = constraint(text)
            except ValueError as error:
                self.wrong(path, text, str(error))
                continue
            for name in sorted(read.names - names):
                odd = [key for key in names if not all(map(str.isidentifier, key.split(".")))]
                note = f" (in constraints no name has such signs as {odd[0]!r})" if odd else ""
                self.wrong(path, text, f"there is no parameter {name}{note}", *_near(name, names))
        return texts

    def _section(
        self,
        section: str,
        content: dict[str, Any],
        keys: dict[str, v.Read],
        values: dict[str, Any],
        elsewhere: Sequence[str] = (),
    ) -> None:
        """Read a table into `values`; note what is wrong. `elsewhere`: keys that are read later."""
        for key, value in content.items():
            path = f"{section}.{key}" if section else key
            if key in keys:
                try:
                    values[path] = keys[key](value)
                except (ValueError, OverflowError) as error:
                    self.wrong(path, value, str(error))
            elif key not in elsewhere:
                near = difflib.get_close_matches(key, [*keys, *elsewhere], 1, 0.5)
                table = f"[{section}]" if section else "a spec"
                self.wrong(path, None, f"is not a key of {table}", *near)

    def _provider_keys(self, cluster: dict[str, Any]) -> dict[str, v.Read]:
        provider = cluster.get("provider", "local")
        for other, keys in CLUSTER_KEYS.items():
            for key in set(keys) & set(cluster):
                if other != provider and key not in CLUSTER_KEYS.get(str(provider), {}):
                    self.wrong(
                        f"cluster.{key}",
                        None,
                        f"is only for provider = {other!r}, and the provider is {provider!r}",
                    )
        return {key: read for keys in CLUSTER_KEYS.values() for key, read in keys.items()}

    def _override(self, document: dict[str, Any], key: str, value: Any) -> None:
        path, space = key.split("."), document.get("space")
        # The name of a hyperparameter may have points of its own.
        for name in sorted(space, key=len) if isinstance(space, dict) else ():
            if "." in name and f"{key}.".startswith(f"space.{name}."):
                path = ["space", name, *key.removeprefix(f"space.{name}").split(".")[1:]]
        *tables, last = path
        inside = document
        for part in tables:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                self.wrong(key, value, f"{part} is not a table")
                return
        # what a terminal gives may have bytes that are no UTF-8
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.wrong(key, ascii(value), "Unicode is needed")
            return
        if isinstance(value, str) and "\n" not in value:
            with suppress(ValueError, KeyError, RecursionError):  # else it is a text
                value = tomllib.loads(f"value = {value}")["value"]
        inside[last] = value


def _never(parameter: Parameter, value: Value) -> str:
    if not parameter.choices and not parameter.stepped:
        return f"{parameter.name} is any number of a range: choices or a step are needed"
    if parameter.may_be(value):
        return ""
    allowed = ", ".join(repr(listed(choice)) for choice in parameter.choices)
    allowed = allowed or f"low = {parameter.low:g} to high = {parameter.high:g}, in steps"
    return f"{parameter.name} never has this value; it has {allowed:.200}"


def _near(value: Value, choices: Iterable[Value]) -> list[str]:
    return difflib.get_close_matches(str(value), map(str, choices), 1, 0.5)


def _lines(text: str) -> Iterable[tuple[str, int]]:
    """Yield (path, line number from 1) of each key, exact enough for messages."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([\w.-]+)\]", line):
            section = header[1]
            yield section, number
        elif key := re.match(r"\s*\"?([\w./-]+)\"?\s*=", line):
            yield (f"{section}.{key[1]}" if section else key[1]), number


BARE = re.compile(r"[A-Za-z0-9_-]+")
THE_DICT = "the spec"  # its name in messages, where a file has its path


def toml_of(document: Mapping[str, Any]) -> str:
    """Write a dict as TOML. Raises `SpecError` for each value that TOML cannot have."""
    wrong: list[Mistake] = []
    plain = _plain(document, "", wrong)
    if wrong:
        raise SpecError(THE_DICT, wrong)
    return "\n".join(_toml_lines(plain)) + "\n"


def _toml_lines(document: dict[str, Any]) -> Iterator[str]:
    """Write each table under its header, one value a line: libraries would move inner tables to the
    end, and the order of hyperparameters counts.
    """
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    for key, value in document.items():
        if key not in tables:
            yield f"{_toml_key(key)} = {_inline(value)}"
    for key, table in tables.items():
        yield f"\n[{_toml_key(key)}]"
        yield from (f"{_toml_key(inner)} = {_inline(value)}" for inner, value in table.items())


def _inline(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():  # what JSON leaves as it is and TOML does not: DEL
            return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_inline, value))}]"
        case dict():
            inside = ", ".join(f"{_toml_key(key)} = {_inline(item)}" for key, item in value.items())
            return f"{{ {inside} }}" if value else "{}"
        case dt.date() | dt.time():
            return value.isoformat()
        case float():
            return float.__repr__(value)  # numpy's are floats that write themselves otherwise
    return str(int(value))


def _toml_key(key: str) -> str:
    return key if BARE.fullmatch(key) else _inline(key)


def _plain(value: Any, path: str, wrong: list[Mistake]) -> Any:
    match value:
        case bool() | int() | float() | str() | dt.date() | dt.time():
            return value
        case Path():
            return str(value)
        case Mapping():
            table = {}
            for key, item in value.items():
                inside = f"{path}.{key}" if path else str(key)
                if isinstance(key, str):
                    table[key] = _plain(item, inside, wrong)
                else:
                    wrong.append(Mistake(inside, f"{key!r:.60}", "text is needed as a key"))
            return table
        case Sequence() | range() if not isinstance(value, bytes | bytearray):
            return [_plain(each, path, wrong) for each in value]
    if callable(item := getattr(value, "tolist", None)):
        return _plain(item(), path, wrong)
    allowed = "text, numbers, booleans, lists and dicts are allowed"
    wrong.append(Mistake(path or THE_DICT, f"{value!r:.60}", allowed))
    return None
