"""The metrics that a script prints, and the patterns that read them. A pattern is as short as it
can be without reading another line, as one of training for one of validation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from seerd.agent.patterns import NUMBER_PLACE, NumberPattern
from seerd.commands.init.options import (
    OF_PERCENT,
    by_format,
    by_percent,
    called,
    calls_in,
    keywords_of,
    value_of,
)

# Words that name a metric, the likeliest goal first.
METRICS = (
    *("accuracy", "acc", "f1", "auc", "map", "iou", "dice", "bleu", "rouge", "top1", "prec"),
    *("precision", "recall", "r2", "psnr", "ssim", "score", "reward", "return", "perplexity"),
    *("ppl", "wer", "cer", "fid", "error", "err", "rmse", "mse", "mae", "logloss", "nll", "loss"),
)
LESS_IS_BETTER = METRICS[METRICS.index("perplexity") :]
NAMED = re.compile(
    r"(?<![a-z])(?:val|valid|validation|test|eval|dev|train|avg|mean|best|m)?_?"
    rf"({'|'.join(sorted(METRICS, key=len, reverse=True))})(?:es|s)?(?![a-z])",
    re.IGNORECASE,
)
TESTED = re.compile(r"(?<![a-z])(?:val|test|eval|dev)", re.IGNORECASE)
WORDS_BEFORE = re.compile(r"(['\"]?[A-Za-z_][\w/@ ]*?)([^\w\n]{1,6})$")
# the end of a metric's name that no value follows
NO_METRIC = re.compile(r"\b(?:with|in|mixed|half) precision\W+$|ERROR\W+$|,\s*$")
PADDED = re.compile(r"[ <>^+=-]?[1-9]\d*")
MANY = 3  # with so many values before a metric, its line rather shows how a pass goes on
FIELD = "\0"  # stands for a value in a line, after two spaces where it may be padded
PRINTS = ("print", "info", "debug", "warning", "echo", "secho", "write", "display")


# Training loops of libraries, which print by themselves: modules, what starts it, what reads a
# metric from its lines, and the metric's name where none is named.
LOOPS = (
    ({"keras", "tensorflow"}, "fit", "val_{}: ", "loss"),
    ({"xgboost"}, "train", r"eval\S*-{}:", r"\w+"),
    ({"lightgbm"}, "train", r"'s {}: ", r"\w+"),
)
# what names the metric of such a loop, as `ast.unparse` writes it
OF_LOOP = re.compile(r"\b(?:metrics?|eval_metric)'?[=:] ?\[?'(\w+)'")


@dataclass(frozen=True, slots=True)
class PrintedMetric:
    """A metric that the script prints."""

    name: str  # the word before it
    pattern: str  # what reads it from a line
    ambiguous: bool = False  # whether the same line is printed elsewhere of something else

    @property
    def mode(self) -> str:
        """Whether more or less of it is better, by its name."""
        found = NAMED.search(self.name)
        return "min" if found and found[1].lower() in LESS_IS_BETTER else "max"


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """A line that the script makes."""

    text: str  # the line, with `FIELD` for values
    function: str  # the name of the function that makes it
    shown: bool  # whether it is seen to be printed


def metrics_of(lines: list[PrintedLine]) -> list[PrintedMetric]:
    """Return the metrics in these lines, the likeliest goal first."""
    ranked = []
    for line in lines:
        parts = line.text.split(FIELD)
        for place, part in enumerate(parts[:-1]):
            metric = _metric(FIELD.join([*parts[:place], ""]), part, line, lines)
            if metric is not None:
                ranked.append((_rank(metric, line), metric))
    return list(dict.fromkeys(metric for _, metric in sorted(ranked, key=lambda one: one[0])))


def metrics_of_loops(tree: ast.Module, modules: set[str]) -> Iterator[PrintedMetric]:
    """Yield what training loops of libraries print."""
    calls = {called(call) for call in calls_in(ast.walk(tree))}
    if modules & {"transformers", "trl"} and any(one.endswith("Trainer") for one in calls):
        # what transformers' Trainer prints when it evaluates
        yield PrintedMetric("eval_loss", "'eval_loss': '?" + NUMBER_PLACE)
    named = OF_LOOP.search(ast.unparse(tree))
    for libraries, call, pattern, unnamed in LOOPS:
        if modules & libraries and call in calls:
            reads = pattern.format(named[1] if named else unnamed) + NUMBER_PLACE
            yield PrintedMetric(f"val_{named[1] if named else 'loss'}", reads)


def logged_by(calls: list[ast.Call]) -> Iterator[str]:
    """Yield the names of the metrics that modules of Lightning's log."""
    for call in calls:
        name = value_of(call.args[0]) if call.args else None
        if ast.unparse(call.func) == "self.log" and isinstance(name, str) and NAMED.search(name):
            yield name


def lines_of(tree: ast.Module) -> list[PrintedLine]:
    """Return the lines that a script makes of words and values."""
    return list(dict.fromkeys(_lines(tree, "")))


def _lines(node: ast.AST, function: str) -> Iterator[PrintedLine]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise | ast.Assert | ast.ExceptHandler):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            call, name = child.value, called(child.value)
            shown = name in PRINTS or (name == "log" and isinstance(call.func, ast.Name))
            template = value_of(call.args[0]) if len(call.args) > 1 else None
            if name == "set_postfix":
                for key in keywords_of(call):
                    yield PrintedLine(f"{key}={FIELD}", function, shown=False)
            elif isinstance(template, str) and name != "print" and OF_PERCENT.search(template):
                text = by_percent(template, _field)  # logging fills it
                yield from _each(text, function, shown=shown)
            else:
                texts = [_text(part) or (_plain(part) if shown else "") for part in call.args]
                yield from _each(" ".join(texts), function, shown=shown)
        elif isinstance(child, ast.Assign | ast.AugAssign) and (text := _text(child.value)):
            yield from _each(text, function, shown=False)
        yield from _lines(child, child.name if isinstance(child, ast.FunctionDef) else function)


def _each(text: str, function: str, *, shown: bool) -> Iterator[PrintedLine]:
    for line in re.split(r"[\n\r]", text):
        if FIELD in line:
            yield PrintedLine(line, function, shown)


def _plain(node: ast.expr) -> str:
    """Return what a value is as it is printed: of a dict its keys."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Dict):
        return ", ".join(f"{ast.unparse(key)}: {FIELD}" for key in node.keys if key)
    return FIELD


def _text(node: ast.expr) -> str:
    """Return a text with values in it as it is printed; empty if it is something else."""
    if isinstance(node, ast.JoinedStr):
        parts = (_plain(p) if isinstance(p, ast.Constant) else _text(p) for p in node.values)
        return "".join(parts)
    if isinstance(node, ast.FormattedValue):
        spec = "" if node.format_spec is None else _text(node.format_spec)
        return _field(spec) if spec else _plain(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left = value_of(node.left)
        return by_percent(left, _field) if isinstance(left, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        text = "".join(_text(one) or _plain(one) for one in (node.left, node.right))
        return text if text.strip(FIELD) else ""
    if isinstance(node, ast.Call) and called(node) == "format":
        template = value_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        return by_format(str(template or ""), lambda _, form: _field(form))
    return ""


def _field(spec: str) -> str:
    return f"  {FIELD}" if PADDED.match(spec) else FIELD


def _metric(
    before: str, part: str, line: PrintedLine, lines: list[PrintedLine]
) -> PrintedMetric | None:
    """Return the metric whose name is at the end of `part`; its value follows."""
    found = WORDS_BEFORE.search(part)
    if not found or not NAMED.search(found[1].rpartition(" ")[2]) or NO_METRIC.search(found[0]):
        return None
    words = " ".join(found[1].split()[-2:])
    name = re.sub(r"\W+", "_", words.lower()).strip("_")
    others = [one.text.replace(FIELD, "0") for one in lines if one.text != line.text]
    others += [re.sub(r"\s+", " ", one) for one in others]  # a value that needs all its room
    for text in (words + found[2], part.lstrip(" |,;\t"), part, before + part):
        pattern = _pattern(text)
        if not any(NumberPattern(pattern).read(other) for other in others):
            twice = any(one.text == line.text and one != line for one in lines)
            return PrintedMetric(name, pattern, ambiguous=twice)
    return PrintedMetric(name, _pattern(words + found[2]), ambiguous=True)


def _pattern(text: str) -> str:
    """Return a pattern for this text, whatever its values are, and a number after it."""
    escaped = re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text.lstrip())
    spaced = re.sub(r"[ \t]{2,}|\t", r"\\s*", escaped)
    return spaced.replace(FIELD, r"\S+") + NUMBER_PLACE


def _rank(metric: PrintedMetric, line: PrintedLine) -> tuple[float, ...]:
    """Return less for likelier goals."""
    where = f"{line.function} {line.text}"
    tested, trained = (bool(TESTED.search(metric.name)), "train" in metric.name)
    if not tested and not trained:
        tested, trained = (bool(TESTED.search(where)), "train" in where.lower())
    kind = NAMED.search(metric.name)
    return (
        trained - tested,
        metric.ambiguous,
        "best" in metric.name,
        not line.shown,
        metric.pattern.count(r"\S+") > MANY,
        METRICS.index(kind[1].lower()) if kind else len(METRICS),
    )
