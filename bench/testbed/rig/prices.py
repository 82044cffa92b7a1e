"""What things cost and how much one may have: the Price List API and Service Quotas, in the shapes
that AWS gives them.

The one rule: shapes from AWS, numbers of our own; a test that needs a price asks this file for it.
https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from aiohttp import web

from bench.testbed.rig import aws
from bench.testbed.rig.wire import AwsError, Call, json_response

PRICES = {
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48,
    "p4d.24xlarge": 21.957642,
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.12xlarge": 5.672,
    "p5.48xlarge": 55.04,
    "t3.micro": 0.0104,
    "t3.small": 0.0208,
    "t3.large": 0.0832,
    "m5.large": 0.096,
    "c5.large": 0.085,
}
"""Dollars an hour, Linux, on demand, us-east-1."""
SPOT_SHARE = 0.3
STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
QUOTAS = {
    "L-417A185B": ("P", "on-demand", "Running On-Demand P instances"),
    "L-7212CCBC": ("P", "spot", "All P4, P3 and P2 Spot Instance Requests"),
    "L-DB2E81BA": ("G", "on-demand", "Running On-Demand G and VT instances"),
    "L-3819A6DF": ("G", "spot", "All G and VT Spot Instance Requests"),
    "L-1216C47A": ("Standard", "on-demand", f"Running On-Demand {STANDARD} instances"),
    "L-34B43A08": ("Standard", "spot", f"All {STANDARD} Spot Instance Requests"),
}
UNLIMITED = 100000


def get_products(call: Call) -> web.Response:
    """GetProducts for AmazonEC2, with the filters that name an instance type."""
    asked = json.loads(call.body or b"{}")
    if asked.get("ServiceCode") != "AmazonEC2":
        raise AwsError("InvalidParameterException", "The rig has prices of AmazonEC2 alone")
    filters = {one["Field"]: one["Value"] for one in asked.get("Filters", [])}
    kinds = [filters["instanceType"]] if "instanceType" in filters else sorted(PRICES)
    attributes = {kind: _attributes(kind) for kind in kinds if kind in PRICES}
    matching = [
        kind
        for kind, has in attributes.items()
        if all(has.get(name, "").lower() == value.lower() for name, value in filters.items())
    ]
    return json_response(
        {
            "FormatVersion": "aws_v1",
            "PriceList": [json.dumps(_product(kind, attributes[kind])) for kind in matching],
        }
    )


def _attributes(kind: str) -> dict[str, str]:
    hardware = aws.hardware(kind)
    return {
        "servicecode": "AmazonEC2",
        "location": "US East (N. Virginia)",
        "locationType": "AWS Region",
        "regionCode": aws.REGION,
        "instanceType": kind,
        "instanceFamily": "GPU instance" if hardware.gpus else "General purpose",
        "vcpu": str(aws.vcpus(kind)),
        "gpu": str(hardware.gpus),
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "operation": "RunInstances",
        "usagetype": f"BoxUsage:{kind}",
    }


def _product(kind: str, attributes: dict[str, str]) -> dict[str, object]:
    sku = f"RIG{abs(hash(kind)) % 10**12:012d}"
    term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    dimension = {
        "unit": "Hrs",
        "endRange": "Inf",
        "beginRange": "0",
        "description": f"${PRICES[kind]} per On Demand Linux {kind} Instance Hour",
        "appliesTo": [],
        "rateCode": rate,
        "pricePerUnit": {"USD": f"{PRICES[kind]:.10f}"},
    }
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku},
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                term: {
                    "priceDimensions": {rate: dimension},
                    "sku": sku,
                    "effectiveDate": "2026-11-01T00:00:00Z",
                    "offerTermCode": "JRTCKXETXF",
                    "termAttributes": {},
                }
            }
        },
        "version": "20261101000000",
        "publicationDate": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def answer_quotas(
    call: Call, limits: dict[tuple[str, str], int], requests: list[dict[str, object]]
) -> web.Response:
    """GetServiceQuota and ListServiceQuotas of EC2's vCPUs, and requests for more, on which nobody
    decides.
    """
    asked = json.loads(call.body or b"{}")
    if asked.get("ServiceCode") != "ec2":
        raise AwsError(
            "NoSuchResourceException",
            "The request failed because the specified service does not exist.",
        )
    if call.action == "GetServiceQuota":
        code = asked.get("QuotaCode", "")
        if code not in QUOTAS:
            raise AwsError(
                "NoSuchResourceException",
                "The request failed because the specified quota does not exist.",
            )
        return json_response({"Quota": _quota(code, limits)})
    if call.action == "ListServiceQuotas":
        return json_response({"Quotas": [_quota(code, limits) for code in QUOTAS]})
    if call.action == "ListRequestedServiceQuotaChangeHistory":
        return json_response({"RequestedQuotas": requests})
    if call.action == "RequestServiceQuotaIncrease":
        quota = _quota(asked["QuotaCode"], limits)
        taken = ("ServiceCode", "ServiceName", "QuotaCode", "QuotaName", "QuotaArn", "Unit")
        request = {name: quota[name] for name in taken}
        request |= {"Id": f"rig-{len(requests)}", "Status": "PENDING", "GlobalQuota": False}
        requests.append(request | {"DesiredValue": asked["DesiredValue"]})
        return json_response({"RequestedQuota": requests[-1]})
    raise AwsError("UnknownOperationException", f"The rig does not offer {call.action}")


def _quota(code: str, limits: dict[tuple[str, str], int]) -> dict[str, object]:
    family, market, name = QUOTAS[code]
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{aws.REGION}:{aws.ACCOUNT}:ec2/{code}",
        "QuotaCode": code,
        "QuotaName": name,
        "Value": float(limits.get((family, market), UNLIMITED)),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
