"""A small residual network (He et al., 2015) for 28 x 28 images: three stages of one block."""

import torch
from torch import nn
from torch.nn.functional import relu

WIDTHS = (8, 16, 32)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        straight = into == out and stride == 1
        self.shortcut = nn.Identity() if straight else nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, into, h, w] to [n, out, h / stride, w / stride]."""
        inner = self.second_norm(self.second(relu(self.first_norm(self.first(x)))))
        return relu(inner + self.shortcut(x))


def build() -> nn.Module:
    """Images [n, 1, 28, 28] to scores [n, 10]."""
    first, second, third = WIDTHS
    return nn.Sequential(
        nn.Conv2d(1, first, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        Block(first, first, 1),
        Block(first, second, 2),
        Block(second, third, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(third, 10),
    )
