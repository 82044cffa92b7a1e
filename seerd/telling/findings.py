"""What `seerd doctor` has found, for people."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from seerd.units import count

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor_view(told: dict[str, Any], spec: str) -> Text:
    """Draw the value of `doctor --json`."""
    text = Text()
    for check in told["checks"]:
        head, *more = check["found"].splitlines() or [""]
        text.append(f"{check['level']:<8}", style=STYLES[check["level"]])
        text.append(f" {check['check']}: {head}\n")
        for line in more:
            text.append(f"           {line}\n")
        if check["todo"]:
            text.append(f"           -> {check['todo'].replace('SPEC', spec)}\n", style="dim")
    if told["missing"]:
        text.append(f"\nmissing permissions: {', '.join(told['missing'])}\n")
        text.append(f"the whole policy: seerd doctor {spec} --policy\n")
    return text.append(_verdict(told["problems"], told["warnings"]))


def _verdict(problems: int, warnings: int) -> str:
    if not problems and not warnings:
        return "all is well"
    parts = [
        count(number, name)
        for number, name in ((problems, "problem"), (warnings, "warning"))
        if number
    ]
    return " and ".join(parts) + ("" if problems else "; a run can begin")
