"""Fashion-MNIST as Debian's package dataset-fashion-mnist installs it, or from FASHION_MNIST, a
folder with the same four files.
"""

import gzip
import os
import sys
from pathlib import Path

import torch

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
SPLITS = {
    "train": ("train", slice(None, -5000)),
    "validate": ("train", slice(-5000, None)),
    "test": ("t10k", slice(None)),
}


def fashion(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [n, 1, 28, 28] as bytes, and their classes [n]."""
    name, part = SPLITS[split]
    images = read(f"{name}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
    labels = read(f"{name}-labels-idx1-ubyte.gz", 8)
    return images[part], labels[part].long()


def read(name: str, header: int) -> torch.Tensor:
    """The bytes of one file after its header."""
    if not (FOLDER / name).exists():
        sys.exit(
            f"{FOLDER / name} is not there: apt-get install dataset-fashion-mnist, or say where the"
            " four files of https://github.com/zalandoresearch/fashion-mnist are: FASHION_MNIST=DIR"
        )
    with gzip.open(FOLDER / name) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def as_input(images: torch.Tensor) -> torch.Tensor:
    """Bytes to numbers around 0."""
    return (images.float() / 255 - 0.286) / 0.353
