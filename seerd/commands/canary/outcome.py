"""The results of a canary: one outcome for each check, the moments of an instance's life, and the
most that it may cost. What could not be found out is `unknown`, and never `passed`; what the spec
does not use is `untried`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seerd.errors import CapError
from seerd.units import format_duration

Result = Literal["passed", "failed", "unknown", "untried"]

# checks of what only some specs use, see `parts`
CREDENTIALS, WAY_IN, FALLBACK = "credentials", "way in", "spot, then on-demand"
CAPACITY, DISKS, SCRATCH = "capacity", "disks", "scratch"

# All checks in the order of the report, each with what is proved if it passes.
CHECKS: Mapping[str, str] = {
    "doctor": "seerd doctor finds no problem",
    CREDENTIALS: "they outlast a run of the spec, and can be read anew",
    "printed policy": "the doctor finds nothing missing under exactly the policy that it prints",
    "request": "EC2 takes the launch",
    "pending": "EC2 knows the instance",
    "running": "EC2 bills it from here on",
    "address": "EC2 shows the address to log in to",
    "port 22": "something listens there",
    "right key": "it shows the host key that it was launched with, and lets seerd's key in",
    WAY_IN: "the login goes the way that the spec and ~/.ssh/config name",
    "agent": "the agent has arrived and takes orders",
    "user data": "the first lines of the user data have run",
    "one token, one instance": "the same request again gives the same instance",
    "timer": "the power-off at the hard end is scheduled, for the right moment",
    "orphan watch": "what ends an instance without an agent runs",
    "IMDSv1": "its metadata is refused without a token",
    "no credentials": "it has no role, and so no credentials",
    "sudo": "the user may power it off, and nothing else as root",
    "PUT": "the agent puts an object by a presigned URL",
    "multipart": "the agent puts a large object in parts",
    "expired URL": "a URL whose time is over is refused",
    "encryption": "S3 says how it encrypts what is put there",
    "wrong image": "EC2 refuses an image that is not there, in words that seerd knows",
    "wrong zone": "EC2 refuses a zone that is not there, in words that seerd knows",
    "wrong price": "EC2 refuses a bid that is too low, in words that seerd knows",
    FALLBACK: "where no spot pool takes a launch, on-demand does",
    CAPACITY: "what was bought is there, and has instances that nobody uses",
    "sweep": "a second terminal with fresh credentials finds what this one has launched",
    "lease": "an instance whose coordinator falls silent ends by itself",
    "reboot": "an instance that has worked and is rebooted ends by itself",
    "termination": "EC2 takes the end of an instance",
    "shutting-down": "it is gone some time later, which is not billed",
    "GPU": "an instance with a GPU comes, and its driver answers",
    DISKS: "disks are as fast as the spec asks",
    SCRATCH: "the instance store is mounted, and the agent's home is there",
    "torch, cold": "torch is imported for the first time, and has the GPU",
    "torch, warm": "torch is imported again",
    "nothing left": "no instance and no volume is left that costs",
}
GPU_CHECKS = frozenset({"GPU", "torch, cold", "torch, warm"})
GPU_PARTS = (DISKS, SCRATCH)  # tried on the instance with a GPU, if the spec uses them


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of a check."""

    check: str  # its name, a key of `CHECKS`
    result: Result  # whether it has passed
    said: str  # why, or what was seen, in a sentence
    seconds: float | None = None  # how long it took; None: it is not about time
    code: str = ""  # AWS's code, if it is about a refusal
    status: int | None = None  # HTTP status of that refusal; None: it is about none


def passed(check: str, said: str, seconds: float | None = None) -> CheckOutcome:
    """Return the outcome of a check that has passed."""
    return CheckOutcome(check, "passed", said, seconds)


def failed(check: str, said: str, seconds: float | None = None) -> CheckOutcome:
    """Return the outcome of a check that has failed."""
    return CheckOutcome(check, "failed", said, seconds)


def unknown(check: str, said: str) -> CheckOutcome:
    """Return the outcome of a check that could not be made."""
    return CheckOutcome(check, "unknown", said)


def untried(check: str, said: str) -> CheckOutcome:
    """Return the outcome of a check of what is not used."""
    return CheckOutcome(check, "untried", said)


def refused(check: str, result: Result, said: str, refusal: Any) -> CheckOutcome:
    """Return the outcome of a check that AWS answers with a refusal, which has code and status."""
    return CheckOutcome(check, result, said, None, refusal.code, refusal.status or None)


@dataclass(slots=True)
class OutcomeLog:
    """The outcomes so far. `tell` gets each as it comes, `say` why an instance is waited for."""

    tell: Callable[[CheckOutcome], None]
    say: Callable[[str], None] = print
    outcomes: dict[str, CheckOutcome] = field(default_factory=dict)

    def add(self, *outcomes: CheckOutcome) -> None:
        """Record these outcomes; of a check that has one already, the first counts."""
        for one in outcomes:
            if one.check not in self.outcomes:
                self.outcomes[one.check] = one
                self.tell(one)

    def complete(self, *, gpu: bool, why: str) -> list[CheckOutcome]:
        """List the outcomes of all checks in their order; those that were not made are unknown,
        with the reason `why`.
        """
        wanted = [check for check in CHECKS if gpu or check not in GPU_CHECKS]
        self.add(*(unknown(one, why) for one in wanted))
        return [self.outcomes[check] for check in wanted]


# ------------------------------------------------------------ the life of an instance


@dataclass(slots=True)
class WatchedLaunch:
    """A launch, and when what was seen of it, seconds since 1970; None: it was not seen."""

    instance: str = ""  # the instance's id; empty: there is none yet
    # what EC2 was asked for, the latest until it has answered
    request: Mapping[str, Any] = field(default_factory=dict)
    asked: float | None = None  # its launch was sent
    answered: float | None = None  # EC2 had answered
    pending: float | None = None  # EC2 knew it
    running: float | None = None  # EC2 said first that it runs
    address: float | None = None  # EC2 showed the address to log in to
    port: float | None = None  # its port 22 took a connection
    login: float | None = None  # it had shown the right host key and let seerd in
    agent: float | None = None  # its agent took connections
    ending: float | None = None  # EC2 said first that it is ending, or dated that
    gone: float | None = None  # EC2 said first that it is terminated
    reason: str = ""  # EC2's code for its end
    refused: str = ""  # EC2's code of the last refusal of its launch
    way: str = ""  # what the login goes through, for people; empty: it goes straight

    def billed_s(self, now: float) -> float:
        """Return the seconds that are billed by `now`, at least 60 once it has run."""
        if self.running is None:
            return 0.0
        return max(LEAST_BILLED_S, (self.ending or now) - self.running)


LEAST_BILLED_S = 60.0  # for each launch (aws.amazon.com/ec2/pricing/on-demand)
STEPS: Sequence[tuple[str, str]] = (
    ("request", "answered"),
    ("pending", "pending"),
    ("running", "running"),
    ("address", "address"),
    ("port 22", "port"),
    ("right key", "login"),
    ("agent", "agent"),
)


def timeline(launch: WatchedLaunch, trouble: str) -> list[CheckOutcome]:
    """Return how far a launch came, in seconds since it was asked for. `trouble`: why it went no
    further; empty: it did not fail.
    """
    outcomes: list[CheckOutcome] = []
    for check, name in STEPS:
        at = getattr(launch, name)
        if at is not None and launch.asked is not None:
            seconds = at - launch.asked
            said = f"{format_duration(round(seconds, 1))} after it was asked for"
            outcomes.append(passed(check, said, seconds))
        elif trouble:
            outcomes.append(failed(check, trouble))
            trouble = ""
        else:
            outcomes.append(unknown(check, "the launch did not come so far"))
    return outcomes


# ------------------------------------------------------------ money

CAP_USD, GPU_CAP_USD = 0.10, 0.20  # a canary never costs more, without and with a GPU
LONGEST_S = 720.0  # seconds until a small instance powers itself off, whatever happens
# the same for the instance with a GPU: five minutes, and half a minute for its own timer
LONGEST_GPU_S = 330.0
GPU_WORK_S = 300.0
DISK_USD_PER_GB_H = 0.1520 / 730  # gp3 where it is dearest (aws.amazon.com/ebs/pricing, sa-east-1)
DEAREST = 1.9  # that price, in times of us-east-1's
ADDRESS_USD_PER_H = 0.005  # a public address (aws.amazon.com/vpc/pricing)
# requests to S3 (dozens, at most $0.007 for 1,000), and 32 MiB there for a minute
OTHER_USD = 0.005


# Both vCPUs of a t3.small beyond its price, if they never rest: of each a fifth is in the price,
# and a vCPU-hour costs $0.05 (aws.amazon.com/ec2/pricing/on-demand, "T4g/T3 Unlimited Mode").
BURST_USD_PER_H = 2 * 0.8 * 0.05


@dataclass(frozen=True, slots=True)
class CanaryRental:
    """Instances that are to be rented."""

    type: str
    instances: int
    usd_per_h: float  # USD for an hour of one
    longest_s: float  # seconds after which they end by themselves
    disk_gb: int  # GB of each one's disks
    bursts: bool = False  # whether what they compute may cost beyond their price
    speed_usd_per_h: float = 0.0  # USD for an hour of what makes the disks of one fast

    @property
    def most_usd(self) -> float:
        """The most USD that they may cost, disks and public addresses included."""
        hours = self.instances * max(LEAST_BILLED_S, self.longest_s) / 3600
        extra = ADDRESS_USD_PER_H + (BURST_USD_PER_H if self.bursts else 0.0)
        extra += self.speed_usd_per_h
        return hours * (self.usd_per_h + self.disk_gb * DISK_USD_PER_GB_H + extra)


def most_usd(rentals: Sequence[CanaryRental]) -> float:
    """Return the most USD that a canary may cost."""
    return sum(one.most_usd for one in rentals) + OTHER_USD


def cap_usd(*, gpu: bool) -> float:
    """Return the USD that a canary never costs more than."""
    return GPU_CAP_USD if gpu else CAP_USD


def check_cap(rentals: Sequence[CanaryRental]) -> float:
    """Return the most USD that these may cost; any after the first have a GPU. Raises `CapError` if
    that is above the cap.
    """
    most, gpu = most_usd(rentals), len(rentals) > 1
    cap = cap_usd(gpu=gpu)
    if not most <= cap:
        alone = gpu and most_usd(rentals[:1]) <= CAP_USD
        advice = "leave --gpu away" if alone else "choose an image with a smaller disk"
        raise CapError(
            f"nothing was started: it might cost ${most:.3f}, and such a canary never costs more "
            f"than ${cap:.2f}; you can {advice}, or take another cluster.region."
        )
    return most
