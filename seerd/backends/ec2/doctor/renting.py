"""What would be rented: types, their prices, the account's quota, the image. Each type is checked
by itself, since a run may get any of them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from seerd.aws import disk_keys, images, quotas, reservations, types
from seerd.aws.errors import NOT_PERMITTED, AwsError, ErrorKind
from seerd.aws.images import Image
from seerd.aws.reservations import Reservation
from seerd.aws.types import Ec2Type
from seerd.backends.backend import FREE_BYTES
from seerd.backends.ec2.asking import AskedPrice, price_of
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import check_gpus, quote_of
from seerd.backends.ec2.sweeping import Ec2Sweeper
from seerd.backends.examining import POLICY, Case, Finding, Level, Notes, Peak, denied_action
from seerd.errors import UsageError

QUOTA = "servicequotas:GetServiceQuota"
DAY_S = 86400.0
OLD_S = 365 * DAY_S  # from then on an image is old
NEWER = "name a newer one in cluster.image; docs/aws.md says how to find one"

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class AwsNotes(Notes):
    """What is examined in AWS, and the findings so far."""

    aws: Ec2Sweeper
    case: Case
    keys: Ec2Keys
    forbidden: bool = False  # whether a policy of others forbids a call

    def refused(self, check: str, action: str, error: AwsError, level: Level = "problem") -> None:
        """Note that AWS has refused a call which needs the permission `action`."""
        if error.kind is not ErrorKind.DENIED:
            self.forbidden = self.forbidden or error.kind is ErrorKind.FORBIDDEN
            self.note(check, level, str(error))
            return
        named = denied_action(str(error), action)
        also = "" if level == "problem" else "; a run can do without"
        says = f"; AWS says: {error.said}" if error.said else ""
        found = f"not permitted: {named}{also}{says}"
        self.lines.append(Finding(check, level, found, POLICY, (named,)))

    async def ask(
        self, check: str, action: str, work: Awaitable[T], denied: Level = "problem"
    ) -> T | None:
        """Return AWS's answer; note a refusal and return None. `denied`: the level of a denial."""
        try:
            return await work
        except AwsError as error:
            level = denied if error.kind in NOT_PERMITTED else "problem"
            self.refused(check, action, error, level)
            return None


@dataclass(frozen=True, slots=True)
class Rented:
    """What AWS knows of what would be rented."""

    types: tuple[Ec2Type, ...]  # the types that exist
    image: Image | None  # the image; None: it is not known
    peak: Peak  # of the plan; one instance and one GPU if there is no plan
    bought: Reservation | None = None  # what instances are taken from; None: nothing was bought


async def look(notes: AwsNotes) -> Rented:
    """Check types, prices, plan, quota and image; return what is known of them."""
    bought = await _bought(notes)
    kinds = await _types(notes)
    free = AskedPrice(dict.fromkeys(notes.keys.types, 0.0), "")
    price = await _price(notes) if bought is None else free
    gpus = {kind.name: kind.gpus for kind in kinds if kind.gpus}
    quote = quote_of(notes.keys, price.types(gpus), "AWS") if gpus and price is not None else None
    peak, plan = notes.case.peak(quote)
    notes.lines.append(plan)
    peak = peak or Peak(instances=1, largest=1)
    if bought is None:
        await _quota(notes, kinds, peak.instances)
    elif bought.total < peak.instances:
        found = f"the plan has {peak.instances} instances at a time, {bought.id} has {bought.total}"
        notes.warn("capacity", found, f"--max-gpus {bought.total * max(gpus.values(), default=0)}")
    await _disk_key(notes)
    return Rented(kinds, await _image(notes, kinds), peak, bought)


async def _bought(notes: AwsNotes) -> Reservation | None:
    """Note what is free of a reservation, and take its type; None if there is none."""
    if not notes.keys.capacity:
        return None
    asked = reservations.reservation(notes.aws, notes.keys.capacity)
    found = await notes.ask("capacity", "ec2:DescribeCapacityReservations", asked)
    if found is not None:
        notes.keys = replace(notes.keys, instance_type=(found.type,), market=("on-demand",))
        says = f"{found.id}: {found.free} of {found.total} {found.type} in {found.zone} are free"
        for at, what in ((found.begins, "begins"), (found.ends, "its instances end")):
            moment = "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(" ", "minutes")
            says += f"; {what} at {moment}" if moment else ""
        level: Level = "ok" if found.free or found.begins is not None else "warning"
        notes.note("capacity", level, says)
    return found


async def _types(notes: AwsNotes) -> tuple[Ec2Type, ...]:
    """Return the types that exist, looked up one by one: a wrong name must not hide the others."""
    found: list[Ec2Type] = []
    for name in notes.keys.types:
        asked = types.describe(notes.aws, [name])
        found += await notes.ask("types", "ec2:DescribeInstanceTypes", asked) or []
    if not found:
        return ()
    listed = ", ".join(f"{k.name} ({k.gpus} {k.gpu}, {k.vcpus} vCPUs)" for k in found)
    try:
        check_gpus(notes.keys, {kind.name: kind.gpus for kind in found})
    except UsageError as error:
        notes.problem("types", str(error))
        return tuple(found)
    bare = ", ".join(kind.name for kind in found if not kind.gpus)
    if bare:
        notes.problem("types", f"{bare} has no GPU", "name others in cluster.instance_type")
    else:
        notes.ok("types", listed)
    return tuple(found)


async def _price(notes: AwsNotes) -> AskedPrice | None:
    """Note what an hour of the dearest type costs; return prices, None if nobody knows."""
    is_spot = notes.keys.is_spot
    action = "ec2:DescribeSpotPriceHistory" if is_spot else "pricing:GetProducts"
    try:
        price = await price_of(notes.keys, notes.aws)
    except AwsError as error:
        notes.refused("price", action, error)
        return None
    if price.error is not None:
        notes.refused("price", action, price.error, "warning")
    level: Level = "ok" if price.error is None else "warning"
    notes.note("price", level, f"${price.usd:.4g}/h ({price.source})")
    return price


async def _quota(notes: AwsNotes, kinds: Sequence[Ec2Type], peak: int) -> None:
    """Check the quotas. Together they have to be enough: a run takes what it can get of each."""
    asked: list[quotas.Quota] = []
    some = False
    for market in notes.keys.market:
        answers = [await quotas.check(notes.aws, kind, market, peak) for kind in kinds]
        together = quotas.together(list(zip(kinds, answers, strict=True)), market, peak)
        asked += answers
        some = some or together.enough is not False
    for quota in {quota.text: quota for quota in asked}.values():
        if quota.error is not None:
            notes.refused("quota", QUOTA, quota.error, "warning")
        else:
            level: Level = "ok" if quota.enough else "warning" if some else "problem"
            notes.note("quota", level, quota.text)


async def _image(notes: AwsNotes, kinds: Sequence[Ec2Type]) -> Image | None:
    named = notes.keys.image
    if not named:
        return None
    action = "ssm:GetParameter" if named.startswith("ssm:") else "ec2:DescribeImages"
    try:
        image = await images.resolve(notes.aws, named)
    except AwsError as error:
        asked = "ec2:DescribeImages" if "DescribeImages" in str(error) else action
        notes.refused("image", asked, error)
        return None
    root_gb = dict(image.disks).get(image.root, 0)
    wanted_gb = notes.keys.volume_gb
    disk_gb = max(root_gb, wanted_gb or 0)
    kind = image.architecture
    wrong = ", ".join(one.name for one in kinds if kind and kind not in one.architectures)
    name = " ".join(filter(None, (image.image, image.name, kind)))
    found, now = f"{name}, root disk {disk_gb or '?'} GB", time.time()
    if image.made_at is not None:
        found += f", {max(0, round((now - image.made_at) / DAY_S))} days old"
    undriven = ", ".join(images.unfit(image, (one.name for one in kinds)))
    if undriven:
        todo = "name g4dn or newer in cluster.instance_type, or another image"
        notes.problem("image", f"{found} has no driver for the GPUs of {undriven}", todo)
    elif wrong:
        todo = "choose an image of their architecture"
        notes.problem("image", f"{found} does not run on {wrong}", todo)
    elif wanted_gb is not None and wanted_gb < root_gb:
        less = f"volume_gb = {wanted_gb} is less than the image has"
        notes.warn("image", f"{found}: {less}, so the image's size is taken")
    elif 0 < disk_gb * 2**30 <= FREE_BYTES:
        todo = "give more with cluster.volume_gb"
        notes.problem("image", f"{found}: too small for checkpoints", todo)
    elif image.deprecated_at is not None and image.deprecated_at < now:
        day = time.strftime("%Y-%m-%d", time.gmtime(image.deprecated_at))
        notes.warn("image", f"{found}: deprecated since {day}, so it gets no more patches", NEWER)
    elif image.made_at is not None and now - image.made_at > OLD_S:
        notes.warn("image", f"{found}: its driver and torch are as old", NEWER)
    else:
        notes.ok("image", found)
    return image


async def _disk_key(notes: AwsNotes) -> None:
    """Check the key that encrypts the disks: an instance whose disk has none ends at once."""
    try:
        key = await disk_keys.default_key(notes.aws)
        if disk_keys.is_of_aws(key):
            notes.ok("disk key", f"{key}, which is AWS's own")
            return
        state = await disk_keys.state_of(notes.aws, key)
    except AwsError as error:
        action = "kms:DescribeKey" if "DescribeKey" in str(error) else "ec2:GetEbsDefaultKmsKeyId"
        level: Level = "problem" if error.code == "NotFoundException" else "warning"
        notes.refused("disk key", action, error, level)
        return
    region = notes.aws.region
    if state != disk_keys.ENABLED:
        found = f"{key}, which encrypts the disks, is {state}: no instance can start"
        todo = f"aws kms enable-key --region {region} --key-id {key}, or AWS's own: "
        todo += f"aws ec2 reset-ebs-default-kms-key-id --region {region}"
        notes.problem("disk key", found, todo)
        return
    needed = "these credentials need its use for disks, which the printed policy permits"
    notes.ok("disk key", f"{key} of this account; {needed}")
