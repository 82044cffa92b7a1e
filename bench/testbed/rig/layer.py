"""The image that all instances of a rig boot: this machine's programs, and little else of it.

The one rule: what an instance sees of this machine is /usr, /etc and the tests' Python; homes,
temporary files and the project are not there, and nothing that an instance writes comes back.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "image"
SHOWN = {"bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr", "var"}
HIDDEN = (
    *("var/tmp", "var/log", "var/mail", "var/lib/cloud", "var/cache", "var/lib/apt/lists"),
    *("etc/cron.d", "etc/ssh"),
)
PROGRAMS = {
    "usr/local/lib/rig/boot": "boot",
    "usr/local/lib/rig/init": "init",
    "usr/local/lib/rig/cloud-init": "cloud-init",
    "usr/local/lib/rig/cuda.py": "cuda.py",
    "usr/local/bin/gpu-python": "gpu-python",
    "opt/pytorch/bin/python": "gpu-python",
    "usr/sbin/shutdown": "shutdown",
    "usr/sbin/poweroff": "poweroff",
    "usr/sbin/halt": "poweroff",
    "usr/bin/systemctl": "systemctl",
    "usr/bin/systemd-run": "systemd-run",
    "usr/sbin/service": "service",
    "usr/bin/nvidia-smi": "nvidia-smi",
}
"""Where each is on a real machine: boot scripts and sudoers name them by their full path."""
SSHD = """\
Include /etc/ssh/sshd_config.d/*.conf
UsePAM yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
"""
DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}


def make_layer(at: Path) -> list[str]:
    """Write the image's own files to this folder, which must not be on the root file system; the
    paths to bind into each instance, read-only.
    """
    at.mkdir(parents=True)
    at.chmod(0o755)
    _hide_the_host(at)
    _devices(at / "dev")
    for place, name in PROGRAMS.items():
        target = at / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((SOURCE / name).read_text().replace("@PYTHON@", sys.executable))
        target.chmod(0o755)
    _python(at / "usr/local/bin")
    _settings(at)
    shown = _shown_paths()
    for path in shown:
        _reach(at, Path(path))
    return shown


def _hide_the_host(at: Path) -> None:
    for entry in Path("/").iterdir():
        if entry.is_symlink() or entry.name in SHOWN:
            continue
        if entry.is_dir():
            _empty(at / entry.name)
        else:
            _without(at / entry.name)
    for name in HIDDEN:
        if (Path("/") / name).is_dir() and not (Path("/") / name).is_symlink():
            _empty(at / name)
    for name in ("tmp", "var/tmp"):
        (at / name).mkdir(parents=True, exist_ok=True)
        (at / name).chmod(0o1777)
    for name in (
        "proc",
        "sys",
        "run",
        "root",
        "dev/pts",
        "dev/shm",
        "var/log",
        "etc/ssh/sshd_config.d",
        "etc/sudoers.d",
    ):
        (at / name).mkdir(parents=True, exist_ok=True)


def _without(path: Path) -> None:
    """A name that the layers below do not give (Documentation/filesystems/overlayfs.rst)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def _empty(folder: Path) -> None:
    """A folder whose contents in the layers below are not seen
    (Documentation/filesystems/overlayfs.rst).
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    os.setxattr(folder, "trusted.overlay.opaque", b"y")


def _devices(dev: Path) -> None:
    for name, numbers in DEVICES.items():
        os.mknod(dev / name, stat.S_IFCHR, os.makedev(*numbers))
        (dev / name).chmod(0o666)
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")


def _python(folder: Path) -> None:
    for name, words in {
        "python3": "",
        "python": "",
        "torchrun": " -m torch.distributed.run",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (folder / name).chmod(0o755)


def _settings(at: Path) -> None:
    (at / "etc/ssh/sshd_config").write_text(SSHD)
    moduli = Path("/etc/ssh/moduli")
    if moduli.exists():
        shutil.copy(moduli, at / "etc/ssh/moduli")
    (at / "etc/resolv.conf").write_text("")
    (at / "etc/motd").write_text("")
    (at / "etc/bash.bashrc").write_text("")
    (at / "etc/profile").write_text(
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    )


def _shown_paths() -> list[str]:
    """The folders of the running interpreter, where they would be hidden otherwise."""
    wanted = dict.fromkeys([sys.prefix, sys.base_prefix, str(Path(sys.base_prefix).resolve())])
    return [path for path in wanted if Path(path).parts[1] not in SHOWN]


def _reach(at: Path, path: Path) -> None:
    """An empty folder for a mount, and parents that every user may pass through."""
    folder = at
    for part in path.parts[1:]:
        folder = folder / part
        folder.mkdir(exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & 0o055 != 0o055:
            folder.chmod(0o755)
