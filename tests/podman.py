"""Podman for tests, with storage and settings of its own, and an image of this machine's Python and
shell: the same files at the same places, and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IMAGE = "localhost/seerd-test:1"
LEFT_OUT = {"site-packages", "test", "idlelib", "tkinter", "ensurepip", "__pycache__"}
# as root without the right to raise limits; runc also knows both kinds of cgroups at a time
SETTINGS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{top}/images"
runroot = "{top}/running"
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """Podman beside the machine's own. `env`: what makes a process use it."""

    env: dict[str, str]

    def call(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """How a command of Podman ends."""
        return subprocess.run(
            ["podman", *words],
            env={**os.environ, **self.env},
            input=data,
            capture_output=True,
            check=False,
        )

    def __call__(self, *words: str, data: bytes | None = None) -> str:
        """What a command of Podman prints."""
        done = self.call(*words, data=data)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


def _podman(top: Path) -> Podman:
    settings, storage = top / "containers.conf", top / "storage.conf"
    settings.write_text(SETTINGS.format(runtime="runc" if shutil.which("runc") else "crun"))
    storage.write_text(STORAGE.format(top=top))
    return Podman({"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)})


@contextlib.contextmanager
def podman_here() -> Iterator[Podman]:
    """A Podman that has the image."""
    with _folder() as top:
        podman = _podman(top)
        podman("import", "--change", "ENV MADE_BY=image", "-", IMAGE, data=_archive())
        try:
            yield podman
        finally:
            podman.call("rm", "--all", "--force", "--time", "0")


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for Podman's storage, which it mounts."""
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            lines = Path("/proc/self/mounts").read_text().splitlines()
            mounts = [line.split()[1] for line in lines if line.split()[1].startswith(name)]
            for mount in sorted(mounts, reverse=True):
                subprocess.run(["umount", "--lazy", mount], check=False)


def _archive() -> bytes:
    """A tar archive of the image's files."""
    python = Path(os.path.realpath(sys.executable))
    library = Path(os.__file__).parent
    modules = list(_modules(library))
    shell = Path("/bin/sh")
    binaries = [python, shell, *(path for path in modules if path.suffix == ".so")]
    files = {python, shell, *modules, *_libraries(binaries)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as archive:
        for path in sorted(files):
            archive.add(path, str(path).lstrip("/"))
        for name in ("python3", "sh"):  # on every PATH
            link = tarfile.TarInfo(f"usr/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, str(python if name == "python3" else shell)
            archive.addfile(link)
        for folder in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
    return out.getvalue()


def _modules(library: Path) -> Iterator[Path]:
    for top, folders, files in os.walk(library):
        folders[:] = set(folders) - LEFT_OUT
        yield from (Path(top, name) for name in files if not name.endswith(".a"))


def _libraries(binaries: list[Path]) -> set[Path]:
    """The shared libraries that these need."""
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    return {Path(path) for path in re.findall(r"(/[^\s:]+) \(0x", listed.stdout)}


def why_no_podman() -> str:
    """Why no container can run here; empty if one can."""
    if shutil.which("podman") is None:
        return "podman not found"
    if os.geteuid() != 0:
        return "only root may have what its image is made of"
    with _folder() as top:
        podman, root = _podman(top), top / "root"
        words = ["run", "--rm", "--network=host", "--pid=host", "--log-driver=none"]
        for folder in ("/usr", "/bin", "/lib", "/lib64"):
            (root / folder[1:]).mkdir(parents=True)
            words += ["--volume", f"{folder}:{folder}:ro"] if Path(folder).exists() else []
        done = podman.call(*words, "--rootfs", str(root), "/bin/true")
        return done.stderr.decode().strip().splitlines()[-1] if done.returncode else ""
