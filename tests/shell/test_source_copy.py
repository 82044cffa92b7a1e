"""The copy of a source costs no more than it must, and no more time than the run can spare."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from seerd.agent.workplace import SMALL
from seerd.errors import LimitsError, UsageError
from seerd.shell.source_copy import OUTPUT_BYTES, CopyTerms, copy_source, outputs
from seerd.units import SLOW_S


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "project"
    source.mkdir()
    (source / "train.py").write_text("print()")
    return source


@pytest.fixture
def to(tmp_path: Path) -> Path:
    run = tmp_path / "home" / "run-1"
    run.mkdir(parents=True)
    return run / "source"


def test_the_source_is_copied_without_what_is_ignored(tmp_path: Path) -> None:
    source = tmp_path / "project"
    for name in (
        "train.py",
        "big/data.bin",
        ".git/config",
        "a/__pycache__/x.pyc",
        "a/keep.txt",
        "notes.log",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    os.mkfifo(source / "pipe")
    (source / ".seerdignore").write_text("big/\n*.log\n")
    to = source / "runs" / "run-1" / "source"
    to.parent.mkdir(parents=True)
    copy_source(source, to, set())
    copied = {path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()}
    assert copied == {"train.py", "a/keep.txt", ".seerdignore"}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere filesystems may fill holes at once")
def test_holes_stay_holes(source: Path, to: Path) -> None:
    with (source / "memmap.bin").open("wb") as file:
        file.seek(1 << 30)
        file.write(b"in the middle")
        file.truncate(40 << 30)
    copy_source(source, to, set())
    copied = (to / "memmap.bin").stat()
    assert copied.st_size == 40 << 30
    assert copied.st_blocks * 512 < 1 << 20
    with (to / "memmap.bin").open("rb") as file:
        file.seek((1 << 30) - 2)
        assert file.read(17) == b"\0\0in the middle\0\0"


def test_links_inside_stay_links_and_listed_ones_that_lead_out_are_not_copied(
    source: Path, to: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "big.bin").write_text("data")
    for name in ("a/versions/v2", "kept-out", ".venv/bin", "venv/bin"):
        (source / name).mkdir(parents=True)
        (source / name / "x").write_text(name)
    (source / ".seerdignore").write_text("kept-out/\n")
    (source / "venv" / "pyvenv.cfg").touch()
    (source / "venv" / "bin" / "python3").symlink_to(sys.executable)
    (source / "a" / "latest").symlink_to(source / "a" / "versions" / "v2")
    (source / "round").symlink_to(".")
    (source / "a" / "up").symlink_to("../..")
    (source / "data").symlink_to(outside)
    (source / "held").symlink_to("kept-out")
    (source / "nothing").symlink_to("nowhere")
    (source / "circle").symlink_to("circle")
    lines: list[str] = []
    copy_source(source, to, set(), CopyTerms(lines.append, follow=("a/u*", "data", "held")))
    assert (to / "a" / "latest").readlink() == Path("versions/v2")
    assert (to / "a" / "latest" / "x").resolve().is_relative_to(to)
    assert (to / "round").resolve() == to
    assert (to / "data").readlink() == outside
    assert (to / "venv" / "bin" / "python3").is_symlink(), "every virtual environment has it"
    assert (to / "held" / "x").resolve() == source / "kept-out" / "x", "it is in no copy"
    assert not {"nothing", "circle", "kept-out"} & {path.name for path in to.iterdir()}
    assert lines == ["links lead in a circle and are left out of the copy: circle"]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("listed", [(), ("dat",), ("*/keys",), ("data/keys", "x")])
def test_links_that_lead_out_are_refused_all_at_once(
    source: Path, to: Path, tmp_path: Path, elsewhere: bool, listed: tuple[str, ...]
) -> None:
    outside = tmp_path / "project-data"
    (outside / "deep").mkdir(parents=True)
    (source / "model").mkdir()
    (source / "data").symlink_to(outside)
    (source / "model" / "keys").symlink_to("../../project-data/deep")
    for number in range(5):
        (outside / f"{number}.png").touch()
        (source / "model" / f"{number}.png").symlink_to(outside / f"{number}.png")
    with pytest.raises(UsageError) as refused:
        copy_source(source, to, set(), CopyTerms(elsewhere=elsewhere, follow=listed))
    text = str(refused.value)
    assert f"data -> {outside}, model/0.png -> {outside}/0.png, " in text
    assert ("model/keys" in text) is ("*/keys" not in listed)
    assert 'follow = ["data", "model/*"]' in text
    assert f"printf '%s\\n' /data '/model/*' >> {source}/.seerdignore" in text
    assert not to.exists()
    copy_source(source, to, set(), CopyTerms(elsewhere=elsewhere, follow=("data", "model/*")))
    (source / ".seerdignore").write_text("/data\n/model/*\n")
    copy_source(source, to.with_name("left-out"), set(), CopyTerms(elsewhere=elsewhere))
    assert {path.name for path in to.with_name("left-out").rglob("*")} == {
        *("model", "train.py", ".seerdignore")
    }


def test_listed_links_are_followed_for_other_machines_but_not_in_circles(
    source: Path, to: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "common"
    (outside / "deep").mkdir(parents=True)
    (outside / "tools.py").write_text("tools")
    (outside / "deep" / "back").symlink_to(outside)
    (source / "common").symlink_to(outside)
    (source / "up").symlink_to(source)
    (source / "same.py").symlink_to(source / "train.py")
    lines: list[str] = []
    terms = CopyTerms(lines.append, elsewhere=True, follow=("common",))
    copy_source(source, to, set(), terms)
    files = {path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()}
    assert files == {"train.py", "same.py", "common/tools.py"}
    assert not any(path.is_symlink() for path in to.rglob("*"))
    (line,) = lines
    assert line.endswith("left out of the copy: common/deep/back, up")


def test_a_followed_folder_opens_no_other_one(source: Path, to: Path, tmp_path: Path) -> None:
    """A link in it that leads out of it is refused by its own name."""
    outside, keys = tmp_path / "data", tmp_path / "keys"
    for folder in (outside, keys):
        folder.mkdir()
    (outside / "inside").symlink_to(outside / "part")
    (outside / "part").mkdir()
    (outside / "secret").symlink_to(keys)
    (source / "data").symlink_to(outside)
    (source / "z").symlink_to(outside / "part")
    with pytest.raises(UsageError, match="links lead out of the source") as refused:
        copy_source(source, to, set(), CopyTerms(elsewhere=True, follow=("data",)))
    assert f": data/secret -> {keys}, z -> {outside}/part. " in str(refused.value)


def test_a_pattern_of_links_stays_in_its_folder(source: Path, to: Path) -> None:
    (source / "model" / "deep").mkdir(parents=True)
    (source / "model" / "x").symlink_to("/usr")
    (source / "model" / "deep" / "x").symlink_to("/etc")
    with pytest.raises(UsageError, match=r": model/deep/x -> /etc\. Nothing"):
        copy_source(source, to, set(), CopyTerms(follow=("model/*",)))


NO_SECRETS = (
    *(".env.example", "id_ed25519.pub", "cacert.pem", "environment.py", "tokenizer.json"),
    *("token", ".ssh/known_hosts", ".npmrc", "models/awsome.py", "credentials.py", ".venv/x.pem"),
)
SECRETS = (
    *(".env", "conf/.env.local", ".aws/credentials", ".ssh/id_work", "id_rsa", "deploy.pem"),
    *(".netrc", ".git-credentials", "credentials.json", ".huggingface/token", ".pypirc"),
    *(".kaggle/kaggle.json", "account.json"),
)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_secrets_that_leave_this_machine_are_a_doubt(
    source: Path, to: Path, tmp_path: Path, elsewhere: bool
) -> None:
    for name in (*NO_SECRETS, *SECRETS):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text('{"a": 1}')
    (source / "deploy.pem").write_text("-----BEGIN RSA PRIVATE KEY-----")
    (source / "account.json").write_text('{"private_key": "x"}')
    aws = tmp_path / ".aws"
    aws.mkdir()
    (aws / "config").touch()
    (source / "settings").symlink_to(aws)
    lines: list[str] = []
    copy_source(
        source, to, set(), CopyTerms(lines.append, elsewhere=elsewhere, follow=["settings"])
    )
    assert bool(lines) is elsewhere
    for line in lines:
        named = shlex.split(line.partition("printf ")[2].partition(" >> ")[0])[1:]
        assert sorted(named) == sorted(f"/{name}" for name in (*SECRETS, "settings/config"))
        assert line.endswith(f">> {source}/.seerdignore")


def test_a_copy_that_takes_too_long_ends_the_command(source: Path, to: Path) -> None:
    (source / "data").mkdir()
    for number in range(64):
        (source / "data" / f"{number}.bin").write_bytes(bytes(1 << 22))
    with pytest.raises(LimitsError) as refused:
        copy_source(source, to, set(), CopyTerms(most_s=0.02, deadline_s=18.0))
    text = str(refused.value)
    assert text.startswith("nothing was started: ")
    assert "of a deadline of 18s" in text
    assert "data/ (268MB in 64 files)" in text
    assert "--deadline" not in text
    assert f"printf '%s\\n' /data/ >> {source / '.seerdignore'}" in text


@pytest.mark.parametrize(("most_s", "told"), [(3.0, True), (9.0, False)])
def test_a_copy_that_takes_much_of_a_short_deadline_is_told_with_what_is_large(
    source: Path, to: Path, monkeypatch: pytest.MonkeyPatch, most_s: float, told: bool
) -> None:
    (source / "data").mkdir()
    for number in range(64):
        (source / "data" / f"{number}.bin").write_bytes(bytes(1 << 20))
    said: list[str] = []
    looks = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) / 115)
    copy_source(source, to, set(), CopyTerms(said.append, most_s=most_s, deadline_s=8.0))
    assert next(looks) / 115 < SLOW_S
    assert [("data/" in line, ".seerdignore" in line) for line in said[:1]] == [(True, True)] * told


@pytest.mark.parametrize(
    ("step_s", "told"),
    [
        (0.1, []),
        (0.3, ["copying the source: 33% of 300KB in 3 files in 2.1s.", "3.6s"]),
    ],
)
def test_a_copy_that_takes_long_is_told_once_and_its_end(
    to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float, told: list[str]
) -> None:
    data = tmp_path / "slow" / "data"
    data.mkdir(parents=True)
    for number in range(3):
        (data / str(number)).write_bytes(bytes(range(250)) * 400)
    said: list[str] = []
    looks = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) * step_s)
    copy_source(tmp_path / "slow", to, set(), CopyTerms(said.append, most_s=60.0, deadline_s=9.0))
    assert [line.partition(" The largest")[0] for line in said] == [
        *told[:1],
        *(f"the source was copied in {took}" for took in told[1:]),
    ]


def test_what_is_large_is_named_once_with_what_leaves_it_out(
    to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    for name in ("data", "data.bak"):
        (tmp_path / "made" / name).write_bytes(bytes(range(250)) * 400)
    said: list[str] = []
    looks = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) * 0.5)
    copy_source(tmp_path / "made", to, set(), CopyTerms(said.append, most_s=60.0, deadline_s=99.0))
    largest = said[0].partition("The largest: ")[2].partition(". To leave out")[0]
    assert largest in ("data (100KB), data.bak (100KB)", "data.bak (100KB), data (100KB)"), said
    command = said[0].partition("printf '%s\\n' ")[2].partition(" >> ")[0]
    assert sorted(command.split()) == ["/data", "/data.bak"]


def test_what_cannot_be_read_is_named(source: Path, to: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "half")
    (to.parent / "source").write_text("in the way")
    with pytest.raises(UsageError, match=f"source {source} cannot be copied: {to}: File exists"):
        copy_source(source, to, set())


def test_large_files_that_a_script_probably_writes_are_known(tmp_path: Path) -> None:
    sizes = {
        "train.py": 10,
        "data/old.bin": SMALL + 1,
        "data/new.bin": SMALL + 1,
        "out/best.pt": SMALL + 1,
        "out/small.pt": 10,
        "out/huge.pt": OUTPUT_BYTES + 1,
    }
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        os.utime(tmp_path / name, (100, 100))
    os.utime(tmp_path / "data" / "new.bin", (200, 200))
    assert outputs(tmp_path, "train.py") == ["data/new.bin"]
    (tmp_path / ".gitignore").write_text("*.pt\n")
    assert outputs(tmp_path, "train.py") == ["out/best.pt", "data/new.bin"]
    assert outputs(tmp_path, "bash") == ["out/best.pt"]
    (tmp_path / "out" / "best.pt").rename(tmp_path / "study.db")
    assert outputs(tmp_path, "bash") == ["study.db"]


BAD_LINES = ["!", "\\", "[z-a]"]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_of_seerdignore_that_is_no_pattern_is_named(
    source: Path, to: Path, line: str
) -> None:
    (source / ".seerdignore").write_text(f"*.log\n{line}\n")
    with pytest.raises(UsageError) as refused:
        copy_source(source, to, set())
    assert f"line 2 of {source}/.seerdignore, {line!r}, is no pattern" in str(refused.value)


def test_lines_of_a_gitignore_that_git_takes_for_nothing_are_nothing(tmp_path: Path) -> None:
    for name, size in {"train.py": 10, "a.pt": SMALL + 1, "c.bin": SMALL + 1}.items():
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (100, 100))
    lines = [b"*.pt", *map(str.encode, BAD_LINES), b"\xff*"]
    (tmp_path / ".gitignore").write_bytes(b"\n".join(lines))
    assert outputs(tmp_path, "train.py") == ["a.pt"]
