"""A small convolutional network for 8 x 8 images of digits."""

from torch import nn


def build(width: int, dropout: float) -> nn.Module:
    """`width`: channels and hidden units."""
    return nn.Sequential(
        nn.Conv2d(1, width // 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width // 4 * 16, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, 10),
    )
