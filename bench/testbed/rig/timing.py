"""How long things take on a rig: as on EC2, or as fast as this machine can.

The one rule: every figure says where it was seen, and nobody else waits for appearances.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

PATIENT = ("Describe", "Get", "List")


@dataclass(slots=True)
class Timing:
    """Seconds. `pending_s`: from launch to running, and up to `spread_s` more, by chance;
    `address_s`: from running until its addresses are told, 0: from the launch on; `boot_s`: from
    running to sshd; `nologin_s`: then until users may log in; `cold_s`: what the first import of
    torch on an instance takes, as its disk is read; `hidden_s`: how long describes do not know a
    new instance; `shutting_down_s`: from the last billed second to terminated; `fading_s`: from
    then on, how long its tags are told; `image_s`: how long an image is pending; `run_s`,
    `look_s`: what a launch and any other call of EC2 takes to be answered, looks up to twice that.

    The values here are EC2's: launches answer in 1.5 s and run after 8 to 20 s, GPU instances shut
    down for minutes (github.com/aws/karpenter-provider-aws/issues/7019), an address may come after
    `running` (github.com/ClusterHQ/flocker/issues/2237), and a disk made of a snapshot is read
    slowly the first time (docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html).
    """

    pending_s: float = 8.0
    spread_s: float = 12.0
    address_s: float = 1.5
    boot_s: float = 8.0
    nologin_s: float = 0.5
    cold_s: float = 15.0
    hidden_s: float = 0.5
    shutting_down_s: float = 180.0
    fading_s: float = 60.0
    image_s: float = 120.0
    run_s: float = 1.5
    look_s: float = 0.2

    def pends_s(self) -> float:
        return self.pending_s + random.uniform(0.0, self.spread_s)

    def answers_s(self, action: str) -> float:
        """What this call of EC2 takes, before it is carried out."""
        return self.run_s if action == "RunInstances" else self.look_s * random.uniform(1.0, 2.0)


def fast() -> Timing:
    """As fast as it goes: nothing waits but what the life of an instance needs to be seen."""
    nothing = {one.name: 0.0 for one in fields(Timing)}
    return Timing(**nothing | {"pending_s": 0.05, "shutting_down_s": 0.2, "image_s": 0.5})
