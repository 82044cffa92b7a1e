"""What is overwritten in what an attempt leaves."""

from __future__ import annotations

from pathlib import Path

from seerd.agent.secrecy import mask_files


def test_secrets_are_overwritten_in_all_files_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "rank").mkdir()
    log, empty = tmp_path / "rank" / "log", tmp_path / "empty"
    empty.touch()
    log.write_text("key=secret-1 secret-1secret-12, no secret\n")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    mask_files(tmp_path, ["secret-1", "secret-12", "no"])
    assert log.read_text() == "key=******** *****************, no secret\n"
    assert empty.read_bytes() == b""
