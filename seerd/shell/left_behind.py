"""Models that only a machine has, since it could not store them. Before it is given back, the best
is fetched from it, and put into the store from here. One that cannot be stored here either stays in
the run's folder, and is handed back from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from seerd.agent.manifest import CheckpointError, Comparison, Manifest
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.remote_store import RemoteStore
from seerd.agent.transfer import good
from seerd.backends.backend import Reader
from seerd.core.commands import Terminate
from seerd.core.events import Checkpoint
from seerd.core.metrics import violated_by
from seerd.core.state import State
from seerd.errors import ProviderError, SeerdError
from seerd.planner.trial_ids import job_of
from seerd.stores.base import Store, slot_name
from seerd.stores.directory import DirectoryStore

LAST = 999_999
"""Number in the name of a fetched checkpoint: behind all that its attempt has stored."""
MOST_OF_MANIFESTS = 1 << 20  # bytes of a trial's manifests that are read


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Fetches models into `folder`, with a subfolder for each trial, and stores them."""

    folder: Path
    store: Store
    read: Reader  # reads files of an instance

    async def fetch(self, command: Terminate, state: State) -> list[Checkpoint]:
        """Fetch each job's best checkpoint of those that `command.left` names. Raises
        `ProviderError` and `OSError`.
        """
        best: dict[str, tuple[float, Checkpoint, str]] = {}
        for trial, attempt in command.left:
            job, goal, to = job_of(trial), state.facts.goal_of(trial), self.folder / trial
            to.mkdir(parents=True, exist_ok=True)
            path, listed = f"trials/{trial}/checkpoints", to / ".manifests"
            await self.read(command.instance, f"{path}/*.json", listed, MOST_OF_MANIFESTS)
            for raw in _objects(listed.read_text(errors="replace")):
                with contextlib.suppress(CheckpointError):
                    manifest = Manifest.parse(raw.encode())
                    worth = Comparison(goal.metric, goal.mode).worth(manifest.metrics)
                    if worth is None or violated_by(manifest.metrics, goal):
                        continue
                    if job not in best or worth > best[job][0]:
                        best[job] = worth, saved_of(trial, attempt, manifest, goal.metric), raw
        for _, saved, raw in best.values():
            to, file = self.folder / saved.trial, f"{saved.name}.pt"
            path = f"trials/{saved.trial}/checkpoints/{file}"
            await self.read(command.instance, path, to / file, saved.size)
            (to / f"{saved.name}.json").write_text(raw)
            if not await asyncio.to_thread(good, to, saved.name):
                raise ProviderError(f"{saved.name} of {saved.trial} came damaged")
        return [saved for _, saved, _ in best.values()]

    async def keep(self, saved: Checkpoint, within_s: float) -> tuple[Checkpoint, bool]:
        """Put a fetched checkpoint into the store, as its agent would; return it with its name
        there, and whether that has worked within so many seconds. If not, it stays in `folder`.
        """
        local, stored, name = self.folder / saved.trial, False, slot_name(saved.attempt, LAST)
        urls = PresignedUrls(saved.trial, saved.attempt, lambda _: False)
        remote = RemoteStore(urls)
        timer = asyncio.get_running_loop().call_later(within_s, remote.cut)
        with contextlib.suppress(CheckpointError, SeerdError):
            grant = await self.store.presign(saved.trial, saved.attempt, LAST, ())
            if grant is not None:
                urls.take(grant)
                name, _ = await asyncio.to_thread(remote.put, local, saved.name)
                stored = True
        timer.cancel()
        for suffix in (".pt", ".json"):
            path = local / f"{saved.name}{suffix}"
            path.unlink() if stored else path.rename(local / f"{name}{suffix}")
        return msgspec.structs.replace(saved, name=name), stored

    def store_of(self, trial: str, name: str) -> Store:
        """Return where a confirmed checkpoint is: the store, or what is kept in `folder`."""
        kept = (self.folder / trial / f"{name}.json").exists()
        return DirectoryStore(self.folder) if kept else self.store


def saved_of(trial: str, attempt: int, manifest: Manifest, metric: str) -> Checkpoint:
    """Return the core's checkpoint for a manifest that this attempt has written to the store."""
    return Checkpoint(
        trial=trial,
        attempt=attempt,
        name=manifest.name,
        reports=manifest.epoch,
        metric=manifest.metrics.get(metric),
        sha256=manifest.sha256,
        size=manifest.size,
    )


def _objects(text: str) -> Iterator[str]:
    """Yield the JSON objects that stand in a text one after the other, up to what is none."""
    decoder = json.JSONDecoder()
    with contextlib.suppress(ValueError, RecursionError):
        while text := text.lstrip():
            _, end = decoder.raw_decode(text)
            yield text[:end]
            text = text[end:]
