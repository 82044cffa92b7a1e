"""Mistakes in what is rented: launches, what they bring, what becomes of it, and sweeping."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REQUEST = "tests/aws/test_ec2_request.py"
PROVIDER = "tests/aws/test_ec2_provider.py"
LANES = "tests/aws/test_aws_lanes.py"
PLACES = "tests/aws/test_ec2_places.py"
ENDING = "tests/aws/test_ec2_ending.py"
REGISTER = "tests/aws/test_ec2_register.py"
FACTS = "tests/aws/test_aws_facts.py"
FAULTS = "tests/faults/test_fault_world.py"
SECOND_LIFE = f"{PROVIDER}::test_a_second_life_takes_up_what_it_knows_leaves_what_is_under_way_and_ends_the_rest"

RENTING = (
    Mutant(
        "a launch has no ClientToken",
        "a launch happens once",
        "run_instances",
        '{"ClientToken": client_token(settings.run, token, candidate)}',
        "{}",
        (f"{REQUEST}::test_the_same_launch_is_the_same_request",),
    ),
    Mutant(
        "the ClientToken of a launch is another one each time",
        "a launch happens once",
        "client_token",
        "parts.encode()",
        'parts.encode() + __import__("os").urandom(8)',
        (REQUEST,),
    ),
    Mutant(
        "the ClientToken is the same for every run",
        "a launch of one run is never taken for another's",
        "client_token",
        'f"{run}\\0{token}\\0{candidate.type}\\0{candidate.subnet}"',
        'f"{token}\\0{candidate.type}\\0{candidate.subnet}"',
        (REQUEST,),
    ),
    Mutant(
        "launches come faster than EC2 takes them",
        "EC2 is asked no more often than others bear",
        "cloud.LIMITS",
        '{"run_instances": (3.0, 1.8)}',
        '{"run_instances": (8.0, 1.8)}',
        (f"{LANES}::test_ec2_has_a_token_for_every_call_that_had_one_here",),
    ),
    Mutant(
        "a throttled launch holds up everything else",
        "what ends an instance waits for no launch",
        "CallLanes.__getitem__",
        "self._lanes.get(action, self._others)",
        'self._lanes["run_instances"]',
        (f"{LANES}::test_a_throttled_lane_holds_up_no_other",),
    ),
    Mutant(
        "each launch asks everywhere by itself",
        "EC2 is asked no more often than others bear",
        "LaunchPlaces.refused",
        "self._refusals[other] = (error, now)",
        "pass",
        (f"{PLACES}::test_places_are_asked_in_their_order",),
    ),
    Mutant(
        "a place that was dry once is never asked first again",
        "a cloud without capacity is asked within reason",
        "LaunchPlaces._refused_at",
        "now - at < REMEMBERED_S.get(error.kind, 0.0)",
        "error.kind in REMEMBERED_S",
        (f"{PLACES}::test_a_place_that_has_refused_lately_is_asked_after_the_others",),
    ),
    Mutant(
        "an instance has no tags",
        "every instance can be found by its tags",
        "run_instances",
        '{"TagSpecifications": _tagged(settings, token)}',
        "{}",
        (f"{REQUEST}::test_everything_that_a_launch_makes_bears_our_tags_whatever_the_users_are",),
    ),
    Mutant(
        "an instance's tags do not say whose it is",
        "every instance can be found by its tags",
        "ec2.request.tags",
        "{OWNER: settings.owner}",
        "{}",
        (f"{REQUEST}::test_everything_that_a_launch_makes_bears_our_tags_whatever_the_users_are",),
    ),
    Mutant(
        "a user's tags win over ours",
        "every instance can be found by its tags",
        "ec2.request.tags",
        "dict(settings.tags) | {key: value[:TAG_LENGTH] for key, value in ours.items()}",
        "{key: value[:TAG_LENGTH] for key, value in ours.items()} | dict(settings.tags)",
        (REQUEST,),
    ),
    Mutant(
        "an instance that powers itself off is only stopped",
        "a power-off ends an instance and its costs",
        "run_instances",
        '{"InstanceInitiatedShutdownBehavior": "terminate"}',
        "{}",
        (f"{REQUEST}::test_an_instance_is_one_that_ends_with_its_power_and_takes_its_disks_along",),
    ),
    Mutant(
        "the metadata service answers whoever asks",
        "instances have IMDSv2 alone",
        "run_instances",
        '{"HttpTokens": "required"}',
        '{"HttpTokens": "optional"}',
        (f"{REQUEST}::test_an_instance_is_one_that_ends_with_its_power_and_takes_its_disks_along",),
    ),
    Mutant(
        "disks stay when their instance goes",
        "nothing is left behind that costs",
        "_disks",
        '{"DeleteOnTermination": True}',
        '{"DeleteOnTermination": False}',
        (f"{REQUEST}::test_an_instance_is_one_that_ends_with_its_power_and_takes_its_disks_along",),
    ),
    Mutant(
        "a launch asks for as many instances as EC2 likes to give",
        "a launch happens once",
        "run_instances",
        '{"MaxCount": 1}',
        '{"MaxCount": 2}',
        (f"{REQUEST}::test_an_instance_is_one_that_ends_with_its_power_and_takes_its_disks_along",),
    ),
    Mutant(
        "what is shutting down counts as left over",
        "what is not billed any more is nothing that is left",
        "ec2.register.remains",
        "left.ending if instance.state in ENDING else left.costing",
        "left.costing",
        (f"{REGISTER}::test_what_shuts_down_and_its_disks_are_nothing_left",),
    ),
    Mutant(
        "a disk counts as ending although what holds it runs",
        "whatever may cost money is named at the end",
        "Volume.ends_with",
        "self.holders <= ending",
        "True",
        (f"{REGISTER}::test_what_shuts_down_and_its_disks_are_nothing_left",),
    ),
    Mutant(
        "an instance is logged in to before its address is known",
        "an instance that runs is waited for until EC2 shows its address",
        "Flight._launch",
        "await self._addressed(entry)",
        "",
        (
            f"{PROVIDER}::test_an_instance_that_runs_before_its_address_is_shown_is_asked_for_it_again",
        ),
    ),
    Mutant(
        "each process of a role is another owner",
        "sweep finds what any process of its owner has left",
        "identity.owner_of",
        "match is None or match[2].startswith(SSO)",
        "True",
        ("tests/aws/test_aws_owner.py::test_an_owner_is_the_same_in_every_process",),
    ),
    Mutant(
        "an instance that failed to boot is left as it is",
        "no instance is left behind",
        "Flight._undone",
        "context.fleet.end_all(brought)",
        "context.fleet.end_all([])",
        (f"{PROVIDER}::test_a_machine_that_never_answers_is_given_back_and_its_time_is_told",),
    ),
    Mutant(
        "what a launch without an answer has brought is not looked for",
        "no instance is left behind",
        "Flight._undone",
        "if self._unclear:\n    setback = await self._searched(setback)",
        "if not self._unclear:\n    setback = await self._searched(setback)",
        (f"{PROVIDER}::test_a_launch_that_is_called_off_leaves_nothing",),
    ),
    Mutant(
        "a launch that is repeated after a crash asks for one more",
        "a launch happens once",
        "Flight._taken_up",
        "live[0] if live else None",
        "None",
        (
            f"{PROVIDER}::test_a_launch_of_an_earlier_life_is_found_also_where_it_would_not_be_asked_for_first",
        ),
    ),
    Mutant(
        "what nobody knows is left running when a run is taken up",
        "what is of the run and unknown is ended, never used",
        "Ec2Provider.adopt",
        "entry.instance not in known",
        "entry.instance in self._awaited",
        (SECOND_LIFE,),
    ),
    Mutant(
        "what nobody knows is adopted when a run is taken up",
        "what is of the run and unknown is ended, never used",
        "Ec2Provider.adopt",
        "entry.instance in known and not entry.ended",
        "not entry.ended",
        (SECOND_LIFE,),
    ),
    Mutant(
        "strangers with the run's tag are left running",
        "what is of the run and unknown is ended, never used",
        "Register.observe",
        "[s.instance for s in strays] + halted",
        "halted",
        (f"{REGISTER}::test_a_stranger_is_ended_once_unless_its_launch_waits_for_it",),
    ),
    Mutant(
        "an instance that an answer lacks is gone at once",
        "silence of an API that lags behind means nothing",
        "FORGET_S",
        "60.0",
        "-1.0",
        (f"{REGISTER}::test_silence_is_no_loss_for_a_minute_and_then_it_is_since_it_began",),
    ),
    Mutant(
        "an instance that has ended may come back",
        "an end is final, whatever a late answer says",
        "Register._note",
        "if entry.ended:\n    return []",
        "",
        (REGISTER,),
    ),
    Mutant(
        "an instance runs only since it was seen to",
        "time is counted against the run",
        "Register._note",
        "max(entry.idle_at, asked_at)",
        "max(entry.idle_at, now)",
        (REGISTER,),
    ),
    Mutant(
        "an end that EC2 did not agree to counts as one",
        "an instance is given back for certain",
        "Ec2Fleet.end",
        "try:\n"
        "    answer = await self._endings.end(instance)\n"
        "except AwsError as error:\n"
        "    await self._judge(entry, error, asyncio.get_running_loop().time() - begun)\n"
        "else:\n"
        "    if answer.before in ENDING and await self._has_ended(entry):\n"
        "        break\n"
        "    if answer.now in ENDING:\n"
        "        self.register.end(instance, wall(), before=answer.before)\n"
        "        break",
        "try:\n"
        "    answer = await self._endings.end(instance)\n"
        "except AwsError:\n"
        "    self.register.end(instance, wall())\n"
        "else:\n"
        "    if answer.before in ENDING and await self._has_ended(entry):\n"
        "        break\n"
        "    if answer.now in ENDING:\n"
        "        self.register.end(instance, wall(), before=answer.before)\n"
        "        break",
        (
            f"{PROVIDER}::test_terminating_is_repeated_until_ec2_agrees_and_may_be_repeated_by_anyone",
        ),
    ),
    Mutant(
        "each instance is ended by a call of its own",
        "what ends an instance waits for no launch",
        "Endings.end",
        "if not self._pending:\n    self._begin(self._send())\n"
        "if instance not in self._pending:\n"
        "    self._pending[instance] = asyncio.get_running_loop().create_future()\n"
        "return await asyncio.shield(self._pending[instance])",
        "wish = asyncio.get_running_loop().create_future()\n"
        "await self._ask({instance: wish})\n"
        "return await wish",
        (
            f"{ENDING}::test_what_is_ended_at_one_moment_is_ended_by_one_call_whatever_becomes_of_launches",
        ),
    ),
    Mutant(
        "one instance that cannot be ended keeps others from their end",
        "an instance is given back for certain",
        "Endings._ask",
        "len(pending) > 1 and error.kind not in OF_ALL",
        "False",
        (f"{ENDING}::test_an_instance_that_cannot_be_ended_keeps_no_other_from_its_end",),
    ),
    Mutant(
        "a start is looked for only every few seconds",
        "the ledger is the cloud's own account",
        "Register.restless",
        "self.live()",
        "()",
        (
            f"{FAULTS}::test_ec2_is_asked_often_enough_to_account_for_instances_and_leaves_time_for_others",
        ),
    ),
    Mutant(
        "EC2 is asked again as soon as it has answered",
        "EC2 is asked no more often than others bear",
        "Ec2Fleet._keep_watching",
        "self._rest(SLOW_S if self.blind else rest_s(BUSY_S, took_s), rest_s(CALM_S, took_s))",
        "asyncio.sleep(0.0)",
        (
            f"{FAULTS}::test_ec2_is_asked_often_enough_to_account_for_instances_and_leaves_time_for_others",
        ),
    ),
    Mutant(
        "the power-off is scheduled after something that can fail",
        "an instance ends at the hard end, whatever fails",
        "_BOOTHOOK",
        "'left=$(( {hard_end}'",
        "'apt-get update -y || exit 1\\nleft=$(( {hard_end}'",
        (
            "tests/aws/test_aws_userdata.py::test_the_power_off_is_a_boothook_and_comes_before_all_else",
        ),
    ),
    Mutant(
        "the power-off waits for the rest of the boot",
        "an instance ends at the hard end, whatever fails",
        "user_data",
        '"cloud-boothook"',
        '"x-shellscript"',
        (
            "tests/aws/test_aws_userdata.py::test_the_power_off_is_a_boothook_and_comes_before_all_else",
        ),
    ),
    Mutant(
        "an instance that has worked goes on after a reboot",
        "the budget is kept, with what is committed",
        "_WATCH",
        "'[ ! -e /var/lib/cloud/scripts/seerd-worked ] || shutdown -P now\\n'",
        "''",
        (
            "tests/aws/test_aws_userdata.py::test_a_reboot_ends_an_instance_that_has_worked_and_no_other",
        ),
    ),
    Mutant(
        "an instance of an earlier life counts from when it was asked for again",
        "the ledger is the cloud's own account",
        "Flight._run_instances",
        "min(seen.launched_at, asked_at)",
        "asked_at",
        (
            f"{PROVIDER}::test_a_launch_of_an_earlier_life_that_is_not_shown_yet_counts_from_when_it_was_first_asked_for",
        ),
    ),
    Mutant(
        "a sweep looks at everybody's instances",
        "nothing of somebody else is ended",
        "_is_of",
        'tags.get(OWNER, "") == owner[:LONGEST]',
        "True",
        (f"{FACTS}::test_a_star_in_the_path_of_an_owner_stands_for_itself",),
    ),
    Mutant(
        "a sweep looks at what is not seerd's",
        "nothing of somebody else is ended",
        "_of",
        '[{"Name": f"tag:{OWNER}", "Values": [owner[:LONGEST]]}, {"Name": "tag-key", "Values": [RUN]}]',
        '[{"Name": f"tag:{OWNER}", "Values": [owner[:LONGEST]]}]',
        (f"{FACTS}::test_a_sweep_finds_and_removes_what_is_this_owners_and_seerds_alone",),
    ),
    Mutant(
        "a sweep ends instances of a living run",
        "nothing of a living run is ended",
        "sweep.decide",
        "known.process is not None",
        "known.process is not None and not older_than_s",
        ("tests/test_sweep.py::test_what_is_dead",),
    ),
    Mutant(
        "a sweep ends what a daemon that has just died may still save",
        "nothing of a living run is ended",
        "sweep.decide",
        "known.quiet_s >= QUIET_S",
        "True",
        ("tests/test_sweep.py::test_what_is_dead",),
    ),
)
