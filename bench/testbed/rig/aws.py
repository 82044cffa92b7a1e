"""moto in this process, made more like AWS where that is a matter of its data.

The one rule: moto keeps the state of EC2 and S3, and nobody else does; what a describe says is what
is there.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

from bench.testbed.rig.machines import Hardware

REGION = "us-east-1"
ACCOUNT = "123456789012"
IMAGE_PARAMETER = (
    "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/"
    "ami-id"
)
P3 = {"p3.2xlarge": (8, 61, 1), "p3.8xlarge": (32, 244, 4), "p3.16xlarge": (64, 488, 8)}
"""vCPUs, GiB and V100s: https://aws.amazon.com/ec2/instance-types/p3/"""
GPU_NAMES = {
    "V100": "Tesla V100-SXM2-16GB",
    "T4": "Tesla T4",
    "A100": "NVIDIA A100-SXM4-40GB",
    "A10G": "NVIDIA A10G",
    "H100": "NVIDIA H100 80GB HBM3",
}
ZONES = tuple(f"{REGION}{letter}" for letter in "abcdef")


class Moto:
    """moto's server on a loopback port, and its EC2 backend. One per process: moto's state is
    global.
    """

    def __init__(self, vpc_cidr: str, public: Callable[[int], str]) -> None:
        os.environ |= {
            "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # hundreds at each reset, of which none boots
            "MOTO_S3_CUSTOM_ENDPOINTS": "",
            "AWS_ACCESS_KEY_ID": "moto",
            "AWS_SECRET_ACCESS_KEY": "moto",
        }
        read_models_once()
        from moto.ec2.utils import filter_dict_attribute_mapping
        from moto.server import ThreadedMotoServer

        filter_dict_attribute_mapping["client-token"] = "client_token"

        one_at_a_time()
        _teach(vpc_cidr, public)
        self._cidr = vpc_cidr
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        self.port = self.server.get_host_and_port()[1]

    @property
    def ec2(self) -> Any:
        from moto.ec2 import ec2_backends

        return ec2_backends[ACCOUNT][REGION]

    @property
    def s3(self) -> Any:
        from moto.s3.models import s3_backends

        return s3_backends[ACCOUNT]["aws"]

    def reset(self) -> None:
        """An account as on the first day."""
        from moto.moto_api._internal.models import moto_api_backend

        moto_api_backend.reset()

    def subnets(self) -> dict[str, str]:
        """The default subnet of each zone."""
        return {zone: subnet.id for zone, subnet in self.ec2.get_default_subnets().items()}


def read_models_once() -> None:
    """Have all sessions in this process share what they read of botocore's models: EC2's takes a
    quarter of a second, and moto makes a session for each of AWS's partitions.
    """
    from botocore.loaders import JSONFileLoader

    read = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _, path: read(path)  # type: ignore[method-assign]


def one_at_a_time() -> None:
    """Have moto's servers in this process answer one request after the other. Its models are not
    made for the threads of its server: launches at one moment take addresses of one generator, and
    the second is answered with an internal error.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer, lock = DomainDispatcherApplication.__call__, threading.Lock()

    def alone(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        with lock:
            return answer(self, environ, start_response)

    DomainDispatcherApplication.__call__ = alone  # type: ignore[method-assign]


def _teach(vpc_cidr: str, public: Callable[[int], str]) -> None:
    """What is data in moto, not behaviour: addresses, types, filters, and that an instance is
    pending when it is made.
    """
    from moto.ec2 import utils
    from moto.ec2.models import elastic_network_interfaces
    from moto.ec2.models.instances import Instance, InstanceState
    from moto.ec2.models.vpcs import VPCBackend

    def create_default_vpc(self: Any) -> Any:
        vpc = self.create_vpc(cidr_block=vpc_cidr, is_default=True)
        for zone in self.describe_availability_zones():
            self.create_default_subnet(zone.name)
        return vpc

    numbers = itertools.count(1)
    elastic_network_interfaces.random_public_ip = lambda: public(next(numbers))
    VPCBackend.create_default_vpc = create_default_vpc  # type: ignore[method-assign]
    utils.filter_dict_attribute_mapping |= {
        "client-token": "client_token",
        "instance-lifecycle": "lifecycle",
        "launch-index": "ami_launch_index",
    }
    made = Instance.__init__

    @functools.wraps(made)
    def pending(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self._state = InstanceState("pending", 0)
        if kwargs.get("instance_market_options"):
            self.lifecycle = "spot"

    Instance.__init__ = pending  # type: ignore[method-assign]
    for name, facts in P3.items():
        _add_type(name, *facts)


def _add_type(name: str, vcpus: int, gib: int, gpus: int) -> None:
    from moto.ec2.models.instance_types import (
        INSTANCE_TYPE_OFFERINGS,
        INSTANCE_TYPES,
        InstanceType,
        InstanceTypeBackend,
    )

    if name in INSTANCE_TYPES:
        return
    facts = copy.deepcopy(INSTANCE_TYPES["p3dn.24xlarge"])
    facts |= {
        "InstanceType": name,
        "MemoryInfo": {"SizeInMiB": gib * 1024},
        "InstanceStorageSupported": False,
    }
    facts.pop("InstanceStorageInfo", None)
    facts["VCpuInfo"] |= {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2}
    facts["GpuInfo"] = {
        "Gpus": [
            {
                "Count": gpus,
                "Manufacturer": "NVIDIA",
                "Name": "V100",
                "MemoryInfo": {"SizeInMiB": 16384},
            }
        ],
        "TotalGpuMemoryInMiB": gpus * 16384,
    }
    INSTANCE_TYPES[name] = facts
    InstanceTypeBackend.instance_types.append(InstanceType(name))
    for kind, places in {
        "region": [REGION],
        "availability-zone": list(ZONES),
        "availability-zone-id": [f"use1-az{n}" for n in range(1, 7)],
    }.items():
        INSTANCE_TYPE_OFFERINGS[kind][REGION] += [
            {"InstanceType": name, "Location": place, "LocationType": kind} for place in places
        ]


def vcpus(instance_type: str) -> int:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


def known_type(instance_type: str) -> bool:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    return instance_type in INSTANCE_TYPES


def hardware(instance_type: str) -> Hardware:
    """The GPUs of a type."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    gpus = INSTANCE_TYPES[instance_type].get("GpuInfo", {}).get("Gpus", [])
    if not gpus:
        return Hardware(0, "", 0)
    return Hardware(
        gpus[0]["Count"],
        GPU_NAMES.get(gpus[0]["Name"], "NVIDIA " + gpus[0]["Name"]),
        gpus[0]["MemoryInfo"]["SizeInMiB"],
    )


def bucket_of_quota(instance_type: str) -> str:
    """The name that AWS gives to what a vCPU quota counts: P, G and VT, or the standard
    families.
    """
    family = instance_type[0]
    return {"p": "P", "g": "G", "v": "G"}.get(family, "Standard")
