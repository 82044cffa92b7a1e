"""A launch that takes over an instance which an earlier run has left for the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from seerd.aws import instances
from seerd.aws.errors import AwsError
from seerd.aws.instances import RUN
from seerd.backends.ec2.kept import OFF_S, TAKING_S, KeptInstances, alike, place_of
from seerd.backends.ec2.launch_context import LaunchContext, machine
from seerd.backends.ec2.register import RegisterEntry
from seerd.backends.ssh.connecting import ignore
from seerd.clock import wall
from seerd.errors import ProviderError


async def take_over(
    context: LaunchContext, token: str, fits: Callable[[str], bool]
) -> RegisterEntry | None:
    """Return an instance with this run's agent and hard end that an earlier run has left; None if
    there is none. One that cannot be used is ended. Until it has both, it ends itself when it was
    to, and is paid until then. `fits`: returns whether a type may be had.
    """
    kept, register = context.kept, context.fleet.register
    if kept is None:
        return None
    is_new = context.keys.asked(token) is None  # no earlier try may have launched one
    like = alike(context.settings, context.image.image)
    places = {place_of(context.settings, place) for place in context.places.all if fits(place.type)}
    while (taken := kept.taken(token)) or (is_new and kept.claim(token, like, places)):
        if taken is None:
            continue
        with contextlib.suppress(TimeoutError, AwsError, ProviderError):
            async with asyncio.timeout(TAKING_S):
                entry = await _made_own(context, kept, token, taken.instance)
            if entry is not None and not entry.ended:
                entry.paid_until = taken.off_at + OFF_S
                return entry
        if taken.instance in register:
            await context.remote.forget(taken.instance)
            await context.fleet.end(taken.instance)
        kept.drop(token)
    return None


async def _made_own(
    context: LaunchContext, kept: KeptInstances, token: str, instance: str
) -> RegisterEntry | None:
    """Make an instance this launch's; None if it does not run any more. Raises `AwsError` and
    `ProviderError`.
    """
    for seen in await instances.find_among(context.cloud, "instance-id", [instance]):
        if seen.state != "running":
            continue
        is_own = seen.tags.get(RUN) == context.settings.run  # an earlier process took it
        own = seen if is_own else replace(seen, launched_at=wall())
        entry = context.fleet.register.take_up(own, wall(), token)
        await kept.mark(context.cloud, instance, context.settings, token)
        access = machine(context, entry)
        await context.remote.ready(access, TAKING_S, on_failure=ignore)
        await kept.end_in(access, context.settings.hard_end)
        return entry
    return None
