"""`python -m testbed.rig [--fast]`: a rig by hand, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import sys

from bench.testbed.rig import NoRigError, Rig

ENDING = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    try:
        rig = Rig.start(fast="--fast" in sys.argv[1:])
    except NoRigError as error:
        print(error, file=sys.stderr)
        return 1
    with rig:
        # Blocked before it may come, then waited for: `signal.pause` would miss one that comes just
        # before it.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        for name, value in rig.env.items():
            print(f"export {name}={shlex.quote(value)}")
        print(f"# image {rig.image}, or ssm:{rig.image_parameter}")
        print(f"# security group {rig.security_group}, store s3://{rig.bucket}")
        for zone, subnet in rig.subnets.items():
            print(f"# {zone} {subnet}")
        print(
            "# switches: curl -X POST "
            f"'{rig.endpoint}/rig/spot-notice?instance=i-...&seconds=120'; see "
            "testbed/rig/README.md",
            flush=True,
        )
        signal.sigwait(ENDING)
        print("# the rig ends", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
