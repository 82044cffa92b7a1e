"""A small U-Net (Ronneberger et al., 2015): down twice, up twice, with what was seen on the way."""

import torch
from data import CLASSES
from torch import nn
from torch.nn.functional import interpolate, max_pool2d


class UNet(nn.Module):
    """Pictures [n, 1, h, w] to scores [n, CLASSES, h, w]: `width` channels at full size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine = double(1, width)
        self.middle = double(width, 2 * width)
        self.coarse = double(2 * width, 4 * width)
        self.up_middle = double(6 * width, 2 * width)
        self.up_fine = double(3 * width, width)
        self.out = nn.Conv2d(width, CLASSES, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures to scores."""
        fine = self.fine(pictures)
        middle = self.middle(max_pool2d(fine, 2))
        coarse = self.coarse(max_pool2d(middle, 2))
        middle = self.up_middle(torch.cat([interpolate(coarse, scale_factor=2), middle], 1))
        return self.out(self.up_fine(torch.cat([interpolate(middle, scale_factor=2), fine], 1)))


def double(into: int, out: int) -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )


def overlap(scores: torch.Tensor, classes: torch.Tensor) -> float:
    """The mean over the shapes' classes of intersection over union, from 0 to 1."""
    told = scores.argmax(1)
    both = [((told == kind) & (classes == kind)).sum() for kind in range(1, CLASSES)]
    either = [((told == kind) | (classes == kind)).sum() for kind in range(1, CLASSES)]
    return (torch.stack(both) / torch.stack(either).clamp(min=1)).mean().item()
