"""From `seerd resume` until all eight conversations of a killed daemon are back, on the rig: prints
JSON. Takes root, as the rig does.
"""

from __future__ import annotations

import json
import os
import time

from eight import INSTANCES, events, running

from seerd.core.events import RunResumed


def main() -> None:
    with running() as coordinator:
        (daemon,) = coordinator.running()
        daemon.kill()
        daemon.wait()
        began = time.time()
        coordinator.start("resume", "last", "--plain")
        coordinator.says("instances that are still there")
        found, origin = events(coordinator)
        resumed = next(event for event in found if isinstance(event, RunResumed))
        told = {
            "instances": len(resumed.alive),
            "resume_to_all_back_s": round(origin + resumed.at - began, 3),
            "load": [round(load, 2) for load in os.getloadavg()],
        }
    assert len(resumed.alive) == INSTANCES
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
