"""What `seerd report` takes for a run of 10,000 trials: CPU seconds, beside `seerd show` of it, and
the size of the page. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.journal import cpu_s, kept, run

TRIALS = 10_000


def main() -> None:
    world = run(TRIALS)
    with tempfile.TemporaryDirectory() as home:
        folder = kept(world, Path(home))
        page = Path(home) / "page.html"
        report_s = cpu_s("report", folder.name, "--to", str(page), "--home", home, rounds=2)
        show_s = cpu_s("show", folder.name, "--json", "--home", home, rounds=2)
        told = {
            "trials": len(world.state.trials),
            "events": len(world.journal),
            "report_cpu_s": report_s,
            "show_cpu_s": show_s,
            "page_mb": round(page.stat().st_size / 1e6, 2),
        }
        if len(sys.argv) > 1:
            Path(sys.argv[1]).write_bytes(page.read_bytes())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
