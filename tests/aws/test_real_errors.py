"""What AWS has really said to people, and what seerd makes of it: each with the public page that
shows it (a path of github.com, or a whole address).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from botocore import exceptions as boto

from seerd.aws.errors import AwsError, ErrorKind, explained

MARKETPLACE = "In order to use this AWS Marketplace product you need to accept terms and subscribe."
ARCHITECTURES = (
    "Specify an instance type and an AMI that have matching architectures, and try again."
)
OVERVIEW = "docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
ADJUST = "Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."


class Said(NamedTuple):
    """An answer of AWS, what it means for the caller, and what the person is told to do."""

    code: str
    status: int
    message: str
    seen: str
    kind: ErrorKind
    todo: str


CAPACITY, ELSEWHERE, QUOTA = ErrorKind.CAPACITY, ErrorKind.ELSEWHERE, ErrorKind.QUOTA
CREDENTIALS, DENIED, REFUSED = ErrorKind.CREDENTIALS, ErrorKind.DENIED, ErrorKind.REFUSED
FORBIDDEN = ErrorKind.FORBIDDEN
THROTTLED, UNCLEAR, SPENT = ErrorKind.THROTTLED, ErrorKind.UNCLEAR, ErrorKind.SPENT

REAL = [
    Said(
        "InsufficientInstanceCapacity",
        500,
        "We currently do not have sufficient m6i.xlarge capacity in the Availability Zone you "
        "requested (us-east-2a). Our system will be working on provisioning additional capacity. "
        "You can currently get m6i.xlarge capacity by not specifying an Availability Zone in your "
        "request or choosing us-east-2b, us-east-2c.",
        "red-hat-storage/ocs-ci/issues/9263",
        CAPACITY,
        "more types in `cluster.instance_type`, more `cluster.subnets`",
    ),
    Said(
        "InsufficientInstanceCapacity",
        500,
        "Insufficient capacity.",
        "nib-health-funds/hammertime/issues/29",
        CAPACITY,
        "more types in `cluster.instance_type`, more `cluster.subnets`",
    ),
    Said(
        "ReservationCapacityExceeded",
        400,
        "The requested reservation does not have sufficient compatible and available capacity for "
        "this request.",
        "scylladb/scylla-cluster-tests/issues/8839",
        CAPACITY,
        "enlarge it",
    ),
    Said(
        "SpotMaxPriceTooLow",
        400,
        "Your Spot request price of 0.001 is lower than the minimum required Spot request "
        "fulfillment price of 0.0374.",
        "aws/aws-parallelcluster-node/pull/415",
        CAPACITY,
        "`cluster.price`; raise it",
    ),
    Said(
        "InsufficientFreeAddressesInSubnet",
        400,
        "There are not enough free addresses in subnet 'subnet-04a176042c3118735' to satisfy the "
        "requested number of instances.",
        "osbuild/osbuild-composer/issues/1575",
        CAPACITY,
        "a larger one in `cluster.subnets`",
    ),
    Said(
        "Unsupported",
        400,
        "Your requested instance type (m5.8xlarge) is not supported in your requested Availability "
        "Zone (us-east-1e). Please retry your request by not specifying an Availability Zone or "
        "choosing us-east-1a, us-east-1b, us-east-1c, us-east-1d, us-east-1f.",
        "skyplane-project/skyplane/issues/172",
        ELSEWHERE,
        "name others in `cluster.instance_type`",
    ),
    Said(
        "Unsupported",
        400,
        "The requested configuration is currently not supported. Please check the documentation "
        "for supported configurations.",
        "hashicorp/terraform-provider-aws/issues/9113",
        ELSEWHERE,
        "name others in `cluster.instance_type`",
    ),
    Said(
        "UnsupportedOperation",
        400,
        "The instance configuration for this AWS Marketplace product is not supported. Please see "
        "the AWS Marketplace site for more information about supported instance types, regions, "
        "and operating systems.",
        "hashicorp/terraform-provider-aws/issues/31353",
        ELSEWHERE,
        "or another `cluster.image`",
    ),
    Said(
        "VcpuLimitExceeded",
        400,
        "You have requested more vCPU capacity than your current vCPU limit of 8 allows for the "
        f"instance bucket that the specified instance type belongs to. {ADJUST}",
        "firesim/firesim/issues/410",
        QUOTA,
        "ask for more under Service Quotas",
    ),
    Said(
        "InstanceLimitExceeded",
        400,
        "You have requested more instances (21) than your current instance limit of 20 allows for "
        f"the specified instance type. {ADJUST}",
        "saltstack/salt-ci-images/issues/716",
        QUOTA,
        "ask for more under Service Quotas",
    ),
    Said(
        "MaxSpotInstanceCountExceeded",
        400,
        "Max spot instance count exceeded",
        "meadowdata/meadowrun/issues/84",
        QUOTA,
        'market = "on-demand"',
    ),
    Said(
        "VolumeLimitExceeded",
        400,
        "You have exceeded your maximum gp2 storage limit of 20 TiB in this region. Please contact "
        "AWS Support to request an Elastic Block Store service limit increase.",
        "kubernetes/kubernetes/issues/51897",
        QUOTA,
        "delete some",
    ),
    Said(
        "PendingVerification",
        400,
        "Your request for accessing resources in this region is being validated, and you will not "
        "be able to launch additional resources in this region until the validation is complete. "
        "We will notify you by email once your request has been validated.",
        "skyplane-project/skyplane/issues/799",
        QUOTA,
        "repeat the command then",
    ),
    Said(
        "Blocked",
        400,
        "This account is currently blocked and not recognized as a valid account. Please contact "
        "aws-verification@amazon.com if you have questions.",
        "thecodeteam/labs/issues/43",
        CREDENTIALS,
        "ask AWS support",
    ),
    Said(
        "AuthFailure",
        401,
        "AWS was not able to validate the provided access credentials",
        "cloud-custodian/cloud-custodian/issues/1167",
        CREDENTIALS,
        "is this machine's clock right?",
    ),
    Said(
        "InvalidClientTokenId",
        403,
        "The security token included in the request is invalid",
        "aws-azure-login/aws-azure-login/issues/251",
        CREDENTIALS,
        "check the profile (AWS_PROFILE)",
    ),
    Said(
        "UnrecognizedClientException",
        400,
        "The security token included in the request is invalid.",
        "coveooss/spring-boot-parameter-store-integration/issues/3",
        CREDENTIALS,
        "check the profile (AWS_PROFILE)",
    ),
    Said(
        "SignatureDoesNotMatch",
        403,
        "Signature expired: 20220127T001427Z is now earlier than 20220127T014428Z "
        "(20220127T015928Z - 15 min.)",
        "aws/aws-cli/issues/6676",
        CREDENTIALS,
        "this machine's clock is slow",
    ),
    Said(
        "RequestExpired",
        400,
        "Request has expired.",
        "aws/aws-sdk-go-v2/issues/1674",
        CREDENTIALS,
        "aws sso login",
    ),
    Said(
        "ExpiredToken",
        403,
        "The security token included in the request is expired",
        "miquella/vaulted/issues/107",
        CREDENTIALS,
        "aws sso login",
    ),
    Said(
        "ExpiredTokenException",
        403,
        "The security token included in the request is expired",
        "cloudquery/cq-provider-aws/pull/1171",
        CREDENTIALS,
        "aws sso login",
    ),
    Said(
        "UnauthorizedOperation",
        403,
        "You are not authorized to perform this operation. Encoded authorization failure message: "
        "Kqrv7rqm0Iuv30uKGOeEfqeHthvKBrqMfT9Ny5f5yKBqMjAXkP7Q5dtvbmTb91Lrx50zcLF2jOO1Hf9s7QEb8SnnY",
        "CheckPointSW/Cuckoo-AWS/issues/21",
        DENIED,
        "`seerd doctor` prints a policy that does",
    ),
    Said(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        403,
        "The provided credentials do not have permission to create the service-linked role for EC2 "
        "Spot Instances.",
        "determined-ai/determined/issues/1830",
        DENIED,
        "create-service-linked-role --aws-service-name spot.amazonaws.com",
    ),
    Said(
        "AccessDenied",
        403,
        "User: arn:aws:sts::032379705303:assumed-role/r is not authorized to perform: "
        "kms:GenerateDataKey on this resource because the resource does not exist in this Region, "
        "no resource-based policies allow access, or a resource-based policy explicitly denies "
        "access",
        "buildkite/docs/pull/2344",
        DENIED,
        "on that key",
    ),
    Said(
        "InsufficientVolumeCapacity",
        503,
        "There is not enough capacity to fulfill your EBS volume provision request.",
        OVERVIEW,
        CAPACITY,
        "more `cluster.subnets` may have some",
    ),
    Said(
        "InsufficientAddressCapacity",
        503,
        "Not enough available addresses to satisfy your minimum request.",
        OVERVIEW,
        CAPACITY,
        'address = "private"',
    ),
    Said(
        "UnauthorizedOperation",
        403,
        "You are not authorized to perform this operation. User: "
        "arn:aws:sts::123456789:assumed-role/karpeter-controller-role/1731429849551905269 is not "
        "authorized to perform: ec2:RunInstances on resource: "
        "arn:aws:ec2:us-east-2:123456789:instance/* with an explicit deny in a service control "
        "policy. Encoded authorization failure message: g4oZPBqZ4Bni8dE5dGjxYTnOZKqrv7rqm",
        "aws/karpenter-provider-aws/issues/7370",
        FORBIDDEN,
        "give them in `cluster.tags`; otherwise ask the administrators of the organization",
    ),
    Said(
        "UnauthorizedOperation",
        403,
        "You are not authorized to perform this operation. User: arn:aws:iam::1:user/me is not "
        "authorized to perform: ec2:CreateRole on resource: * because no permissions boundary "
        "allows the ec2:CreateRole action.",
        "nebari-dev/nebari/issues/2152",
        FORBIDDEN,
        "have the boundary permit what AWS names here",
    ),
    Said(
        "AccessDenied",
        403,
        "User: arn:aws:iam::1:user/me is not authorized to perform: s3:ListBucket on resource: "
        '"arn:aws:s3:::bucket" with an explicit deny in a resource-based policy',
        "noobaa/noobaa-core/issues/10060",
        FORBIDDEN,
        "aws s3api get-bucket-policy",
    ),
    Said(
        "AccessDenied",
        403,
        "User: arn:aws:sts::681735686245:assumed-role/webserver-ecs/d00ae663a22d443396b75ce7c61e8 "
        'is not authorized to perform: s3:GetObject on resource: "arn:aws:s3:::attachments/wzwhr" '
        "because no VPC endpoint policy allows the s3:GetObject action",
        "exercism/website/issues/7983",
        FORBIDDEN,
        "aws ec2 modify-vpc-endpoint --policy-document",
    ),
    Said(
        "RequestTimeTooSkewed",
        403,
        "The difference between the request time and the current time is too large.",
        "aws/aws-sdk-php/issues/612",
        CREDENTIALS,
        "sudo timedatectl set-ntp true",
    ),
    Said(
        "KMS.DisabledException",
        400,
        "arn:aws:kms:us-east-1:000000000000:key/1234 is disabled.",
        "localstack/localstack/issues/8422",
        REFUSED,
        "enable it (aws kms enable-key)",
    ),
    Said(
        "KMS.KMSInvalidStateException",
        400,
        "arn:aws:kms:us-east-1:000000000000:key/1234 is pending deletion.",
        "localstack/localstack/pull/8423",
        REFUSED,
        "aws s3api put-bucket-encryption",
    ),
    Said(
        "OperationNotPermitted",
        400,
        "The instance 'i-0123456789abcdef0' may not be terminated. Modify its "
        "'disableApiTermination' instance attribute and try again.",
        "rebuy-de/aws-nuke/issues/279",
        DENIED,
        "termination protection",
    ),
    Said(
        "AuthFailure",
        400,
        "Not authorized for images: [ami-03a5b89a2fbe7dd3d]",
        "Orange-Cyberdefense/GOAD/issues/304",
        REFUSED,
        "check `cluster.image`, or have it shared",
    ),
    Said(
        "OptInRequired",
        403,
        f"{MARKETPLACE} To do so please visit http://aws.amazon.com/marketplace/pp?sku=8fvdn95s5ev",
        "StreisandEffect/streisand/issues/86",
        REFUSED,
        "accept its terms there",
    ),
    Said(
        "InvalidAMIID.NotFound",
        400,
        "The image id '[ami-26fc345b]' does not exist",
        "ambrosejcarr/seqc/issues/324",
        REFUSED,
        "check `cluster.image` and `cluster.region`",
    ),
    Said(
        "InvalidSubnetID.NotFound",
        400,
        "The subnet ID 'subnet-ed4ddcb6' does not exist",
        "terraform-aws-modules/terraform-aws-ec2-instance/issues/20",
        REFUSED,
        "check `cluster.subnets`",
    ),
    Said(
        "InvalidGroup.NotFound",
        400,
        "The security group 'sg-bbfe0e' does not exist in VPC 'vpc-...'",
        "getmoto/moto/issues/5484",
        REFUSED,
        "check `cluster.security_groups`",
    ),
    Said(
        "InvalidKeyPair.NotFound",
        400,
        "The key pair 'aws-key-fast-ai' does not exist",
        "fastai/courses/issues/54",
        REFUSED,
        "check `cluster.key`",
    ),
    Said(
        "InvalidBlockDeviceMapping",
        400,
        "Volume of size 15GB is smaller than  snapshot 'snap-09e0f802c68b958b7', expect size >= "
        "30GB",
        "scylladb/scylladb/issues/6999",
        REFUSED,
        "check `cluster.volume_gb`",
    ),
    Said(
        "MissingInput",
        400,
        "No subnets found for the default VPC 'vpc-a14210c9'. Please specify a subnet.",
        "terraform-aws-modules/terraform-aws-ec2-instance/issues/50",
        REFUSED,
        "without `cluster.subnets`",
    ),
    Said(
        "VPCIdNotSpecified",
        400,
        "No default VPC for this user",
        "ryanmurakami/hbfl/issues/40",
        REFUSED,
        "give `cluster.subnets`",
    ),
    Said(
        "InvalidParameterValue",
        400,
        "User data is limited to 16384 bytes",
        "dask/dask-cloudprovider/issues/249",
        REFUSED,
        "change the one that it names here",
    ),
    Said(
        "InvalidParameterValue",
        400,
        "The architecture 'arm64' of the specified instance type does not match the architecture "
        f"'x86_64' of the specified AMI. {ARCHITECTURES}",
        "skypilot-org/skypilot/issues/6315",
        REFUSED,
        "change the one that it names here",
    ),
    Said(
        "InvalidParameterCombination",
        400,
        "Enhanced networking with the Elastic Network Adapter (ENA) is required for the "
        "'g4dn.xlarge' instance type. Ensure that you are using an AMI that is enabled for ENA.",
        "keithvassallomt/parsec-aws-automation/pull/4",
        REFUSED,
        "change one that it names here",
    ),
    Said(
        "InvalidParameterCombination",
        400,
        "The specified instance type is not eligible for Free Tier. For a list of Free Tier "
        "instance types, run 'describe-instance-types' with the filter 'free-tier-eligible=true'.",
        "splunk/attack_range/issues/1302",
        REFUSED,
        "upgrade the plan",
    ),
    Said(
        "TagPolicyViolation",
        400,
        "The tag policy does not allow the specified value for the following tag key: 'Project'.",
        "runs-on/runs-on/issues/485",
        REFUSED,
        "change `cluster.tags`",
    ),
    Said(
        "RequestLimitExceeded",
        503,
        "Request limit exceeded. Account 797456418907 has been throttled on ec2:RunInstances "
        "because it exceeded its request rate limit.",
        "scylladb/scylla-cluster-tests/issues/11763",
        THROTTLED,
        "all that your account runs there",
    ),
    Said(
        "ThrottlingException",
        400,
        "Rate exceeded",
        "segmentio/chamber/issues/34",
        THROTTLED,
        "all that your account runs there",
    ),
    Said(
        "SlowDown",
        503,
        "Please reduce your request rate.",
        "cobbzilla/s3s3mirror/issues/90",
        THROTTLED,
        "all that your account runs there",
    ),
    Said(
        "Unavailable",
        503,
        "The service is unavailable. Please try again shortly.",
        "aws/aws-sdk-go-v2/issues/2254",
        UNCLEAR,
        "health.aws.amazon.com",
    ),
    Said(
        "Server.InternalError",
        500,
        "Internal error on launch",
        "LeanerCloud/AutoSpotting/issues/153",
        UNCLEAR,
        "health.aws.amazon.com",
    ),
    Said(
        "IdempotentParameterMismatch",
        400,
        "Arguments on this idempotent request are inconsistent with arguments used in previous "
        "request(s).",
        "rust-lang/bors/issues/830",
        SPENT,
        "an earlier try of this launch",
    ),
    Said(
        "IdempotentInstanceTerminated",
        400,
        "The client token you have provided is associated with a terminated instance. Please use a "
        "different client token.",
        "boto/boto3/issues/4406",
        SPENT,
        "an earlier try of this launch",
    ),
    Said(
        "InvalidInstanceID.NotFound",
        400,
        "The instance IDs 'i-0170ad984d19605a7, i-02d9d1b04ed4967a0' do not exist",
        "aws-samples/aws-plugin-for-slurm/issues/16",
        ErrorKind.GONE,
        "EC2 does not know this instance",
    ),
    Said(
        "ParameterNotFound",
        400,
        "",
        "bottlerocket-os/bottlerocket/issues/4668",
        ErrorKind.GONE,
        "check `cluster.image`",
    ),
]


def made_of(said: Said) -> AwsError:
    response: Any = {
        "Error": {"Code": said.code, "Message": said.message},
        "ResponseMetadata": {"HTTPStatusCode": said.status},
    }
    return explained(boto.ClientError(response, "RunInstances"), "RunInstances")


@pytest.mark.parametrize("said", REAL, ids=lambda said: f"{said.code}, {said.seen}")
def test_what_aws_has_said_is_understood_and_the_person_told_what_to_do(said: Said) -> None:
    error = made_of(said)
    assert error.kind is said.kind
    assert said.todo in str(error)
    assert said.code in str(error)
    head = said.message.partition(" Encoded")[0]
    assert head in str(error)
    assert "Kqrv7rqm" not in str(error)
    if said.kind is FORBIDDEN:
        assert "doctor" not in str(error), "no policy that it prints would help"


TO_LAUNCH = "You are not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:x "


@pytest.mark.parametrize(
    ("cause", "kind", "todo"),
    [
        ("because no identity-based policy allows the x action", DENIED, "`seerd doctor` prints"),
        ("because no session policy allows the x action", DENIED, "make them with one that does"),
        ("with an explicit deny in an identity-based policy", FORBIDDEN, "remove that denial"),
        ("because no service control policy allows the x action", FORBIDDEN, "organization"),
        ("with an explicit deny in a resource control policy", FORBIDDEN, "organization"),
        ("with an explicit deny", FORBIDDEN, "remove that denial"),
        ("with an explicit deny in a policy of next year", FORBIDDEN, "remove that denial"),
    ],
)
def test_what_helps_goes_by_the_policy_that_aws_names(
    cause: str, kind: ErrorKind, todo: str
) -> None:
    error = made_of(Said("UnauthorizedOperation", 403, TO_LAUNCH + cause, "", kind, todo))
    assert error.kind is kind
    assert todo in str(error).partition(" (UnauthorizedOperation")[0]


def test_each_was_seen_somewhere_of_its_own() -> None:
    places = [(said.seen, said.code) for said in REAL]
    assert len(set(places)) == len(places)
    assert len({said.code for said in REAL}) >= 40
