"""Mistakes in what is taken from machines, scripts and files, and in what they are given."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PROTOCOL = "tests/agent/test_agent_protocol.py"
USERDATA = "tests/aws/test_aws_userdata.py"
REQUEST = "tests/aws/test_ec2_request.py"
OUTPUT = "tests/agent/test_agent_trial_output.py"
PRINTED = "tests/agent/test_agent_printed.py"
COLLECTING = "tests/shell/test_collecting.py"
CONVERSATION = "tests/shell/test_conversation.py"

STRANGERS = (
    Mutant(
        "a whole number may be of any size",
        "whole numbers are at most 2^53",
        "wire._checked",
        "-LARGEST <= value <= LARGEST",
        "True",
        (f"{PROTOCOL}::test_numbers_are_within_what_can_be",),
    ),
    Mutant(
        "times and counts may be anything",
        "times and durations are within what can be",
        "wire._made",
        "value is not None and not low <= value <= high",
        "False",
        (PROTOCOL,),
    ),
    Mutant(
        "a line may be of any length",
        "an agent's line has at most 1 MiB",
        "wire.decode",
        "len(line) > MAX_LINE",
        "False",
        (PROTOCOL,),
    ),
    Mutant(
        "facts may have gaps",
        "an agent's facts are numbered without gaps",
        "Conversation._listen",
        "message.seq > self._seen + 1",
        "False",
        ("tests/shell/test_conversation.py",),
    ),
    Mutant(
        "a pipe is read as a trial's output",
        "only regular files are opened",
        "plainfile.opened",
        "not stat.S_ISREG(os.fstat(descriptor).st_mode)",
        "False",
        (f"{OUTPUT}::test_an_output_that_is_no_file_is_not_read",),
    ),
    Mutant(
        "a line of a trial may be of any length",
        "a line of a trial has at most 64 KiB",
        "TrialOutput._facts",
        "len(line) <= LONGEST_LINE",
        "True",
        (OUTPUT,),
    ),
    Mutant(
        "all of a log comes here",
        "of each log the last 256 KiB come here",
        "agent.remote_tasks.printed",
        "plainfile.read(path, -MOST_OF_ONE, MOST_OF_ONE)",
        "plainfile.read(path, 0, MOST)",
        (PRINTED,),
    ),
    Mutant(
        "an answer with logs has no end",
        "logs come 8 MiB at a time",
        "agent.remote_tasks.printed",
        "left < MOST_OF_ONE",
        "False",
        (PRINTED,),
    ),
    Mutant(
        "a spec may have any length",
        "a spec has at most 4 MiB",
        "spec.reader.LONGEST",
        "4 << 20",
        "4 << 30",
        ("tests/test_spec.py",),
    ),
    Mutant(
        "instances have an instance profile",
        "nothing on an instance can ask AWS for credentials",
        "run_instances",
        '{"MinCount": 1}',
        '{"MinCount": 1, "IamInstanceProfile": {"Name": "seerd"}}',
        (REQUEST,),
    ),
    Mutant(
        "an instance keeps its image's host keys",
        "an instance shows exactly the key that was made for it",
        "cloud_config",
        '{"ssh_deletekeys": True}',
        '{"ssh_deletekeys": False}',
        (USERDATA,),
    ),
    Mutant(
        "an instance's host key is its own",
        "an instance shows exactly the key that was made for it",
        "cloud_config",
        '{"ed25519_private": boot.host_private.strip() + "\\n"}',
        "{}",
        (USERDATA,),
    ),
    Mutant(
        "the run's user may become root",
        "a script cannot become root beyond the power-off",
        "cloud_config",
        "'ALL' if boot.root else ', '.join(may_do)",
        "'ALL'",
        (USERDATA,),
    ),
    Mutant(
        "a key may be read by everybody",
        "keys have mode 600",
        "keys._write",
        "0o600",
        "0o644",
        ("tests/aws/test_aws_userdata.py",),
    ),
    Mutant(
        "the place that is held back is used",
        "one place is held back for a trial's last checkpoint",
        "PresignedUrls.place",
        "len(fresh) > kept_back",
        "fresh",
        ("tests/agent/test_agent_s3_transfer.py", "tests/agent/test_agent_s3_serve.py"),
    ),
)
