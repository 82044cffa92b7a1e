"""What an instance does at its boots (cloud-init user data). The power-off at the run's hard end is
scheduled first, so that the instance ends whatever fails later. So it is a boothook: cloud-init
runs these at every boot, once there is a network and before services and logins, while a plain
script waits for all of `multi-user.target`, and for ever if a unit hangs
(docs.cloud-init.io/en/latest/explanation/boot.html, /explanation/format.html;
github.com/canonical/cloud-init/issues/3946). User and host key follow in a cloud-config, which is
applied before sshd begins.

The only secret is the host key. The user data is the same for every try of one launch: EC2 refuses
a repeated launch that differs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import PurePosixPath

from seerd.agent.letting_go import END_IN, ON_SCRATCH

LIMIT = 16 * 1024
"""The most bytes of user data that EC2 takes
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html).
"""

# an instance without an agent for so many seconds powers itself off, since only its coordinator
# could end it before its hard end; longer than an agent may take to get there
ORPHAN_TIMEOUT_S = 600
LOOK_S = 10
FIRMWARE_S = 15  # seconds for which an instance may be billed before its kernel counts time

USER = "seerd"  # the user that may log in
POWER = (
    "/sbin/shutdown -h now",
    "/usr/sbin/shutdown -h now",
    '/sbin/poweroff ""',
    '/usr/sbin/poweroff ""',
)
"""What the user may do as root."""
TIMER, WATCH = "seerd-hard-end", "seerd-deserted"
"""The units that end the instance: at the hard end, and when it has no agent."""
WORKED = "/var/lib/cloud/scripts/seerd-worked"
"""The file that exists once an agent has run: a reboot then ends the instance."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What the user data of an instance depends on."""

    run: str
    hard_end: float  # when the instance powers off, wall clock, seconds since 1970
    host_private: str  # its private host key, as OpenSSH writes it
    host_public: str  # its public host key, as OpenSSH writes it
    authorised: str  # the public key that may log in, as OpenSSH writes it
    root: bool = False  # whether the user may become root: on instances of which an image is made
    # seconds for which it may be billed until it has its first agent; None: `ORPHAN_TIMEOUT_S`
    orphan_timeout_s: float | None = None
    python: str = ""  # the interpreter whose torch is read at the first boot; empty: none
    containers: bool = False  # whether the user may use Docker, and so become root
    scratch: str = ""  # where a disk will be mounted, for the user's home; empty: nowhere
    keep_s: float = 0.0  # seconds for which it may wait for another run; 0: it never does


def user_data(boot: Boot) -> str:
    """Return the user data. Raises `ValueError` for unsafe values, or if it is too long."""
    for text in (boot.run, boot.host_public, boot.authorised, boot.scratch):
        if not _is_plain(text):
            raise ValueError(
                "a run's name, folders and public keys are single lines of printable text without "
                "quotes"
            )
    # Named here, since a boundary by chance would make a repeated launch another one.
    message = MIMEMultipart(boundary="=======seerd=======")
    message.attach(MIMEText(boothook(boot), "cloud-boothook", "us-ascii"))
    message.attach(MIMEText(cloud_config(boot), "cloud-config", "us-ascii"))
    text = message.as_string()
    if len(text.encode()) > LIMIT:
        raise ValueError(f"the user data has {len(text.encode())} bytes, and EC2 takes {LIMIT}")
    return text


def boothook(boot: Boot) -> str:
    """Return the script of every boot, before anything else."""
    first_s = ORPHAN_TIMEOUT_S
    if boot.orphan_timeout_s is not None:
        first_s = max(LOOK_S, math.floor(boot.orphan_timeout_s) - FIRMWARE_S)
    # Its own timer ends an instance that waits for another run.
    alone_s = max(ORPHAN_TIMEOUT_S, math.ceil(boot.keep_s) + 2 * LOOK_S)
    # A run may be over before its agent was seen.
    moved = " || rm /run/seerd-moved 2> /dev/null" if boot.keep_s else ""
    scratch = _SCRATCH.format(user=USER, at=boot.scratch, home=ON_SCRATCH)
    watch = _WATCH.format(first=first_s, alone=alone_s, look=LOOK_S, moved=moved)
    # A relative one is in a folder that is not there yet.
    reads = boot.python.startswith("/") and _is_plain(boot.python) and not boot.root
    return _BOOTHOOK.format(
        run=boot.run,
        hard_end=math.floor(boot.hard_end),
        watch="" if boot.root else watch,
        scratch=scratch if boot.scratch else "",
        end_in=_END_IN.format(script=END_IN) if boot.keep_s else "",
        read=_READ.format(prefix=str(PurePosixPath(boot.python).parent.parent)) if reads else "",
    )


def cloud_config(boot: Boot) -> str:
    """Return the user that may log in, its rights as root, and the host key: the coordinator never
    trusts a key on first use. The image's usual user stays, for a key pair of the person's own. The
    password is `*` and the account not locked: without PAM, sshd refuses locked ones.
    """
    user = {
        "name": USER,
        "shell": "/bin/bash",
        "lock_passwd": False,
        "passwd": "*",
        "ssh_authorized_keys": [boot.authorised.strip()],
    }
    if boot.containers:
        user["groups"] = ["docker"]  # made if the image has none
    may_do = (*POWER, *([f"/bin/sh {END_IN} [0-9]*"] if boot.keep_s else []))
    may = {
        "path": "/etc/sudoers.d/seerd",
        "permissions": "0440",
        "content": f"{USER} ALL=(root) NOPASSWD: {'ALL' if boot.root else ', '.join(may_do)}\n",
    }
    config = {
        "users": ["default", user],
        "write_files": [may],
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": boot.host_private.strip() + "\n",
            "ed25519_public": boot.host_public.strip(),
        },
    }
    return f"#cloud-config\n{json.dumps(config, indent=1)}\n"


def _is_plain(text: str) -> bool:
    """Return whether text can stand between single quotes in a line of a script."""
    return text.isprintable() and text.isascii() and "'" not in text


_BOOTHOOK = """\
#cloud-boothook
#!/bin/sh
# seerd, run {run}: what this instance does first, at every boot.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Whatever happens, this instance ends at {hard_end} (seconds since 1970), and a power-off
# terminates it. Nothing here waits for the rest of the boot, which waits for this: a unit has by
# default to wait for sysinit.target, and systemd-run for the unit.
begin() {{
    systemd-run --no-block --property=DefaultDependencies=no "$@"
}}
left=$(( {hard_end} - $(date +%s) ))
[ "$left" -ge 60 ] || left=60
begin --unit=seerd-hard-end --on-active="$left" --timer-property=AccuracySec=1s \\
    --timer-property=DefaultDependencies=no "$(command -v shutdown)" -P now || {{
    setsid /bin/sh -c "sleep $left; shutdown -P now" > /dev/null 2>&1 < /dev/null &
}}
{end_in}{watch}{scratch}{read}"""

_END_IN = """\

# An instance may wait for another run, and then work for that: its hard end is moved. The new timer
# runs before the old ones are stopped.
cat > {script} << 'SEERD_END_IN'
#!/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
case "$1" in '' | *[!0-9]* | ????????*) exit 2 ;; esac
[ "$1" -le 2678400 ] || exit 2
unit="seerd-end-$(date +%s)-$$"
systemd-run --unit="$unit" --on-active="$1" --timer-property=AccuracySec=1s \\
    "$(command -v shutdown)" -P now || exit 1
systemctl --quiet is-active "$unit.timer" > /dev/null || exit 1
for old in seerd-hard-end $(cat /run/seerd-ends 2> /dev/null); do
    systemctl stop "$old.timer" 2> /dev/null
done
echo "$unit" > /run/seerd-ends
touch /run/seerd-moved
echo "ends in $1"
SEERD_END_IN
"""

_WATCH = """\

# Once it has worked, a reboot ends it: its trials are gone, the run takes it for lost, and whoever
# ends it now may not be there.
[ ! -e /var/lib/cloud/scripts/seerd-worked ] || shutdown -P now

# Without a coordinator nobody starts an agent, and without an agent nobody is worked for.
cat > /run/seerd-deserted << 'SEERD_DESERTED'
#!/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
most={first}
alone=$(cut -d. -f1 /proc/uptime)
while [ $(( alone + {look} )) -le "$most" ]; do
    sleep {look}
    if grep -aqsx 'seerd-agent' /proc/[0-9]*/comm{moved}; then
        mkdir -p /var/lib/cloud/scripts
        touch /var/lib/cloud/scripts/seerd-worked
        most={alone} alone=0
    else
        alone=$(( alone + {look} ))
    fi
done
shutdown -P now
SEERD_DESERTED
begin --unit=seerd-deserted /bin/sh /run/seerd-deserted || {{
    setsid /bin/sh /run/seerd-deserted > /dev/null 2>&1 < /dev/null &
}}
"""

_SCRATCH = """\

# The agent's home on a fast disk: an image mounts it at some time of the boot, and its top may be
# root's alone.
cat > /run/seerd-scratch << 'SEERD_SCRATCH'
#!/bin/sh
until mountpoint -q '{at}' && install -d -m 700 -o {user} '{at}/{home}'; do sleep 1; done
SEERD_SCRATCH
begin --unit=seerd-scratch /bin/sh /run/seerd-scratch || {{
    setsid /bin/sh /run/seerd-scratch > /dev/null 2>&1 < /dev/null &
}}
"""

_READ = """\

# The libraries of torch, many parts at once: a new disk fetches each block from S3 when it is first
# read, and import torch reads one after the other.
cat > /run/seerd-read << 'SEERD_READ'
import concurrent.futures, glob, os
PART, MOST = 4 << 20, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
def read(part):
    file, at = part
    with open(file, "rb", buffering=0) as opened:
        opened.seek(at)
        opened.read(PART)
found = []
for place in ("torch", "torch/lib", "nvidia/*/lib"):
    found += glob.glob(os.path.join('{prefix}', "lib*/python3*/*-packages", place, "*.so*"))
parts = [(file, at) for file in found for at in range(0, os.path.getsize(file), PART)]
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(len(found), sum(1 for _ in pool.map(read, parts[: MOST // PART])))
SEERD_READ
begin --unit=seerd-read python3 /run/seerd-read || {{
    setsid python3 /run/seerd-read > /dev/null 2>&1 < /dev/null &
}}
"""
