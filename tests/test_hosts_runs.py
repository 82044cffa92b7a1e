"""`seerd run` on machines that people have: a real SSH server that the user knows, and one that is
down.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seerd.agent.gpu_leases import LeaseFolder, RunHere, Use, free
from tests.commands import Command
from tests.shell.sshd import Sshd, agents, free_port, sshds, until

ROOT = Path(__file__).parent.parent
USER = getpass.getuser()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """A machine, in the known_hosts of a user whose key it takes."""
    with sshds(1) as (server,):
        ssh = tmp_path / ".ssh"
        ssh.mkdir(mode=0o700)
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.host_key}")
        shutil.copy(server.user_key, ssh / "id_ed25519")
        yield server


def spec(folder: Path, server: Sshd) -> Path:
    shutil.copy(ROOT / "tests" / "programs" / "trainer.py", folder / "trainer.py")
    (folder / "trainer.py").chmod(0o755)
    path = folder / "spec.toml"
    path.write_text(
        f"""
        name = "own"
        metric = {{ name = "accuracy", mode = "max" }}
        [train]
        script = "trainer.py"
        launcher = "command"
        [space]
        lr = {{ low = 0.1, high = 0.9 }}
        [policy]
        eta = 2
        p_max = 2
        t_min = "3s"
        [cluster]
        provider = "hosts"
        hosts = [
            {{ address = "127.0.0.1", user = "{USER}", port = {free_port()}, slots = 2 }},
            {{ address = "127.0.0.1", user = "{USER}", port = {server.port}, slots = 2 }},
        ]
        store = "shared"
        """
    )
    return path


def spec_of_one(folder: Path, server: Sshd) -> Path:
    """The same without the machine that is down."""
    path = spec(folder, server)
    lines = path.read_text().splitlines(True)
    path.write_text(
        "".join(line for line in lines if "slots" not in line or f"{server.port}" in line)
    )
    return path


ANOTHER_VERSION = {
    "PYTHONPATH": f"{ROOT / 'tests' / 'another_version'}{os.pathsep}{ROOT}",
    "SEERD_SPEAKS": "99",
}


def seerd(folder: Path, *args: object, **more: str) -> Command | subprocess.Popen[str]:
    env = {
        **os.environ,
        "HOME": str(folder),
        "SEERD_HOME": str(folder / "runs"),
        "PYTHONPATH": str(ROOT),
        **more,
    }
    env.pop("SSH_AUTH_SOCK", None)
    words = [str(one) for one in args]
    if not more:
        return Command(words, Path.cwd(), env)
    command = [sys.executable, "-c", "from seerd import cli; cli.main()", *words]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: Command | subprocess.Popen[str], code: int = 0) -> dict:
    """The JSON object with which it ended."""
    out, err = process.communicate()
    assert process.returncode == code, err
    return json.loads(out)  # type: ignore[no-any-return]


def reports(folder: Path) -> int:
    """How many the run has so far."""
    lines = seerd(folder, "show", "last", "--json").communicate()[0]
    return sum(trial["reports"] for trial in json.loads(lines)["all_trials"]) if lines else 0


def test_a_killed_run_goes_on_where_it_was_and_leaves_nothing_behind(
    tmp_path: Path, server: Sshd
) -> None:
    """Taken up by another version, its agents are replaced, and no trial is lost."""
    limits = ("--deadline", "90s", "--budget", "8gpu-min")
    ends = (
        "train.env.SEERD_TEST_EPOCHS='60'",
        "policy.name='random'",
        "policy.trials=2",
        "policy.p_max=1",
    )
    enough = [word for one in ends for word in ("--set", one)]
    run = seerd(tmp_path, "run", spec(tmp_path, server), *limits, *enough, "--json")
    until(lambda: saved(server) > 6, 60)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert agents(server.home), "the machine goes on by itself"
    before = reports(tmp_path)
    told = ended(seerd(tmp_path, "resume", "last", "--json", **ANOTHER_VERSION))
    assert told["status"] in ("done", "deadline", "budget")
    assert told["best"]["metric"] > 0.5
    assert reports(tmp_path) > before
    assert told["elapsed_s"] <= 90
    assert told["gpu_min"] <= 8
    assert Path(told["best"]["checkpoint"]).is_file()
    logs = seerd(tmp_path, "logs", "last", told["best"]["trial"]).communicate()[0]
    assert "training from 0" in logs
    assert agents(server.home) == []
    assert list((server.home / ".seerd").rglob("*.pt")) == []


def saved(server: Sshd) -> int:
    """How many checkpoints the agent there has told of."""
    journals = server.home.glob(".seerd/*/journal.jsonl")
    return sum(path.read_bytes().count(b'{"kind":"checkpointed",') for path in journals)


@pytest.mark.parametrize("stopped", [False, True], ids=["deadline", "Ctrl-C"])
def test_a_machine_that_is_down_at_the_end_is_not_waited_for_beyond_the_deadline(
    tmp_path: Path, server: Sshd, stopped: bool
) -> None:
    path = spec_of_one(tmp_path, server)
    run = seerd(tmp_path, "run", path, "--deadline", "24s", "--budget", "4gpu-min", "--json")
    until(lambda: saved(server) > 4, 60)
    server.stop()
    if stopped:
        run.send_signal(signal.SIGINT)
    out, err = run.communicate()
    told = json.loads(out)
    assert told["best"] is not None, out + err
    assert told["elapsed_s"] <= 24
    assert told["status"] in (("interrupted",) if stopped else ("done", "deadline"))


def test_an_agent_that_is_stopped_is_ended_with_its_trials_by_the_deadline(
    tmp_path: Path, server: Sshd
) -> None:
    path = spec_of_one(tmp_path, server)
    run = seerd(tmp_path, "run", path, "--deadline", "24s", "--budget", "4gpu-min", "--json")
    until(lambda: saved(server) > 4, 60)
    os.kill(int(next(server.home.glob(".seerd/*/agent.pid")).read_text()), signal.SIGSTOP)
    assert ended(run)["elapsed_s"] <= 24
    assert agents(server.home) == []


def test_torchrun_trains_on_a_machine_over_ssh(tmp_path: Path, server: Sshd) -> None:
    path = spec_of_one(tmp_path, server)
    with_torchrun = f'python = "{sys.executable}"'
    path.write_text(path.read_text().replace('launcher = "command"', with_torchrun))
    limits = ("--deadline", "3m", "--budget", "12gpu-min", "--set", "policy.t_min=60s")
    # One trial, which is good enough whatever its rate is; nothing is forked later.
    one = ("policy.name='random'", "policy.trials=1", "train.preload=false", "metric.target=0.2")
    enough = [word for key in one for word in ("--set", key)]
    told = ended(seerd(tmp_path, "run", path, *limits, *enough, "--json"))
    assert told["status"] == "target"
    assert told["best"]["metric"] >= 0.2
    assert Path(told["best"]["checkpoint"]).is_file()
    logs = seerd(tmp_path, "logs", "last", told["best"]["trial"]).communicate()[0]
    assert "training from 0" in logs
    assert agents(server.home) == []


def test_a_python_of_the_source_is_what_the_setup_makes_there(tmp_path: Path, server: Sshd) -> None:
    path = spec_of_one(tmp_path, server)
    made = '''launcher = "python"
setup = ["python3 -m venv --without-pip .venv"]
python = "sh -c 'exec .venv/bin/python \\"$@\\"' enter"'''
    path.write_text(path.read_text().replace('launcher = "command"', made))
    limits = ("--deadline", "60s", "--budget", "4gpu-min", "--set", "metric.target=0.4")
    told = ended(seerd(tmp_path, "run", path, *limits, "--json"))
    assert told["status"] == "target"


def test_machines_that_let_nobody_in_end_a_run_before_it_begins(
    tmp_path: Path, server: Sshd
) -> None:
    path = spec(tmp_path, server)
    (tmp_path / ".ssh" / "known_hosts").write_text("")
    run = seerd(tmp_path, "run", path, "--deadline", "40s", "--budget", "4gpu-min", "--json")
    _, err = run.communicate()
    assert run.returncode == 5
    assert "ssh-keyscan" in err
    assert "refused" in err
    assert agents(server.home) == []


def test_who_has_which_gpus_of_hosts_is_asked_over_ssh(tmp_path: Path, server: Sshd) -> None:
    folder = LeaseFolder(str(server.folder / "gpus"))
    own, lease = folder.register("theirs"), folder.lease("slot-1")
    pool = ["slot-0", "slot-1"]
    own.write(RunHere("theirs", 1.0, 2, 2, 1, pool, 5.0, {"slot-1": Use("t1/3", 6.0)}))
    told = ended(seerd(tmp_path, "machines", spec(tmp_path, server), "--json"))
    down, up = told["machines"]
    assert down["why"]
    assert (up["machine"], up["why"]) == (f"{USER}@127.0.0.1:{server.port}", "")
    assert [(gpu["gpu"], gpu["run"], gpu["trial"]) for gpu in up["gpus"]] == [
        ("slot-0", None, None),
        ("slot-1", "theirs", "t1"),
    ]
    assert lease is not None
    free([lease])
    own.close()


GROUP = """
name = "both"
[limits]
deadline = "4m"
budget = "8gpu-min"
[cluster]
{cluster}
[[job]]
spec = "spec.toml"
name = "one"
"""


def two_trials(path: Path, end: Path) -> Path:
    """Have the job be over when this file is there and two trials have reported."""
    text = path.read_text().replace("eta = 2", 'name = "random"\ntrials = 2')
    path.write_text(text.replace("[train]", f'[train]\nenv = {{ SEERD_TEST_END = "{end}" }}'))
    return path


def test_a_job_comes_while_the_run_goes_on_and_the_run_is_taken_up_with_it(
    tmp_path: Path, server: Sshd
) -> None:
    """First with a setup command that fails, then mended under the same name, beside another; the
    person thinks better of a third.
    """
    end, more = tmp_path / "end", tmp_path / "more"
    own = two_trials(spec_of_one(tmp_path, server), end)
    cluster = own.read_text().partition("[cluster]")[2]
    (tmp_path / "group.toml").write_text(GROUP.format(cluster=cluster))
    more.mkdir()
    text = two_trials(spec(more, server), end).read_text()
    (more / "spec.toml").write_text(text.replace("[train]", "[train]\nsetup = ['exit 3']"))
    run = seerd(tmp_path, "run", tmp_path / "group.toml", "--plain")
    until(lambda: saved(server) > 1, 60)
    add = ("add", "last", more / "spec.toml", "--json", "--name")
    refused = seerd(tmp_path, *add, "two")
    assert "exit 3" in refused.communicate()[1]
    assert refused.returncode == 2
    setup = "setup = ['sleep 1', 'cat data.txt > made']"
    (more / "spec.toml").write_text(text.replace("[train]", f"[train]\n{setup}"))
    (more / "data.txt").write_text("so")
    withdrawn = seerd(tmp_path, *add, "four")
    source = next((server.home / ".seerd").glob("*/source"))
    until((source / "four" / "data.txt").exists, 60)
    withdrawn.send_signal(signal.SIGINT)
    assert "four is taken back" in withdrawn.communicate()[1]
    at_once = [seerd(tmp_path, *add, name) for name in ("two", "three")]
    assert [ended(one)["job"] for one in at_once] == ["two", "three"]
    assert (source / "two" / "made").read_text() == "so"
    run.kill()
    run.communicate()
    before = saved(server)
    resumed = seerd(tmp_path, "resume", "last", "--json")
    until(lambda: saved(server) > before + 4, 60)
    end.touch()
    ended(resumed)
    told = ended(seerd(tmp_path, "show", "last", "--json"))
    assert {job["job"] for job in told["jobs"] if job["best"]} == {"one", "two", "three"}
    assert len(told["jobs"]) == 3
    assert all(trial["crashes"] == 0 for trial in told["all_trials"])
    assert ended(seerd(tmp_path, "replay", "last", "--json"))["same"]
    assert agents(server.home) == []
