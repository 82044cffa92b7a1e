"""Two texts that every Python ships with, byte by byte: what `help()` says of the language, on
which the base is trained, and modules of the standard library, on which the adapters are.
"""

import math
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy

LENGTH = 64
"""Bytes that a model sees."""
MODULES = "[a-d]*.py"
SPLITS = {"train": (0.0, 0.85), "validate": (0.85, 0.925), "test": (0.925, 1.0)}


def prose() -> torch.Tensor:
    """Return the text of the base: bytes [n]."""
    return as_bytes("\n".join(topics[name] for name in sorted(topics)).encode())


def code(split: str) -> torch.Tensor:
    """Return a part of the text of the adapters: bytes [n]."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob(MODULES))
    text = as_bytes(b"\n".join(path.read_bytes() for path in paths))
    begin, end = (int(share * len(text)) for share in SPLITS[split])
    return text[begin:end]


def as_bytes(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def windows(text: torch.Tensor) -> torch.Tensor:
    """Cut a text into pieces of LENGTH + 1 that begin LENGTH apart [n, LENGTH + 1]."""
    return text.unfold(0, LENGTH + 1, LENGTH)


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Return the loss of a model in nats per byte of pieces of text."""
    scores = model(input_ids=text[:, :-1]).logits
    return cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())


@torch.no_grad()
def bits(model: nn.Module, text: torch.Tensor) -> float:
    """Return the bits per byte of pieces of text."""
    model.eval()
    losses = [loss_of(model, part).item() * len(part) for part in text.split(64)]
    model.train()
    return sum(losses) / len(text) / math.log(2)
