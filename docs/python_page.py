"""Write docs/python.md from the signatures and docstrings of what `import seerd` gives.

`make docs` runs it.

The one rule: nothing is said of a function here that its docstring does not say.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import seerd

PAGE = Path(__file__).with_name("python.md")
OPENING = """# From Python

```python
import seerd

run = seerd.run("spec.toml", deadline="30m", budget="60gpu-min")  # as `seerd run`
run.best.path  # checkpoint.pt and config.json
run.trials(), run.reports(), run.ledger()  # data frames
run.curves()  # a picture; in a notebook it shows itself

spec = {
    "metric": {"name": "accuracy", "mode": "max"},
    "train": {"script": "train.py"},
    "space": {"lr": {"low": 1e-4, "high": 1.0, "log": True}},
}
run = seerd.run(spec, deadline="30m", budget="60gpu-min")
run = await seerd.run_async(spec, deadline=1800, budget=3600)
seerd.load("last").report()  # the page of `seerd report`
```

`pip install '.[notebook]'` has what data frames and pictures need. The notebooks
[digits](../examples/notebooks/digits.ipynb) (tune, look, take the model) and
[analysis](../examples/notebooks/analysis.ipynb) (look at any run) are in `examples/notebooks`.

It is the command line as functions: the same checks, messages, plan, daemon and locks, so
`seerd show`, `seerd stop` and the others look after such a run too. Errors are raised: those of
`seerd.errors`, each of which is a `SeerdError`. A run goes on in a thread of the process that
calls. If that process is killed, the agents beside the trials go on for a while, and
`seerd.load("last").resume()` or `seerd resume last` takes the run up.

A run that ends without a model is no error; its `best` is one, and says why. If the script saves
none by design, `best` is the best configuration, and `best.path` is the error. A run that somebody
else stops ends with the state "interrupted".

What a training script uses (`seerd.trial()`) is in [training-side.md](training-side.md).
`make docs` writes this page from the code.
"""
FIELD = re.compile(r"^(\w+)  +(\S.*)$")
"""A field of a class in its docstring."""
ENTRY = re.compile(r"^    ([\w.]+): (\S.*)$")
"""An argument or an error in a section of a docstring."""


def page() -> str:
    """Write the whole page as Markdown."""
    found = [getattr(seerd, name) for name in ("run", "run_async", "load", "Run", "Best")]
    found += [type_of(seerd.Run.curves), type_of(seerd.Run.report)]
    parts = [OPENING]
    for one in found:
        parts.extend(described(one, f"seerd.{one.__name__}", 2))
    return "\n".join(parts)


def type_of(method: Any) -> type:
    """Return what a method of a run returns: a class of its own that is not imported by name."""
    from seerd.api import handle

    name = inspect.signature(method).return_annotation
    found: type = getattr(handle, name)
    return found


def described(one: Any, name: str, depth: int) -> Iterator[str]:
    """Yield a function's part of the page, or a class's with that of all its public members."""
    if not inspect.isclass(one):
        yield from (
            f"{'#' * depth} `{name}`\n",
            signature(one, name),
            *described_in(inspect.getdoc(one) or ""),
        )
        return
    yield from (
        f"{'#' * depth} `{name.removeprefix('seerd.')}`\n",
        *described_in(inspect.getdoc(one) or ""),
    )
    for member, value in vars(one).items():
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield from (
                f"{'#' * (depth + 1)} `.{member}`\n",
                *described_in(inspect.getdoc(value.fget) or ""),
            )
        elif inspect.isfunction(value):
            yield from described(value, f".{member}", depth + 1)


def signature(function: Any, name: str) -> str:
    """Write how it is called, an argument on each line if one line is too narrow."""
    found = inspect.signature(function)
    given = list(arguments(found))
    start = "await " if inspect.iscoroutinefunction(function) else ""
    end = f") -> {found.return_annotation}"
    line = f"{start}{name}({', '.join(given)}{end}"
    if len(line) > 96:
        line = "\n".join([f"{start}{name}(", *(f"    {one}," for one in given), end])
    return f"```python\n{line}\n```\n"


def arguments(found: inspect.Signature) -> Iterator[str]:
    """Yield each argument with its type and what it is if it is not given."""
    named = False
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        if one.name != "self":
            default = "" if one.default is one.empty else f" = {one.default!r}"
            yield f"{one.name}: {one.annotation}{default}"


def described_in(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring: arguments, errors and fields as lists, examples as
    code.
    """
    for paragraph in docstring.split("\n\n"):
        head, *lines = paragraph.splitlines()
        if FIELD.match(head):
            yield listed([head, *lines], FIELD)
        elif head == "Args:":
            yield listed(lines, ENTRY)
        elif head == "Raises:":
            yield f"Raises:\n\n{listed(lines, ENTRY)}"
        elif head == "Returns:":
            yield f"Returns: {' '.join(line.strip() for line in lines)}\n"
        elif head == "Example:":
            code = "\n".join(line.removeprefix("    ") for line in lines)
            yield f"```pycon\n{code}\n```\n"
        else:
            yield f"{paragraph}\n"


def listed(lines: Iterable[str], entry: re.Pattern[str]) -> str:
    """Write entries as a list; a line that begins none goes on with the last one."""
    found = ((entry.match(line), line) for line in lines)
    rows = (f"- `{new[1]}`: {new[2]}" if new else f"  {line.strip()}" for new, line in found)
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
