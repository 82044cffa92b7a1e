"""spec.toml: what a person asks for, read strictly, with all mistakes reported at once.

The one rule: what this module returns has been checked; nothing behind it checks again.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from planner.model import Mode, PolicyParams
from planner.policy import POLICIES
from planner.space import Parameter, Space
from seerd import program
from seerd import spec_values as v
from seerd.errors import Problem, SpecError, UsageError


@dataclass(frozen=True, slots=True)
class Metric:
    """What trials report, and whether more of it is better."""

    name: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class Train:
    """How a trial is started. `script` is relative to `source`, the folder that is shipped; `python` None: the one that runs seerd."""

    script: str
    source: Path
    args: tuple[str, ...]
    launcher: str
    python: str | None
    setup: tuple[str, ...]
    data: tuple[v.Data, ...]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class SpecLimits:
    """The limits as far as the spec or the command line gives them: seconds, GPU-seconds, USD."""

    deadline_s: float | None
    budget_gpu_s: float | None
    cost_usd: float | None
    max_gpus: int | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where to run. `gpus` None: what the machine has; `store` None: inside the run's folder; `more`: keys of other providers."""

    provider: str
    gpus: int | None
    store: str | None
    more: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole spec. `folder` is where it lies, `text` what it says."""

    name: str
    metric: Metric
    train: Train
    space: Space
    policy: PolicyParams
    limits: SpecLimits
    cluster: Cluster
    folder: Path
    text: str


SECTIONS: dict[str, dict[str, v.Read]] = {
    "": {"name": v.name},
    "metric": {"name": v.text, "mode": v.one_of("max", "min")},
    "train": {
        "script": v.text,
        "source": v.text,
        "args": v.list_of(v.text),
        "launcher": v.one_of("torchrun", "python", "command"),
        "python": v.text,
        "setup": v.list_of(v.text),
        "data": v.list_of(v.data),
        "env": v.environment,
    },
    "policy": {
        "name": v.text,
        "eta": v.more_than(1),
        "nu": v.whole(1),
        "p_min": v.whole(1),
        "p_max": v.whole(1),
        "t_min": v.duration,
        "seed": v.whole(0),
        "trials": v.whole(1),
        "min_reports": v.whole(1),
        "max_reports": v.whole(1),
    },
    "limits": {"deadline": v.duration, "budget": v.gpu_time, "cost": v.money, "max_gpus": v.whole(1)},
    "cluster": {"provider": v.one_of("local", "hosts", "ec2"), "store": v.text},
}
"""Every key of every table but `[space]`, and how its value is read."""

CLUSTER_KEYS: dict[str, dict[str, v.Read]] = {
    "local": {"gpus": v.whole(1)},
    "hosts": {"hosts": v.list_of(v.host)},
    "ec2": {
        "region": v.text,
        "instance_type": lambda value: v.list_of(v.text)(value if isinstance(value, list) else [value]),
        "market": v.one_of("on-demand", "spot"),
        "image": v.text,
        "subnets": v.list_of(v.text),
        "security_groups": v.list_of(v.text),
        "key": v.text,
        "address": v.one_of("private", "public"),
        "volume_gb": v.whole(1),
        "tags": v.tags,
        "price": v.money,
    },
}
"""The keys of `[cluster]` that only one provider takes."""

LONGEST = 4 << 20
"""Bytes of a spec: what takes longer to read than a person would wait is none."""
REQUIRED = ("metric.name", "metric.mode", "train.script")


class Override(NamedTuple):
    """A key of the spec that the command line gives another value, and how it was `said`, for whoever has said it wrong."""

    key: str
    value: str
    said: str = "--set"


def load_spec(path: Path, overrides: Sequence[Override] = ()) -> Spec:
    """The spec in this file with what the command line overrides. Raises `SpecError` with every mistake."""
    text = _read(path)
    reader = _Reader(path, text)
    document = reader.document([Override(*override) for override in overrides])
    values = reader.sections(document)
    space = reader.space(document.get("space"))
    spec = _build(values, space, path.resolve(), text, reader)
    if reader.problems:
        raise SpecError(str(path), sorted(reader.problems, key=lambda p: p.line or 10**9))
    return spec


def require_limits(spec: Spec, minimize: str | None = None) -> None:
    """Raise `UsageError` if there is no deadline, or nothing that bounds what is spent. What is minimised need not be limited."""
    limits, rented = spec.limits, spec.cluster.provider == "ec2"
    missing = []
    if limits.deadline_s is None and minimize != "time":
        missing.append("a deadline: --deadline 30m")
    if limits.budget_gpu_s is None and not (rented and limits.cost_usd is not None) and minimize != "cost":
        missing.append("a budget: --budget 480gpu-min")
    if missing:
        free = limits.cost_usd is not None and not rented
        note = "\n(--cost alone bounds nothing on machines that cost nothing.)" if free else ""
        raise UsageError(f"a limit is missing; give {' and '.join(missing)}, or put it into [limits].{note}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise SpecError(str(path), [Problem("the file", "", f"it has more than {LONGEST >> 20} MiB")])
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise SpecError(str(path), [Problem("the file", "", f"it is not UTF-8 text (byte {error.start})")]) from error
    except OSError as error:
        raise SpecError(str(path), [Problem("the file", "", f"it cannot be read: {error.strerror}")]) from error


class _Reader:
    """Reads one file and collects what is wrong with it."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._lines = dict(_lines(text))
        self._overrides: list[Override] = []
        self._text = text

    def wrong(self, key: str, found: Any, allowed: str, hint: str = "") -> None:
        line = self._lines.get(key) or self._lines.get(key.rpartition(".")[0])
        shown = "" if found is None else _shown(found)
        self.problems.append(Problem(key, shown, allowed, hint, line, self._said(key)))

    def _said(self, key: str) -> str:
        """What on the command line is about this key, or a part of it; nothing if the file says so alone."""
        for override in reversed(self._overrides):
            if f"{key}.".startswith(f"{override.key}.") or override.key.startswith(f"{key}."):
                return f"--set {override.key}" if override.said == "--set" else override.said
        return ""

    def document(self, overrides: list[Override]) -> dict[str, Any]:
        """The TOML with the overrides in it."""
        try:
            document = tomllib.loads(self._text)
        except (ValueError, RecursionError) as error:
            raise SpecError(str(self.path), [Problem("the file", "", f"it is not TOML: {error}")]) from error
        self._overrides = overrides
        for override in overrides:
            self._override(document, override.key, override.value)
        return document

    def sections(self, document: dict[str, Any]) -> dict[str, Any]:
        """Every value by its key's path, read; problems for all that is wrong or unknown."""
        values: dict[str, Any] = {}
        tops = {**SECTIONS[""], **dict.fromkeys([*SECTIONS, "space"])}
        del tops[""]
        self._unknown("", document, tops)
        self._section("", {k: document[k] for k in SECTIONS[""] if k in document}, SECTIONS[""], values)
        for section, keys in SECTIONS.items():
            content = document.get(section, {})
            if not section:
                continue
            if not isinstance(content, dict):
                self.wrong(section, content, "a table is needed")
                continue
            known = {**keys, **self._provider_keys(content)} if section == "cluster" else keys
            self._unknown(section, content, known)
            self._section(section, content, known, values)
        for key in REQUIRED:
            if key not in values and not any(problem.path in (key, key.split(".")[0]) for problem in self.problems):
                self.wrong(key, None, "is missing")
        return values

    def space(self, content: Any) -> Space:
        """The `[space]` table."""
        if not isinstance(content, dict) or not content:
            self.wrong("space", content, "a table [space] with at least one parameter is needed")
            return Space()
        parameters: list[Parameter] = []
        for key, value in content.items():
            try:
                parameters.append(v.parameter(key, value))
            except (ValueError, OverflowError) as error:
                self.wrong(f"space.{key}", value, str(error))
        return Space(tuple(parameters))

    def _section(self, section: str, content: dict[str, Any], keys: dict[str, v.Read], values: dict[str, Any]) -> None:
        for key, value in content.items():
            if key not in keys:
                continue
            path = f"{section}.{key}" if section else key
            try:
                values[path] = keys[key](value)
            except (ValueError, OverflowError) as error:
                self.wrong(path, value, str(error))

    def _unknown(self, section: str, content: dict[str, Any], known: Iterable[str]) -> None:
        known = list(known)
        for key in content:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1, 0.5)
                path = f"{section}.{key}" if section else key
                self.wrong(path, None, f"is not a key of {f'[{section}]' if section else 'a spec'}", *near)

    def _provider_keys(self, cluster: dict[str, Any]) -> dict[str, v.Read]:
        """The keys of the chosen provider; those of the others are told apart from typing mistakes."""
        provider = cluster.get("provider", "local")
        for other, keys in CLUSTER_KEYS.items():
            for key in set(keys) & set(cluster):
                if other != provider and key not in CLUSTER_KEYS.get(str(provider), {}):
                    self.wrong(
                        f"cluster.{key}", None, f"is only for provider = {other!r}, and the provider is {provider!r}"
                    )
        return {key: read for keys in CLUSTER_KEYS.values() for key, read in keys.items()}

    def _override(self, document: dict[str, Any], key: str, value: str) -> None:
        *tables, last = key.split(".")
        inside = document
        for part in tables:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                self.wrong(key, value, f"{part} is not a table")
                return
        inside[last] = _toml_or_text(value)


def _toml_or_text(value: str) -> Any:
    if "\n" in value:
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, KeyError, RecursionError):
        return value


def _lines(text: str) -> Iterable[tuple[str, int]]:
    """Where each key stands, near enough for a message: (path, line number from 1)."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([\w.-]+)\]", line):
            section = header[1]
            yield section, number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            yield (f"{section}.{key[1]}" if section else key[1]), number


def _shown(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _build(values: dict[str, Any], space: Space, path: Path, text: str, reader: _Reader) -> Spec:
    get = values.get
    folder = path.parent
    policy = _policy(get, reader)
    cluster_keys = {key for keys in CLUSTER_KEYS.values() for key in keys} - {"gpus"}
    return Spec(
        name=get("name", v.name(re.sub(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]+", "", folder.name)[:64] or "run")),
        metric=Metric(get("metric.name", ""), get("metric.mode", "max")),
        train=_train(get, folder, reader),
        space=space,
        policy=policy,
        limits=SpecLimits(get("limits.deadline"), get("limits.budget"), get("limits.cost"), get("limits.max_gpus")),
        cluster=Cluster(
            get("cluster.provider", "local"),
            get("cluster.gpus"),
            _store(get("cluster.store"), folder, reader),
            {key: get(f"cluster.{key}") for key in sorted(cluster_keys) if f"cluster.{key}" in values},
        ),
        folder=folder,
        text=text,
    )


Get = Callable[..., Any]


def _policy(get: Get, reader: _Reader) -> PolicyParams:
    name = get("policy.name", "seer")
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, 1, 0.5)
        reader.wrong("policy.name", name, f"this version has: {', '.join(POLICIES)}", *near)
    p_min, p_max = get("policy.p_min", 1), get("policy.p_max")
    if p_max is not None and p_max < p_min:
        reader.wrong("policy.p_max", p_max, f"it must be at least p_min = {p_min}")
    return PolicyParams(
        name=name,
        eta=get("policy.eta", 4.0),
        nu=get("policy.nu", 2),
        p_min=p_min,
        p_max=p_max,
        t_min_s=get("policy.t_min", 60.0),
        seed=get("policy.seed", 0),
        trials=get("policy.trials"),
        min_reports=get("policy.min_reports"),
        max_reports=get("policy.max_reports"),
    )


def _train(get: Get, folder: Path, reader: _Reader) -> Train:
    source = _path(folder, get("train.source", "."), "train.source", reader)
    script = get("train.script", "")
    launcher = get("train.launcher", "torchrun")
    if not source.is_dir():
        reader.wrong("train.source", get("train.source"), "there is no such folder")
    elif script and launcher != "command":
        script = _script(script, folder, source, reader)
    elif script and not get("train.setup") and not get("train.data"):  # which may bring it
        _look_for(script, source, get, reader)
    return Train(
        script=script,
        source=source,
        args=get("train.args", ()),
        launcher=launcher,
        python=get("train.python"),
        setup=get("train.setup", ()),
        data=get("train.data", ()),
        env=get("train.env", {}),
    )


def _script(script: str, folder: Path, source: Path, reader: _Reader) -> str:
    """The script's path inside the source, which is what is shipped."""
    path = _path(folder, script, "train.script", reader)
    if not path.is_file():
        others = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        reader.wrong(
            "train.script", script, "there is no such file", *difflib.get_close_matches(path.name, others, 1, 0.5)
        )
    elif not path.is_relative_to(source):
        reader.wrong("train.script", script, f"it must lie inside the source folder {source}")
    else:
        return path.relative_to(source).as_posix()
    return script


def _look_for(script: str, source: Path, get: Get, reader: _Reader) -> None:
    search = get("train.env", {}).get("PATH") or os.environ.get("PATH", os.defpath)
    try:
        reason = program.why_not(script, source, search, here=get("cluster.provider", "local") == "local")
    except (OSError, RuntimeError, ValueError) as error:
        reason = f"it cannot be a path: {getattr(error, 'strerror', None) or error}"
    if reason:
        reader.wrong("train.script", script, reason)


def _store(store: str | None, folder: Path, reader: _Reader) -> str | None:
    if store is None or store.startswith("s3://"):
        return store
    if "://" in store:
        reader.wrong("cluster.store", store, "a directory or s3://bucket/prefix is allowed")
    return str(_path(folder, store, "cluster.store", reader))


def _path(folder: Path, name: str, key: str, reader: _Reader) -> Path:
    """Where this is, links followed; the folder itself, and a problem, if it can be nowhere."""
    try:
        path = (folder / name).resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links
        reader.wrong(key, name, f"it cannot be a path: {getattr(error, 'strerror', None) or error}")
        return folder
    return path
