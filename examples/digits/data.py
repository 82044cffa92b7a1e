"""Handwritten digits (scikit-learn's bundled data set), split once and for all: train, validate,
test.
"""

import torch
from sklearn.datasets import load_digits

SPLITS = {"train": slice(0, 1100), "validate": slice(1100, 1450), "test": slice(1450, 1797)}


def digits(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [n, 1, 8, 8] from 0 to 1, and their classes [n]."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[SPLITS[split]]
    return images[order], torch.tensor(bunch.target)[order]
