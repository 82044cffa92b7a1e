"""The least rights that a coordinator needs, as an IAM policy, which is a pure function of the
spec; and what the credentials permit, asked without doing it. Rights are restricted to resources
with the tag `seerd:run` where EC2 can do that
(docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import RUN

NOBODY = "i-00000000000000000"
"""An instance that does not exist. A policy that goes by tags denies what has no tags; seerd's
allows this one by name, so that asking about it shows whether the policy is in force.
"""

SPOT_SERVICE, SPOT_ROLE = "spot.amazonaws.com", "AWSServiceRoleForEC2Spot"
"""The role for spot instances, which an account has from its first spot request on
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html).
"""

Statement = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a spec uses."""

    region: str  # "*" if not known
    account: str  # "*" if not known
    image: str  # `ami-...` or `ssm:/path`
    subnets: tuple[str, ...]  # empty: any
    groups: tuple[str, ...]  # security groups; empty: any
    key: str | None  # an EC2 key pair; None: none
    spot: bool  # whether instances are spot instances
    store: tuple[str, str]  # (bucket, prefix) of checkpoints
    data: tuple[tuple[str, str], ...] = ()  # (bucket, prefix) of each set of data
    capacity: str = ""  # a capacity reservation; empty: none
    keep: bool = False  # whether instances are kept for the next run
    disk_key: str = ""  # ARN of the account's own key for disks; empty: AWS's own


def policy(needs: Needs) -> dict[str, Any]:
    """Return the policy document."""
    described = "Images InstanceTypeOfferings InstanceTypes Instances SecurityGroups"
    described += " RouteTables Subnets Volumes VpcEndpoints"
    described += " SpotPriceHistory" if needs.spot else ""
    described += " CapacityReservations" if needs.capacity else ""
    reads = [f"ec2:Describe{what}" for what in described.split()] + ["ec2:GetEbsDefaultKmsKeyId"]
    reads += ["pricing:GetProducts", "servicequotas:GetServiceQuota", "sts:GetCallerIdentity"]
    statements = [
        _allow("Look", reads, "*"),
        *_image(needs),
        *_launching(needs),
        *_ending(needs),
        *_keeping(needs),
        *_storing(needs),
        _encrypted(needs),
        *_disk_key(needs),
    ]
    if needs.spot:  # doctor looks for the role of an account's first spot request
        role = f"{needs.account}:role/aws-service-role/{SPOT_SERVICE}/{SPOT_ROLE}"
        arn = f"arn:{partition(needs.region)}:iam::{role}"
        statements.append(_allow("SpotRole", ["iam:GetRole"], arn))
    return {"Version": "2012-10-17", "Statement": statements}


def canary_policy(needs: Needs, session: str) -> dict[str, Any]:
    """Return the policy document for `seerd canary`, which also bids for a spot instance, reboots
    one of its own, and makes sessions of this name with the rights of a run
    (docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html).
    """
    own = {"StringLike": {f"aws:ResourceTag/{RUN}": "*"}}
    user = f"arn:{partition(needs.region)}:sts::{needs.account}:federated-user/{session}"
    wider = replace(needs, image="*", subnets=(), spot=True)
    document = policy(wider)
    document["Statement"] += [
        *(_image(needs)),
        _allow("RebootInstances", ["ec2:RebootInstances"], _ec2(needs, "instance", "*"), own),
        _allow("NarrowSessions", ["sts:GetFederationToken"], user),
    ]
    return document


def _image(needs: Needs) -> list[Statement]:
    if not needs.image.startswith("ssm:"):
        return []
    path = needs.image.removeprefix("ssm:").lstrip("/")
    account = "" if path.startswith("aws/") else needs.account
    arn = f"arn:{partition(needs.region)}:ssm:{needs.region}:{account}:parameter/{path}"
    return [_allow("ImageParameter", ["ssm:GetParameter"], arn)]


def _launching(needs: Needs) -> list[Statement]:
    made = ["instance", "volume", "network-interface"]
    made += ["spot-instances-request"] if needs.spot else []
    tagged = [_ec2(needs, kind, "*") for kind in made]
    image = "*" if needs.image.startswith("ssm:") else needs.image
    used = [
        _ec2(needs, "image", image, account=""),
        *(_ec2(needs, "subnet", name) for name in needs.subnets or ("*",)),
        *(_ec2(needs, "security-group", name) for name in needs.groups or ("*",)),
        *([_ec2(needs, "key-pair", needs.key)] if needs.key else []),
        *([_ec2(needs, "capacity-reservation", needs.capacity)] if needs.capacity else []),
    ]
    own_tag = {"StringLike": {f"aws:RequestTag/{RUN}": "*"}}
    in_launch = {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
    return [
        _allow("LaunchWhatIsTagged", ["ec2:RunInstances"], tagged, own_tag),
        _allow("LaunchFrom", ["ec2:RunInstances"], used),
        _allow("TagInTheLaunch", ["ec2:CreateTags"], tagged, in_launch),
    ]


def _ending(needs: Needs) -> list[Statement]:
    own = {"StringLike": {f"aws:ResourceTag/{RUN}": "*"}}
    end = ["ec2:TerminateInstances"]
    return [
        _allow("EndInstances", end, _ec2(needs, "instance", "*"), own),
        _allow("DeleteVolumes", ["ec2:DeleteVolume"], _ec2(needs, "volume", "*"), own),
        _allow("AskWithoutAnInstance", end, _ec2(needs, "instance", NOBODY)),
    ]


def _keeping(needs: Needs) -> list[Statement]:
    """Permit to change the tags of what has seerd's: a kept instance gets those of its next run."""
    own = {"StringLike": {f"aws:ResourceTag/{RUN}": "*"}}
    tagged = [_ec2(needs, kind, "*") for kind in ("instance", "volume")]
    return [_allow("TagWhatIsKept", ["ec2:CreateTags"], tagged, own)] if needs.keep else []


def _storing(needs: Needs) -> list[Statement]:
    bucket, prefix = needs.store
    below = "/".join(filter(None, [prefix, "*"]))
    statements = [
        _allow("Bucket", ["s3:ListBucket", "s3:ListBucketMultipartUploads"], _s3(needs, bucket)),
        _allow(
            "Checkpoints",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            _s3(needs, f"{bucket}/{below}"),
        ),
    ]
    if needs.data:
        buckets = sorted({_s3(needs, name) for name, _ in needs.data})
        objects = [_s3(needs, f"{bucket}/{prefix}*") for bucket, prefix in needs.data]
        statements.append(_allow("DataBuckets", ["s3:ListBucket"], buckets))
        statements.append(_allow("Data", ["s3:GetObject"], objects))
    return statements


def _encrypted(needs: Needs) -> Statement:
    """Permit any KMS key, by S3 and for these buckets' objects alone: the spec does not name the
    key (docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html, "Encryption
    context": the object's ARN, or with a bucket key the bucket's).
    """
    bucket, prefix = needs.store
    below = "/".join(filter(None, [bucket, prefix, "*"]))
    names = [bucket, below, *(name for b, p in needs.data for name in (b, f"{b}/{p}*"))]
    condition = {
        "StringLike": {
            "kms:ViaService": "s3.*.amazonaws.com*",
            "kms:EncryptionContext:aws:s3:arn": [_s3(needs, name) for name in dict.fromkeys(names)],
        }
    }
    keys = f"arn:{partition(needs.region)}:kms:*:*:key/*"
    return _allow("EncryptedBuckets", ["kms:Decrypt", "kms:GenerateDataKey"], keys, condition)


def _disk_key(needs: Needs) -> list[Statement]:
    """Permit the use of the account's own key for disks, by EC2 alone
    (docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html).
    """
    if not needs.disk_key:
        return []
    names = "CreateGrant Decrypt GenerateDataKeyWithoutPlaintext ReEncryptFrom ReEncryptTo"
    by_ec2 = {"StringLike": {"kms:ViaService": "ec2.*.amazonaws.com*"}}
    actions = [f"kms:{name}" for name in names.split()]
    return [
        _allow("DiskKey", actions, needs.disk_key, by_ec2),
        _allow("LookAtDiskKey", ["kms:DescribeKey"], needs.disk_key),
    ]


def partition(region: str) -> str:
    """Return the start of ARNs (docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html)."""
    area = region.rpartition("-")[0].rpartition("-")[0]
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(area, "aws")


def _ec2(needs: Needs, kind: str, name: str, account: str | None = None) -> str:
    owner = needs.account if account is None else account
    return f"arn:{partition(needs.region)}:ec2:{needs.region}:{owner}:{kind}/{name}"


def _s3(needs: Needs, path: str) -> str:
    return f"arn:{partition(needs.region)}:s3:::{path}"


def _allow(
    sid: str, actions: list[str], resource: str | list[str], condition: Statement | None = None
) -> Statement:
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource}
    return statement | ({"Condition": condition} if condition else {})


async def has_spot_role(cloud: Cloud) -> bool:
    """Return whether the account has the role for spot instances. Raises `AwsError`."""
    try:
        await cloud.ask("iam", "get_role", patience_s=15.0, RoleName=SPOT_ROLE)
    except AwsError as error:
        if error.kind is ErrorKind.GONE:
            return False
        raise
    return True


async def dry_run(cloud: Cloud, operation: str, **request: Any) -> AwsError | None:
    """Return why EC2 would refuse this call, but not if it is about something that does not exist.
    Neither capacity nor quota is looked at
    (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html).
    """
    try:
        await cloud.ask("ec2", operation, patience_s=15.0, DryRun=True, **request)
    except AwsError as error:
        return None if error.code == "DryRunOperation" or error.kind is ErrorKind.GONE else error
    return None
