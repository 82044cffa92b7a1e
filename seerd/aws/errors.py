"""What AWS answers when a call fails: in plain words, and with what seerd may do about it. Only
this module reads error codes, and nothing of botocore leaves `seerd.aws`.
"""

from __future__ import annotations

import re
from asyncio import IncompleteReadError
from configparser import ConfigParser
from enum import Enum

from aiohttp import ClientError as BrokenHttpError
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from seerd.errors import CloudError


class ErrorKind(Enum):
    """What an answer means for the caller."""

    THROTTLED = "throttled"  # nothing was done: ask again later
    UNCLEAR = "unclear"  # it may have been done: repeat the very same request
    CAPACITY = "capacity"  # there is none here at the moment: ask elsewhere
    ELSEWHERE = "elsewhere"  # it is never possible here: ask elsewhere
    QUOTA = "quota"  # the account may have no more
    GONE = "gone"  # what the call was about does not exist
    SPENT = "spent"  # this request was carried out before, and its result has ended
    CREDENTIALS = "credentials"  # there are none, or they are no longer valid
    DENIED = "denied"  # they are valid, but do not permit this
    # they are valid, but a policy forbids this that no permission of theirs can outweigh
    FORBIDDEN = "forbidden"
    REFUSED = "refused"  # the request itself is wrong
    UNKNOWN = "unknown"  # it is refused, with a code that says nothing to seerd


AGAIN = frozenset({ErrorKind.THROTTLED, ErrorKind.UNCLEAR})
"""Kinds after which the same call may succeed."""

NOT_PERMITTED = frozenset({ErrorKind.DENIED, ErrorKind.FORBIDDEN})


class AwsError(CloudError):
    """A call was not carried out, or its outcome is unknown."""

    def __init__(
        self, why: str, kind: ErrorKind, code: str, said: str = "", status: int = 0
    ) -> None:
        super().__init__(why)
        self.kind = kind  # what that means for the caller
        self.code = code  # AWS's name for the cause
        self.said = said  # AWS's own words; empty: none
        self.status = status  # the answer's HTTP status; 0: there was no answer


LOG_IN = (
    "log in again (aws sso login, or new keys); a run that goes on takes the new ones by itself"
)

# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
_TABLE = """
[throttled]
* = AWS asks for fewer calls; all that your account runs there shares them
RequestLimitExceeded Throttling ThrottlingException ThrottledException TooManyRequestsException =
EC2ThrottledException SlowDown ConcurrentTagAccess ConcurrentModification =
[unclear]
* = AWS had a failure of its own; health.aws.amazon.com shows whether it lasts
InternalError InternalFailure InternalServerError ServiceUnavailable ServiceUnavailableException =
Unavailable RequestTimeout RequestTimeoutException Server.InternalError =
[capacity]
* =
  AWS has none of these to give in that zone at the moment; more types in `cluster.instance_type`,
  more `cluster.subnets` or another region may have some
InsufficientInstanceCapacity InsufficientHostCapacity InsufficientReservedInstanceCapacity =
InsufficientCapacity =
ReservationCapacityExceeded =
  the capacity reservation has no room left; enlarge it, or name other `cluster.subnets` or types
InsufficientVolumeCapacity =
  AWS has no room left for a disk in that zone at the moment; more `cluster.subnets` may have some
InsufficientAddressCapacity =
  AWS has no public address to give at the moment; repeat the command later, or use
  address = "private"
SpotMaxPriceTooLow = the spot price is above `cluster.price`; raise it, or use market = "on-demand"
InsufficientFreeAddressesInSubnet =
  the subnet has no free address left; give a larger one in `cluster.subnets`
[elsewhere]
Unsupported =
  this instance type is not offered there in this form; name others in `cluster.instance_type` or
  `cluster.subnets`
InvalidAvailabilityZone = the zone does not take new instances; name other `cluster.subnets`
UnsupportedOperation =
  this instance type cannot be launched in this form; name others in `cluster.instance_type`, or
  another `cluster.image`
[quota]
VcpuLimitExceeded =
  your account's vCPU quota for this kind of instance is used up; ask for more under Service Quotas,
  EC2
InstanceLimitExceeded =
  your account's instance quota is used up; ask for more under Service Quotas, EC2
MaxSpotInstanceCountExceeded =
  your account's spot quota is used up; ask for more (Service Quotas), or use market = "on-demand"
VolumeLimitExceeded MaxIOPSLimitExceeded =
  your account's quota for volumes is used up; delete some, or ask for more under Service Quotas,
  EBS
PendingVerification =
  AWS is still verifying your account for this region; this takes up to four hours: repeat the
  command then, or take another `cluster.region`
[gone]
InvalidInstanceID.NotFound = EC2 does not know this instance
InvalidVolume.NotFound = EC2 does not know this volume
ParameterNotFound = there is no such parameter in this region; check `cluster.image`
NoSuchResourceException = AWS knows no such quota
NoSuchEntity = the account has no such role
NoSuchKey = there is no such object in the bucket
404 = there is no such bucket, or nothing of this name in it; make it, or name another
[spent]
IdempotentInstanceTerminated = the instance of an earlier try of this launch has ended
IdempotentParameterMismatch = an earlier try of this launch asked for something else
[credentials]
AuthFailure =
  AWS does not accept the credentials: are they for this account and region, and is this machine's
  clock right?
InvalidClientTokenId UnrecognizedClientException InvalidAccessKeyId =
  AWS does not know these credentials; check the profile (AWS_PROFILE) or make new keys
SignatureDoesNotMatch =
  AWS does not accept the signature: the secret key is wrong, or this machine's clock is
RequestExpired = the credentials have expired, or this machine's clock is wrong; {LOG_IN}
RequestTimeTooSkewed =
  this machine's clock is wrong, so AWS does not take its signatures; set the clock:
  sudo timedatectl set-ntp true
ExpiredToken ExpiredTokenException = the credentials have expired; {LOG_IN}
MissingAuthenticationToken = there are no credentials; {LOG_IN}
OptInRequired = this account may not use this service or region yet; enable it in the console
Blocked = AWS has blocked this account; ask AWS support
[denied]
UnauthorizedOperation AccessDenied AccessDeniedException 403 =
  your credentials do not permit it; `seerd doctor` prints a policy that does
AuthFailure.ServiceLinkedRoleCreationNotPermitted =
  the account has no role for spot instances yet, and these credentials may not make it; have it
  made once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com
OperationNotPermitted = AWS does not permit it, perhaps because of termination protection
[refused]
* = AWS does not take the request
InvalidParameterValue = AWS does not take a value of `[cluster]`; change the one that it names here
InvalidParameterCombination =
  AWS does not take these values of `[cluster]` together; change one that it names here
TagPolicyViolation =
  a tag policy of your organization forbids it; change `cluster.tags`, or the policy
InvalidParameter InvalidUserData.Malformed MissingParameter UnknownParameter ValidationError =
ValidationException =
NoSuchBucket = there is no such bucket; make it, or name another as the store
PermanentRedirect AuthorizationHeaderMalformed 301 =
  the bucket is in another region; name a bucket in the run's region
InvalidAMIID.NotFound InvalidAMIName.NotFound =
  there is no such image in this region; check `cluster.image` and `cluster.region`, and whether
  your account allows it: aws ec2 get-allowed-images-settings
InvalidAMIID.Malformed = this is no image id; check `cluster.image`
InvalidAMIID.Unavailable =
  the image cannot be used (it is deregistered, or not ready); check `cluster.image`
InvalidInstanceType = there is no such instance type in this region; check `cluster.instance_type`
InvalidKeyPair.NotFound = there is no such key pair in this region; check `cluster.key`
InvalidSubnetID.NotFound = there is no such subnet in this region; check `cluster.subnets`
InvalidSubnet = the subnet cannot be used; check `cluster.subnets`
InvalidGroup.NotFound =
  there is no such security group in the subnet's network; check `cluster.security_groups`
InvalidSecurityGroupID.NotFound =
  there is no such security group in this region; check `cluster.security_groups`
InvalidGroupId.Malformed = this is no security group id; check `cluster.security_groups`
InvalidKMSKey.InvalidState KMS.DisabledException KMS.KMSInvalidStateException =
  the KMS key is disabled or about to be deleted; enable it (aws kms enable-key), or name another
  key: for the disks aws ec2 modify-ebs-default-kms-key-id, for the bucket aws s3api
  put-bucket-encryption
KMS.NotFoundException =
  the bucket's KMS key does not exist any more; name another: aws s3api put-bucket-encryption
InvalidBlockDeviceMapping = the disk cannot be made so; check `cluster.volume_gb` against the image
MissingInput = AWS misses a parameter; without `cluster.subnets` the region needs a default network
VPCIdNotSpecified DefaultVpcDoesNotExist =
  there is no default network in this region; give `cluster.subnets`
[unknown]
* = AWS refused, with a code that seerd does not know
"""
"""For each kind, its codes with the advice to the user; none: the kind's own text, that of `*`."""

_BY_WORDS = """
[refused]
AuthFailure Not authorized for images =
  the image is not shared with your account; check `cluster.image`, or have it shared
OptInRequired Marketplace =
  the image is sold on AWS Marketplace; accept its terms there, or change `cluster.image`
InvalidParameterCombination not eligible for Free Tier =
  your account is on AWS's free plan, which has no such instances; upgrade the plan
[credentials]
SignatureDoesNotMatch Signature expired =
  this machine's clock is slow, so AWS does not take its signatures; set the clock:
  sudo timedatectl set-ntp true
SignatureDoesNotMatch Signature not yet current =
  this machine's clock is fast, so AWS does not take its signatures; set the clock:
  sudo timedatectl set-ntp true
[denied]
AccessDenied perform: kms: =
  the bucket is encrypted with a key that your credentials may not use; permit what AWS names, on
  that key
"""
"""Codes that mean something else when AWS's message has these words."""

_BY_POLICY = """
[denied]
session policy =
  the policy with which these credentials were made does not permit it; make them with one that
  does: `seerd doctor` prints it
[forbidden]
service control policy = {ORGANIZATION}
resource control policy = {ORGANIZATION}
permissions boundary =
  the permissions boundary of your user or role forbids it, and a further policy does not help; have
  the boundary permit what AWS names here
resource-based policy =
  the policy of the bucket or key itself forbids it, and a policy of your user or role does not
  help; change that policy: aws s3api get-bucket-policy, aws kms get-key-policy
VPC endpoint policy =
  the policy of the VPC endpoint on the way to AWS forbids it, and a policy of your user or role
  does not help; change the endpoint's: aws ec2 modify-vpc-endpoint --policy-document
identity-based policy =
  a policy of your user or role denies it, and permitting it in another does not help; remove that
  denial, or do what its condition asks (tags: `cluster.tags`)
explicit deny =
  a policy denies it, and permitting it in another does not help; remove that denial, or do what its
  condition asks (tags: `cluster.tags`)
"""
"""What helps against a refusal, by the kind of policy that AWS names as its cause
(docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_access-denied.html).
"""
_ORGANIZATION = """a policy of your organization (SCP or RCP) forbids it, and no policy of this
  account helps. Many ask for tags on everything that is launched: give them in `cluster.tags`;
  otherwise ask the administrators of the organization to permit what AWS names here"""
_CAUSE = re.compile(
    r"because no (.+? policy|permissions boundary) allows"
    r"|with an explicit deny in an? (.+? policy|permissions boundary)|with an (explicit deny)"
)
_PERMITTED_BY = "identity-based policy"  # if none allows it, one that does helps


def _rows(table: str) -> list[tuple[str, ErrorKind, str]]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
    table = table.replace("{LOG_IN}", LOG_IN).replace("{ORGANIZATION}", _ORGANIZATION)
    parser.read_string(table)
    return [
        (codes, ErrorKind(kind), " ".join(text.split()))
        for kind in parser.sections()
        for codes, text in parser[kind].items()
    ]


_ROWS = [(code, kind, text) for codes, kind, text in _rows(_TABLE) for code in codes.split()]
KIND_OF = {code: kind for code, kind, _ in _ROWS if code != "*"}
_TEXT_OF = {code: text for code, _, text in _ROWS}
_DEFAULTS = {kind: text for code, kind, text in _ROWS if code == "*"}
MEANT = [(key.split(maxsplit=1), kind, text) for key, kind, text in _rows(_BY_WORDS)]
"""Code and words, kind and text of each row of `_BY_WORDS`."""
FORBIDDING = {policy: (kind, text) for policy, kind, text in _rows(_BY_POLICY)}
"""Kind and text of each row of `_BY_POLICY`."""

_NEVER_SENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_LOST = (
    ResponseParserError,
    boto.HTTPClientError,
    boto.ConnectionError,
    BrokenHttpError,
    IncompleteReadError,
    OSError,
    TimeoutError,
)

_SETUP = """
[credentials]
NoCredentialsError =
  there are no AWS credentials here; run `aws configure` or `aws sso login`, or set AWS_PROFILE
PartialCredentialsError =
  the AWS credentials are incomplete; set both the access key and the secret key
CredentialRetrievalError = the AWS credentials could not be had; {LOG_IN}
TokenRetrievalError SSOError = the SSO session has ended; {LOG_IN}
ProfileNotFound = there is no such AWS profile; check AWS_PROFILE and ~/.aws/config
NoRegionError = no AWS region is named; set `cluster.region` or AWS_DEFAULT_REGION
[refused]
ParamValidationError = a value in the spec does not fit
"""
"""What botocore finds wrong before AWS is asked, by the names of its exceptions."""
SETUP = {
    getattr(boto, name): (kind, text)
    for names, kind, text in _rows(_SETUP)
    for name in names.split()
}


def explained(error: Exception, doing: str) -> AwsError:
    """Return the reason of a failed call in plain words; `doing`: "launching an instance"."""
    if isinstance(error, boto.ClientError):
        answer = error.response.get("Error", {})
        code, message = str(answer.get("Code", "")), str(answer.get("Message", "")).strip()
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        kind = kind_of(code, status)
        text = _TEXT_OF.get(code) or _DEFAULTS.get(kind, "AWS refused")
        # EC2 appends an encoded blob to a denied call: hundreds of characters for machines.
        shown = message.partition("Encoded authorization failure message")[0].strip()[:500]
        for (its_code, words), its_kind, its_text in MEANT:
            if its_code == code and words in message:
                kind, text = its_kind, its_text
        if kind is ErrorKind.DENIED and (match := _CAUSE.search(message)):
            implicit, explicit, unnamed = match.groups()
            if implicit != _PERMITTED_BY:
                policy = implicit or explicit or unnamed
                kind, text = FORBIDDING.get(policy, FORBIDDING["explicit deny"])
        return AwsError(f"{doing}: {text} ({code}: {shown})", kind, code, shown, status)
    name = type(error).__name__
    why = (str(error).strip().splitlines() or [name])[0][:300]
    for setup, (kind, text) in SETUP.items():
        if isinstance(error, setup):
            return AwsError(f"{doing}: {text} ({why})", kind, name)
    if isinstance(error, _NEVER_SENT):
        return AwsError(f"{doing}: AWS cannot be reached ({why})", ErrorKind.THROTTLED, name)
    if isinstance(error, _LOST):
        return AwsError(f"{doing}: no answer came from AWS ({why})", ErrorKind.UNCLEAR, name)
    return AwsError(f"{doing}: {why}", ErrorKind.REFUSED, name)


def kind_of(code: str, status: int) -> ErrorKind:
    """Return what this error code with this HTTP status means. The code counts first: EC2 says
    InsufficientInstanceCapacity with status 500
    (docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html). Unknown codes may be
    about one place or one moment only.
    """
    if code in KIND_OF:
        return KIND_OF[code]
    if status in {429, 503}:
        return ErrorKind.THROTTLED if status == 429 else ErrorKind.UNCLEAR
    return ErrorKind.UNCLEAR if status >= 500 else ErrorKind.UNKNOWN
