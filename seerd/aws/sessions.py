"""Sessions of AWS whose clients take little memory: each operation and shape of a service stays
packed until it is used, without its documentation. With clients for EC2, S3 and STS a process has
57 MB, with botocore's own loader 77 MB.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import aioboto3
import msgspec
from aiobotocore.session import AioSession
from botocore.loaders import JSONFileLoader, create_loader

from seerd.aws.credentials import RenewableCredentials

WRITTEN: dict[str, Callable[[Path], bytes]] = {
    ".json": Path.read_bytes,
    ".json.gz": lambda path: gzip.decompress(path.read_bytes()),
}
"""How the files of models are read, by the end of their names."""
PACKED = ("operations", "shapes")
_plain = msgspec.json.decode


def session(region: str | None = None) -> Any:
    """Begin a session in this region; None: the one that is configured. Its credentials are
    `RenewableCredentials`.
    """
    core = _core(region)
    names = ("credentials_file", "config_file")
    files = [Path(core.get_config_variable(name)).expanduser() for name in names]

    async def load() -> tuple[Any, Mapping[str, Any]]:
        fresh = _core(region)
        return await fresh.get_credentials(), fresh.get_scoped_config()

    core.register_component("credential_provider", RenewableCredentials(load, files))
    return aioboto3.Session(botocore_session=core)


def credentials_of(made: Any) -> RenewableCredentials:
    """Return what signs the requests of a session; it may not have been read yet."""
    core: AioSession = made._session  # noqa: SLF001 - its own way to them reads them at once
    credentials: RenewableCredentials = core.get_component("credential_provider")
    return credentials


def _core(region: str | None) -> AioSession:
    core = AioSession()
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    if region is not None:
        core.set_config_variable("region", region)
    return core


@cache
def _loader(data_path: str | None) -> Any:
    """Make the loader for all sessions with this path, so that a model is loaded once."""
    loader = create_loader(data_path)
    loader.file_loader = _Models()
    return loader


class _Models(JSONFileLoader):  # type: ignore[misc]
    """Reads the files of models as botocore does, but what is large in them piece by piece."""

    def load_file(self, file_path: str) -> Any:
        """Read a file whose name is given without its ending; None if there is none."""
        for ending, read in WRITTEN.items():
            path = Path(file_path + ending)
            if path.is_file():
                return READERS.get(Path(file_path).name, _plain)(read(path))
        return None


class _Packed(dict[str, Any]):
    """Parts of a model by their names, each packed until it is asked for."""

    def __getitem__(self, name: str) -> Any:
        part = super().__getitem__(name)
        if isinstance(part, bytes):
            part = self[name] = _plain(part)
        return part

    def get(self, name: str, other: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return other


def _service(written: bytes) -> dict[str, Any]:
    model = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
    return {key: _packed(part) if key in PACKED else _plain(part) for key, part in model.items()}


def _endpoints(written: bytes) -> dict[str, Any]:
    known: dict[str, Any] = _plain(written)
    for partition in known["partitions"]:
        partition["services"] = _packed(msgspec.json.encode(partition["services"]))
    return known


def _packed(written: msgspec.Raw | bytes) -> _Packed:
    parts = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
    return _Packed(
        (name, msgspec.json.encode(_undocumented(_plain(part)))) for name, part in parts.items()
    )


def _undocumented(part: Any) -> Any:
    """Leave out the texts of a part of a model. A member of this name is no text."""
    if isinstance(part, list):
        return [_undocumented(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _undocumented(value)
        for key, value in part.items()
        if key != "documentation" or not isinstance(value, str)
    }


READERS: dict[str, Callable[[bytes], Any]] = {"service-2": _service, "endpoints": _endpoints}
