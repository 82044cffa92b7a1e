"""The keys of `[cluster]` of each backend, from the registry."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from seerd.registry import BACKENDS
from seerd.spec import values as v
from seerd.spec.keys import READ, BackendKeys

CLUSTERS: dict[str, type[BackendKeys]] = {
    name: import_module(f"{folder}.keys").KEYS for name, folder in BACKENDS.items()
}
# the keys of `[cluster]` that only one provider takes
CLUSTER_KEYS: dict[str, dict[str, v.Read]] = {
    name: {
        field.name: field.metadata[READ]
        for field in keys.__dataclass_fields__.values()
        if READ in field.metadata
    }
    for name, keys in CLUSTERS.items()
}


def cluster_of(values: Mapping[str, Any], store: str | None) -> BackendKeys:
    """Return the backend's keys. `values`: the values read, by the paths of their keys."""
    provider = values.get("cluster.provider", "local")
    own = {
        key: values[name] for key in CLUSTER_KEYS[provider] if (name := f"cluster.{key}") in values
    }
    return CLUSTERS[provider](store=store, parts=values.get("cluster.parts", 1), **own)
