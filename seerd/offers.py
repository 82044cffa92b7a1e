"""What a cloud says before anything is rented: prices, GPUs of a type, quota, who asks.

The one rule: it is asked once, before the plan is made; a plan that cannot be rented is refused before anything starts.
"""

from __future__ import annotations

import getpass

from seerd.facts import Lease, bundled_offer
from seerd.planning import Planned
from seerd.shell.home import Home
from seerd.spec import Spec


def ask(spec: Spec, home: Home) -> Lease | None:
    """What would be rented for this spec; None where nothing is."""
    if spec.cluster.provider != "ec2":
        return None
    return Lease(bundled_offer(spec), getpass.getuser())


def check_quota(spec: Spec, lease: Lease | None, planned: Planned) -> None:
    """Raise `CloudError` if the account's quota is smaller than the plan's peak."""
