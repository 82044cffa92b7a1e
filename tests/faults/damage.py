"""What happens to files of journals while nobody has them open.

The one rule: nothing here knows what is in them.
"""

from __future__ import annotations

import random
from pathlib import Path


def flip_a_bit(path: Path, dice: random.Random) -> None:
    """Change one bit of the file, if it has any."""
    data = bytearray(path.read_bytes())
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
