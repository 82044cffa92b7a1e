"""Our sessions know of AWS's services what botocore knows, but its documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from botocore.exceptions import UnknownServiceError
from botocore.loaders import create_loader

from seerd.aws import sessions
from seerd.aws.sessions import session

SERVICES = ("ec2", "iam", "pricing", "s3", "service-quotas", "ssm", "sts")


@pytest.fixture(autouse=True)
def _untouched() -> None:
    """Clients change models a little, as botocore has them do; here nobody has."""
    sessions._loader.cache_clear()


def loader_of(made: Any) -> Any:
    return made._session.get_component("data_loader")


def undocumented(part: Any) -> Any:
    if isinstance(part, list):
        return [undocumented(item) for item in part]
    if isinstance(part, dict):
        return {
            key: undocumented(value)
            for key, value in part.items()
            if not (key == "documentation" and isinstance(value, str))
        }
    return part


@pytest.mark.parametrize("service", SERVICES)
def test_every_operation_and_every_shape_is_there_as_botocore_has_it(service: str) -> None:
    ours = loader_of(session("eu-west-1")).load_service_model(service, "service-2")
    theirs = create_loader().load_service_model(service, "service-2")
    assert list(ours) == list(theirs)
    assert ours["metadata"] == theirs["metadata"]
    for kind in ("operations", "shapes"):
        assert list(ours[kind]) == list(theirs[kind])
        for name in theirs[kind]:
            assert ours[kind][name] == undocumented(theirs[kind][name]), name


def test_every_endpoint_is_there_as_botocore_has_it() -> None:
    ours = loader_of(session("eu-west-1")).load_data("endpoints")
    theirs = create_loader().load_data("endpoints")
    for our, their in zip(ours["partitions"], theirs["partitions"], strict=True):
        assert list(our["services"]) == list(their["services"])
        assert all(our["services"].get(name) == kept for name, kept in their["services"].items())
        assert our["services"].get("no-such-service", 1) == 1
        assert {**our, "services": {}} == {**their, "services": {}}


def test_a_model_is_there_once_for_all_sessions() -> None:
    assert loader_of(session("eu-west-1")) is loader_of(session("us-east-1"))


def test_a_service_that_does_not_exist_is_refused_as_botocore_does() -> None:
    with pytest.raises(UnknownServiceError):
        loader_of(session("eu-west-1")).load_service_model("no-such-service", "service-2")


def test_a_client_of_another_partition_finds_its_endpoint() -> None:
    async def asked() -> str:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        async with session("cn-north-1").client("ec2", **keys) as client:
            return str(client.meta.endpoint_url)

    assert asyncio.run(asked()) == "https://ec2.cn-north-1.amazonaws.com.cn"


def test_models_of_ones_own_are_found_as_botocore_finds_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "ours/2026-01-01/service-2.json"
    model.parent.mkdir(parents=True)
    model.write_text('{"metadata": {}, "operations": {"Ask": {"name": "Ask"}}, "shapes": {}}')
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    found = loader_of(session("eu-west-1")).load_service_model("ours", "service-2")
    assert found["operations"]["Ask"] == {"name": "Ask"}
