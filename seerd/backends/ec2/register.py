"""What is known of the run's instances between the answers of an API that lags behind. In doubt,
more time is counted: an instance runs from the last moment at which it certainly did not until the
first at which it had certainly ended. An end is final, whatever a later answer says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from seerd.aws.instances import ENDING, SeenInstance, Volume
from seerd.backends.base import Leftovers, Loss, Span

FORGET_S = 60.0
"""How long an instance may be missing from EC2's answers before it counts as gone, seconds."""

STOPPED = frozenset({"stopping", "stopped"})
"""States of a stopped instance: it is not billed, but its disks are."""

NEVER_RAN = frozenset(
    {
        "Server.InternalError",
        "Server.InsufficientInstanceCapacity",
        "Client.InternalError",
        "Client.InvalidSnapshot.NotFound",
        "Client.VolumeLimitExceeded",
        "Client.InvalidKMSKey.InvalidState",
    }
)
"""Reasons for an end straight after `pending`: the instance has never run
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html).
"""

TAKEN = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
"""Reasons for the end of a spot instance that AWS has taken back."""
BY_ITSELF = "Client.InstanceInitiatedShutdown"
REASONS = {
    **dict.fromkeys(TAKEN, "AWS took the spot instance back"),
    "Server.ScheduledStop": "AWS stopped it for maintenance",
    "Client.UserInitiatedShutdown": "somebody terminated it, in the console or through the API",
    BY_ITSELF: (
        "it powered itself off: its lease or the run's hard end was reached, "
        "it had no agent, or somebody rebooted it or shut it down"
    ),
    "Server.InternalError": "AWS could not start it, or its hardware failed",
    "Server.InsufficientInstanceCapacity": "AWS had no capacity for it after all",
    "Client.InternalError": (
        "AWS could not start it; often the key that encrypts its disk may not be used"
    ),
    "Client.VolumeLimitExceeded": "your account's quota for volumes is used up",
    "Client.InvalidSnapshot.NotFound": "the snapshot of its image is not there any more",
    "Client.InvalidKMSKey.InvalidState": "the key that encrypts its disk is disabled or deleted",
}
"""What EC2's codes for the end of an instance mean
(docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html).
"""


@dataclass(slots=True)
class RegisterEntry:
    """One instance. All times are wall clock, seconds since 1970."""

    instance: str
    token: str  # of its launch
    idle_at: float  # the last moment at which it was known not to run
    noted_at: float  # when it was last seen, or registered
    ran: bool = False  # whether it has ever run
    until: float | None = None  # when it ended; None if it has not
    why: str = ""  # why it ended, for people
    reason: str = ""  # EC2's code for its state
    missing_at: float | None = None  # since when answers lack it; None if they do not
    handed_over: bool = False  # whether the run has it, so that its end is a loss
    given_back: bool = False  # whether it is to be ended
    private: str = ""  # its private address
    public: str = ""  # its public address
    type: str = ""
    zone: str = ""  # its availability zone
    spot: bool = False  # whether it is a spot instance
    vpc: str = ""  # its network
    subnet: str = ""
    groups: tuple[str, ...] = ()  # ids of its security groups
    paid_until: float | None = None  # until when an earlier run has paid it; None: none has

    def see(self, seen: SeenInstance) -> None:
        """Take over the addresses and the place of an answer, if it has them."""
        self.private, self.public = seen.private or self.private, seen.public or self.public
        self.type, self.zone = seen.type or self.type, seen.zone or self.zone
        self.spot, self.vpc = seen.spot or self.spot, seen.vpc or self.vpc
        self.subnet, self.groups = seen.subnet or self.subnet, seen.groups or self.groups

    @property
    def ended(self) -> bool:
        """Whether it has ended and costs nothing more."""
        return self.until is not None

    def shows(self, *, public: bool) -> bool:
        """Return whether EC2 shows its private address, and its public one if that is wanted."""
        return bool(self.private and (self.public or not public))

    @property
    def hopeless(self) -> bool:
        """Whether it failed to start for a reason that would stop the next one, too."""
        return self.reason in NEVER_RAN and self.reason.startswith("Client.")

    @property
    def span(self) -> Span:
        """When it ran, as far as is known."""
        if not self.ran:
            return Span()
        return Span(self.idle_at, None if self.until is None else max(self.until, self.idle_at))


class Register:
    """All instances of the run that were ever seen or asked for."""

    def __init__(self) -> None:
        self._entries: dict[str, RegisterEntry] = {}

    def __contains__(self, instance: str) -> bool:
        return instance in self._entries

    def __getitem__(self, instance: str) -> RegisterEntry:
        return self._entries[instance]

    def of(self, token: str) -> list[RegisterEntry]:
        """Return the instances of this launch."""
        return [entry for entry in self._entries.values() if entry.token == token]

    def live(self) -> list[RegisterEntry]:
        """Return the instances that are not known to have ended."""
        return [entry for entry in self._entries.values() if not entry.ended]

    def restless(self) -> bool:
        """Return whether the start, the addresses or the end of an instance are awaited."""
        return any(
            not entry.ran or entry.given_back or not (entry.handed_over or entry.shows(public=True))
            for entry in self.live()
        )

    def expect(self, seen: SeenInstance, token: str, asked_at: float, now: float) -> RegisterEntry:
        """Register the instance of a launch that was first asked for at `asked_at`."""
        new = RegisterEntry(seen.instance, token, asked_at, now)
        entry = self._entries.setdefault(seen.instance, new)
        entry.see(seen)
        return entry

    def take_up(self, seen: SeenInstance, now: float, token: str = "") -> RegisterEntry:
        """Register an instance of an earlier process, and note EC2's answer, whose age is unknown:
        `pending` does not mean that it costs nothing now. It counts as running since EC2 accepted
        its launch. `token`: its launch, in case its tags are gone.
        """
        if seen.instance not in self._entries:
            new = RegisterEntry(seen.instance, token or seen.token, min(seen.launched_at, now), now)
            self._entries[seen.instance] = new
        self._note(seen, -math.inf, now)
        return self._entries[seen.instance]

    def observe(
        self,
        answer: Sequence[SeenInstance],
        asked_at: float,
        now: float,
        busy: Callable[[str], bool],
    ) -> tuple[list[Loss], list[str]]:
        """Record EC2's answer to a call at `asked_at`. Return the instances that are gone though
        nobody gave them back, and the ids of those that have to be ended. `busy`: whether a launch
        of this token does not know its instance yet.
        """
        losses = [
            loss
            for seen in answer
            if seen.instance in self._entries
            for loss in self._note(seen, asked_at, now)
        ]
        listed = {seen.instance for seen in answer}
        for entry in [entry for entry in self.live() if entry.instance not in listed]:
            entry.missing_at = asked_at if entry.missing_at is None else entry.missing_at
            if now - entry.noted_at > FORGET_S:
                losses += self._close(entry, entry.missing_at, "EC2 no longer knows it")
        strays = [
            seen
            for seen in answer
            if seen.instance not in self._entries
            and seen.state not in ENDING
            and not busy(seen.token)
        ]
        for stray in strays:
            self.take_up(stray, now).given_back = True
        halted = [
            s.instance
            for s in answer
            if s.state in STOPPED
            and s.instance in self._entries
            and not self._entries[s.instance].given_back
        ]
        for instance in halted:
            self._entries[instance].given_back = True
        return losses, [s.instance for s in strays] + halted

    def let_go(self, instance: str, at: float) -> None:
        """Record that an instance is not this run's any more."""
        entry = self._entries[instance]
        entry.handed_over, entry.until = False, at

    def end(self, instance: str, at: float, *, before: str = "") -> None:
        """Record that EC2 has confirmed the instance's end. `before`: its state until then."""
        entry = self._entries[instance]
        if not entry.ended:
            entry.ran = entry.ran or before not in {"", "pending"}
            entry.until = at

    def _note(self, seen: SeenInstance, asked_at: float, now: float) -> Iterable[Loss]:
        entry = self._entries[seen.instance]
        entry.noted_at, entry.missing_at = now, None
        entry.see(seen)
        if entry.ended:
            return []
        if seen.state == "pending" and not entry.ran:
            entry.idle_at = max(entry.idle_at, asked_at)
            return []
        entry.reason = seen.reason[0]
        entry.ran = entry.ran or seen.reason[0] not in NEVER_RAN
        if seen.state in ENDING | STOPPED:
            # the end of the second that EC2 names, unless that is impossible
            at = now if seen.ended_at is None else seen.ended_at + 1.0
            return self._close(entry, at if entry.idle_at <= at <= now else now, why(seen))
        return []

    def _close(self, entry: RegisterEntry, at: float, cause: str) -> list[Loss]:
        entry.until, entry.why = at, cause
        if entry.given_back or not entry.handed_over:
            return []
        return [Loss(entry.instance, f"{entry.instance} is gone: {cause}", entry.span)]


def remains(seen: Sequence[SeenInstance], disks: Sequence[Volume]) -> Leftovers:
    """Return which may cost money, and which are ending, with the disks that go with them."""
    ended = {instance.instance for instance in seen if instance.state in ENDING}
    left = Leftovers()
    for instance in seen:
        if instance.state != "terminated":
            name = f"{instance.instance} ({instance.type}, {instance.zone})"
            lines = left.ending if instance.state in ENDING else left.costing
            lines.append(f"instance {name} is {instance.state}")
    for disk in disks:
        if disk.state != "deleted":
            line = f"volume {disk.volume} ({disk.gb} GB) is {disk.state}"
            (left.ending if disk.ends_with(ended) else left.costing).append(line)
    return left


def why(seen: SeenInstance) -> str:
    """Return why it has ended, for people."""
    code, text = seen.reason
    if seen.state in STOPPED:
        return (
            "somebody stopped it, in the console or through the API; seerd terminates it, "
            "since its disks cost"
        )
    reason = REASONS.get(code)
    return f"{reason} ({code})" if reason else (text or "EC2 gives no reason")
