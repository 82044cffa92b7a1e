"""Models that are sharded over the ranks (FSDP), and their optimizers, for `trial.track`. A
checkpoint has their whole state, so it fits any number of ranks.

The one rule: saving and restoring are collective, on every rank at the same time.
"""

import importlib
from typing import Any, Dict, Iterable

from seerd.training import shards


def is_sharded(torch: Any, thing: Any) -> bool:
    """Return whether this is a model or an optimizer whose parameters are spread over the ranks."""
    if type(thing).__name__ == "FullyShardedDataParallel":
        return True
    return any(map(shards.is_sharded, _parameters(thing)))


class Sharded:
    """A sharded model, or its optimizer, whose state is by the names of parameters. Each rank has
    its part of the state; where that cannot be written in parts (`FullyShardedDataParallel`, torch
    before 2.6), rank 0 has all of it and the others nothing.
    """

    def __init__(self, torch: Any, model: Any, optimizer: Any = None) -> None:
        self._torch = torch
        self.is_gathered = not shards.is_possible(torch, model.parameters())
        self._api = importlib.import_module(f"{torch.__name__}.distributed.checkpoint.state_dict")
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> Dict[str, Any]:
        """Return the whole state, or this rank's part of it."""
        whole = self.is_gathered
        options = self._api.StateDictOptions(full_state_dict=whole, cpu_offload=whole)
        if self.optimizer is None:
            state = self._api.get_model_state_dict(self.model, options=options)
        else:
            state = self._api.get_optimizer_state_dict(self.model, self.optimizer, options=options)
        return state or {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore this rank's part. Raises `RuntimeError` for an optimizer that was not sharded."""
        if self.optimizer is not None and not by_names(state):
            raise RuntimeError(
                "the checkpoint has the optimizer of a model that was not sharded, which cannot be "
                "split: shard the model on any number of GPUs, on one too, or on none"
            )
        options = self._api.StateDictOptions(full_state_dict=self.is_gathered)
        if not self.is_gathered:
            state = shards.part_of(self._torch, state, self.state_dict())
        if self.optimizer is None:
            self._api.set_model_state_dict(self.model, state, options=options)
            return
        self._api.set_optimizer_state_dict(self.model, self.optimizer, state, options=options)


def collective(torch: Any, name: str, thing: Any, tracked: Iterable[Any]) -> Any:
    """Return what saves and restores this object: itself, unless it is sharded. Raises `ValueError`
    for an optimizer whose model is not among `tracked`.
    """
    if torch is None or not is_sharded(torch, thing):
        return thing
    if hasattr(thing, "state_dict") and not hasattr(thing, "param_groups"):
        return Sharded(torch, thing)
    mine = set(map(id, _parameters(thing)))
    for other in tracked:
        if isinstance(other, Sharded) and mine <= set(map(id, other.model.parameters())):
            return Sharded(torch, other.model, thing)
    raise ValueError(
        f"trial.track({name}=...): its parameters are sharded, so the model that they belong to "
        "must be tracked before it, in the same call or an earlier one"
    )


def check_plain(name: str, thing: Any, state: Any) -> None:
    """Raise `RuntimeError` for a sharded optimizer's state where the model is not sharded."""
    if hasattr(thing, "param_groups") and by_names(state):
        raise RuntimeError(
            f"the checkpoint has {name!r} of a sharded model, and here the model is not sharded: "
            "shard it on any number of GPUs, on one too"
        )


def by_names(state: Any) -> bool:
    """Return whether this is the state of an optimizer by the names of parameters."""
    groups = state.get("param_groups", []) if isinstance(state, dict) else []
    return any(isinstance(name, str) for group in groups for name in group.get("params", []))


def _parameters(thing: Any) -> Iterable[Any]:
    if hasattr(thing, "param_groups"):
        return [parameter for group in thing.param_groups for parameter in group["params"]]
    return list(thing.parameters()) if hasattr(thing, "parameters") else []
