"""How long Chromium takes to open the page that `seerd report` writes: from the navigation until it
is loaded, and until the second frame after that is drawn, in seconds. Prints JSON.

    python bench/page.py page.html [rounds]

Chromium is asked through its DevTools, on a pipe (chromedevtools.github.io/devtools-protocol).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DRAWN = """new Promise((drawn) =>
  requestAnimationFrame(() => requestAnimationFrame(() => drawn(performance.now()))))"""
ON_PIPES = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])"""
"""Chromium reads from descriptor 3 and writes to descriptor 4."""
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


class Chromium:
    """A browser without a window, with a profile of its own and one page."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp()
        program = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={self._profile}", "--disable-gpu", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_PIPES, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left = b""
        self._asked = 0
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.ask("Page.enable")

    def open(self, page: Path) -> tuple[float, float]:
        """Open a page; return when it was loaded and when it was drawn, seconds."""
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass
        drawn, loaded = self.value(DRAWN), self.value(LOADED)
        return loaded / 1e3, drawn / 1e3

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True)
        return answer["result"]["value"]

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; events meanwhile are passed over."""
        self._asked += 1
        command: dict[str, Any] = {"id": self._asked, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while (answer := self._read()).get("id") != self._asked:
            pass
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            came = os.read(self._from, 1 << 20)
            if not came:
                raise SystemExit("chromium has ended; is it installed?")
            self._left += came
        message, _, self._left = self._left.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)


def main() -> None:
    page, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    found = []
    for _ in range(rounds):
        with Chromium() as browser:
            found.append(browser.open(page))
    loaded, drawn = (sorted(one) for one in zip(*found, strict=True))
    told = {
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "loaded_s": {"median": round(loaded[rounds // 2], 3), "worst": round(loaded[-1], 3)},
        "drawn_s": {"median": round(drawn[rounds // 2], 3), "worst": round(drawn[-1], 3)},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
