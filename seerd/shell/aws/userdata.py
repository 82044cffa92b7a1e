"""The one script that an instance runs at its first boot (cloud-init user data).

The one rule: the power-off at the run's hard end is scheduled before anything else, so that the
instance ends whatever fails later. An instance without an agent ends earlier, after the orphan
timeout, since only its coordinator could end it before. The only secret in the script is the host
key, and the script is the same for every try of one launch: EC2 refuses a repeated launch that
differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LIMIT = 16 * 1024
"""The most bytes of user data that EC2 takes
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html).
"""

ORPHAN_TIMEOUT_S = 600
"""An instance on which no agent has run for this many seconds powers itself off: longer than an
agent may take to get there.
"""
LOOK_S = 10
FIRMWARE_S = 15
"""Seconds for which an instance may be billed before its kernel counts time."""

USER = "seerd"
"""The user who may log in."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What the script of an instance depends on.

    run               the run
    hard_end          when the instance powers off, wall clock, seconds since 1970
    host_private      its private host key, as OpenSSH writes it
    host_public       its public host key, as OpenSSH writes it
    authorised        the public key that may log in, as OpenSSH writes it
    root              whether the user may become root: on instances of which an image is made
    orphan_timeout_s  seconds for which it may be billed until it has its first agent, at most
                      `ORPHAN_TIMEOUT_S`; None: that long
    """

    run: str
    hard_end: float
    host_private: str
    host_public: str
    authorised: str
    root: bool = False
    orphan_timeout_s: float | None = None


def script(boot: Boot) -> str:
    """Make the script, with LF line ends.

    Raises `ValueError` if a value could break out of its place, or the script is too long for EC2.
    """
    for text in (boot.run, boot.host_public, boot.authorised):
        if not text.isprintable() or "'" in text:
            raise ValueError(
                "a run's name and public keys are single lines of printable text without quotes"
            )
    if any("SEERD_HOST_KEY" in line for line in boot.host_private.splitlines()):
        raise ValueError("this is no private key")
    text = _SCRIPT.format(
        run=boot.run,
        hard_end=math.floor(boot.hard_end),
        host_private=boot.host_private.strip(),
        host_public=boot.host_public.strip(),
        authorised=boot.authorised.strip(),
        user=USER,
        may=_ROOT if boot.root else _POWER,
        watch=""
        if boot.root
        else _WATCH.format(first=_first_s(boot), alone=ORPHAN_TIMEOUT_S, look=LOOK_S),
        begin="" if boot.root else _BEGIN,
    )
    if len(text.encode()) > LIMIT:
        raise ValueError(f"the boot script has {len(text.encode())} bytes, and EC2 takes {LIMIT}")
    return text


def _first_s(boot: Boot) -> int:
    """Compute how many seconds the script waits for the first agent."""
    if boot.orphan_timeout_s is None:
        return ORPHAN_TIMEOUT_S
    return min(ORPHAN_TIMEOUT_S, max(LOOK_S, math.floor(boot.orphan_timeout_s) - FIRMWARE_S))


_POWER = (
    '/sbin/shutdown -h now, /usr/sbin/shutdown -h now, /sbin/poweroff "", /usr/sbin/poweroff ""'
)
_ROOT = "ALL"

_WATCH = """\
cat > /var/lib/cloud/scripts/seerd-deserted << 'SEERD_DESERTED'
#!/bin/sh
# Without a coordinator nobody starts an agent, and without an agent nobody is worked for.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
most={first}
alone=$(cut -d. -f1 /proc/uptime)
while [ $(( alone + {look} )) -le "$most" ]; do
    sleep {look}
    # The second name is that of an agent of an older seerd, whose run was resumed by this one.
    if grep -aqsx 'seerd-agent' /proc/[0-9]*/comm ||
        grep -aqs '[a]gent[.]pyz' /proc/[0-9]*/cmdline; then
        touch /var/lib/cloud/scripts/seerd-worked
        most={alone} alone=0
    else
        alone=$(( alone + {look} ))
    fi
done
shutdown -P now
SEERD_DESERTED
"""
_BEGIN = """\
# Once it has worked, a reboot ends it: its trials are gone, the run takes it for lost, and whoever
# ends it now may not be there.
[ ! -e /var/lib/cloud/scripts/seerd-worked ] || shutdown -P now
systemd-run --unit=seerd-deserted /bin/sh /var/lib/cloud/scripts/seerd-deserted ||
    setsid /bin/sh /var/lib/cloud/scripts/seerd-deserted > /dev/null 2>&1 < /dev/null &
"""

_SCRIPT = """\
#!/bin/sh
# seerd, run {run}: what this instance does at its first boot. Nothing here is secret but the host
# key.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# 1. Whatever happens, this instance ends at {hard_end} (seconds since 1970), and a power-off
#    terminates it; also if it is rebooted, since cloud-init runs what is in scripts/per-boot at
#    each boot. A timer is tried first: `shutdown` refuses all logins in its last five minutes.
mkdir -p /var/lib/cloud/scripts/per-boot
{watch}cat > /var/lib/cloud/scripts/per-boot/seerd-hard-end << 'SEERD_HARD_END'
#!/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
left=$(( {hard_end} - $(date +%s) ))
[ "$left" -ge 60 ] || left=60
systemd-run --unit=seerd-hard-end --on-active="$left" --timer-property=AccuracySec=1s \\
    "$(command -v shutdown)" -P now ||
    shutdown -P "+$(( left / 60 ))"
{begin}SEERD_HARD_END
chmod 755 /var/lib/cloud/scripts/per-boot/seerd-hard-end
/var/lib/cloud/scripts/per-boot/seerd-hard-end

# 2. One user with the one key of this run, and what it may do as root: power off, or all there is
# to do where an image is made.
umask 022
useradd --create-home --shell /bin/bash --password '*' {user} || usermod --password '*' {user}
mkdir -p /etc/sudoers.d
umask 077
home=~{user}
mkdir -p "$home/.ssh"
printf '%s\\n' '{authorised}' > "$home/.ssh/authorized_keys"
chown -R {user}: "$home/.ssh"
chmod -R go= "$home/.ssh"
printf '%s\\n' '{user} ALL=(root) NOPASSWD: {may}' > /etc/sudoers.d/seerd
chmod 440 /etc/sudoers.d/seerd
restorecon -R /etc/sudoers.d "$home/.ssh" 2> /dev/null || true

# 3. The host key that the coordinator expects: it never trusts a key on first use. The sshd that
# runs already shows it from here on, so whom it
#    may let in has to be there before: a login that is denied is not tried again for seconds.
rm -f /etc/ssh/ssh_host_*
cat > /etc/ssh/ssh_host_ed25519_key <<'SEERD_HOST_KEY'
{host_private}
SEERD_HOST_KEY
printf '%s\\n' '{host_public}' > /etc/ssh/ssh_host_ed25519_key.pub
restorecon -R /etc/ssh 2> /dev/null || true

# 4. Last, since from here on it takes logins.
systemctl restart ssh || systemctl restart sshd || service ssh restart || service sshd restart
"""
