# Takes out of a machine what must not be in an image of it: host keys, authorised keys, the user of this build, logs, caches, the machine's
# identity, and what cloud-init remembers, so that the next boot runs its user data anew. Runs as root with bash, last: nobody can log in
# afterwards. Then it looks whether that is so.
set -uo pipefail
say() { echo "==> $*"; }

say "cleaning"
if command -v apt-get >/dev/null; then apt-get clean || true; fi
rm -rf /var/lib/apt/lists/* /root/.cache /root/.pip
rm -f /root/.bash_history /home/*/.bash_history /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
rm -f /etc/ssh/ssh_host_* /etc/sudoers.d/seerd

# With its home; --force since this program was begun by it.
if id -u seerd >/dev/null 2>&1; then userdel --force --remove seerd 2>/dev/null || true; fi

# User data is forgotten with all else: the hard end of this build would end every instance of the image a minute after its boot.
if command -v cloud-init >/dev/null; then cloud-init clean --logs || true; fi
rm -rf /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/data /var/lib/cloud/sem
if command -v journalctl >/dev/null; then journalctl --quiet --rotate --vacuum-time=1s || true; fi
find /var/log -type f -exec truncate --size 0 {} + 2>/dev/null
rm -rf /tmp/* /tmp/.[!.]* /var/tmp/* /var/tmp/.[!.]*
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id
sync

left=$(ls -d /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys /home/seerd /etc/sudoers.d/seerd /var/lib/cloud/instance \
  /var/lib/cloud/instances 2>/dev/null)
grep -q '^seerd:' /etc/passwd && left+=" the user seerd"
[ -s /etc/machine-id ] && left+=" /etc/machine-id"
if [ -n "$left" ]; then
  echo "clean: this would be in the image, and must not be: $left"
  exit 1
fi
