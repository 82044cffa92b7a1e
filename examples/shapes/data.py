"""Pictures of discs, squares and triangles, each kind a little brighter than the one before, on a
noisy ground, made from a seed, with the class of each pixel: 0 is the ground.
"""

import torch

SIZE = 32
CLASSES = 4
BRIGHT = torch.tensor([0.1, 0.4, 0.6, 0.8])
SPLITS = {"train": (0, 1024), "validate": (1, 96), "test": (2, 512)}
"""Seed and number of pictures."""


def shapes(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures [n, 1, SIZE, SIZE] and classes [n, SIZE, SIZE]."""
    seed, count = SPLITS[split]
    source = torch.Generator().manual_seed(seed)
    classes = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    light = BRIGHT + 0.2 * torch.rand(count, CLASSES, generator=source)
    for kind in torch.stack([torch.randperm(3, generator=source) for _ in range(count)]).T:
        put(classes, kind + 1, source)
    pictures = light.gather(1, classes.flatten(1)).view(count, SIZE, SIZE)
    noise = torch.randn(pictures.shape, generator=source) * 0.2
    return (pictures + noise).unsqueeze(1) - 0.5, classes


def put(classes: torch.Tensor, kind: torch.Tensor, source: torch.Generator) -> None:
    """One shape into each picture, over what is there."""
    count = len(kind)
    radius = 4 + 5 * torch.rand(count, 1, 1, generator=source)
    centre = 6 + (SIZE - 12) * torch.rand(2, count, 1, 1, generator=source)
    place = torch.arange(SIZE, dtype=torch.float32)
    down, right = place.view(1, -1, 1) - centre[0], place.view(1, 1, -1) - centre[1]
    disc = down**2 + right**2 < radius**2
    square = torch.maximum(down.abs(), right.abs()) < 0.8 * radius
    triangle = (down < 0.8 * radius) & (down > 2 * right.abs() - radius)
    inside = torch.stack([disc, square, triangle])[kind - 1, torch.arange(count)]
    classes[inside] = kind.view(-1, 1, 1).expand_as(classes)[inside]
