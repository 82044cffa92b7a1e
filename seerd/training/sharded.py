"""Models that are sharded over the ranks (FSDP), and their optimizers, for `trial.track`. Their
state is gathered on rank 0, so a checkpoint fits any number of ranks.

The one rule: saving and restoring are collective, on every rank at the same time.
"""

import importlib
from typing import Any, Dict, Iterable, Optional


def is_sharded(torch: Any, thing: Any) -> bool:
    """Return whether this is a model or an optimizer whose parameters are spread over the ranks."""
    if type(thing).__name__ == "FullyShardedDataParallel":
        return True
    return any(_is_spread(parameter) for parameter in _parameters(thing))


class ShardedModel:
    """A sharded model: its whole state on rank 0, and nothing on the others."""

    def __init__(self, torch: Any, model: Any) -> None:
        self._api = _api(torch)
        self.model = model

    def state_dict(self) -> Dict[str, Any]:
        """Return the whole state."""
        state: Dict[str, Any] = self._api.get_model_state_dict(
            self.model, options=self._api.StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore this rank's part of the whole state."""
        options = self._api.StateDictOptions(full_state_dict=True)
        self._api.set_model_state_dict(self.model, state, options=options)


class ShardedOptimizer:
    """The optimizer of a sharded model: its whole state, by the names of parameters, on rank 0, and
    nothing on the others.
    """

    def __init__(self, torch: Any, model: Any, optimizer: Any) -> None:
        self._api = _api(torch)
        self._model = model
        self._optimizer = optimizer

    def state_dict(self) -> Dict[str, Any]:
        """Return the whole state."""
        state: Optional[Dict[str, Any]] = self._api.get_optimizer_state_dict(
            self._model,
            self._optimizer,
            options=self._api.StateDictOptions(full_state_dict=True, cpu_offload=True),
        )
        return state or {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore this rank's part of the whole state. Raises `RuntimeError` for the state of an
        optimizer whose model was not sharded.
        """
        if not by_names(state):
            raise RuntimeError(
                "the checkpoint has the optimizer of a model that was not sharded, which cannot be "
                "split: shard the model on any number of GPUs, on one too, or on none"
            )
        options = self._api.StateDictOptions(full_state_dict=True)
        self._api.set_optimizer_state_dict(self._model, self._optimizer, state, options=options)


COLLECTIVE = (ShardedModel, ShardedOptimizer)


def collective(torch: Any, name: str, thing: Any, tracked: Iterable[Any]) -> Any:
    """Return what saves and restores this object: itself, unless it is sharded. Raises `ValueError`
    for an optimizer whose model is not among `tracked`.
    """
    if torch is None or not is_sharded(torch, thing):
        return thing
    if hasattr(thing, "state_dict") and not hasattr(thing, "param_groups"):
        return ShardedModel(torch, thing)
    mine = set(map(id, _parameters(thing)))
    for other in tracked:
        if isinstance(other, ShardedModel) and mine <= set(map(id, other.model.parameters())):
            return ShardedOptimizer(torch, other.model, thing)
    raise ValueError(
        f"trial.track({name}=...): its parameters are sharded, so the model that they belong to "
        "must be tracked before it, in the same call or an earlier one"
    )


def check_plain(name: str, thing: Any, state: Any) -> None:
    """Raise `RuntimeError` if the state of a sharded model's optimizer is to be restored into that
    of a model that is not sharded.
    """
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


def _is_spread(parameter: Any) -> bool:
    return hasattr(parameter, "device_mesh") and hasattr(parameter, "placements")


def _api(torch: Any) -> Any:
    return importlib.import_module(f"{torch.__name__}.distributed.checkpoint.state_dict")
