"""The KMS key that encrypts disks where a launch names none: the default key of the account in the
region (docs.aws.amazon.com/ebs/latest/userguide/encryption-by-default.html). Functions raise
`AwsError`.
"""

from __future__ import annotations

from seerd.aws.cloud import Cloud

OF_AWS = "alias/aws/ebs"
"""AWS's own key, which everybody in the account may use for disks."""
ENABLED = "Enabled"


async def default_key(cloud: Cloud) -> str:
    """Return its id, alias or ARN."""
    answer = await cloud.ask("ec2", "get_ebs_default_kms_key_id", patience_s=15.0)
    return str(answer["KmsKeyId"])


def is_of_aws(key: str) -> bool:
    """Return whether it is AWS's own key."""
    return key.endswith(OF_AWS)


async def state_of(cloud: Cloud, key: str) -> str:
    """Return the state of a key: `ENABLED`, or what else KMS calls it."""
    answer = await cloud.ask("kms", "describe_key", patience_s=15.0, KeyId=key)
    return str(answer["KeyMetadata"]["KeyState"])
