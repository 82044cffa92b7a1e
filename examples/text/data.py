"""The text that every Python ships with: what `help()` says of the language, letter by letter."""

from pydoc_data.topics import topics

import torch

TEXT = "\n".join(topics[name] for name in sorted(topics))
LETTERS = sorted(set(TEXT))
SPLITS = {"train": (0.0, 0.85), "validate": (0.85, 0.925), "test": (0.925, 1.0)}


def letters(split: str) -> torch.Tensor:
    """A part of the text, as indices into `LETTERS` [n]."""
    begin, end = (int(share * len(TEXT)) for share in SPLITS[split])
    index = {letter: at for at, letter in enumerate(LETTERS)}
    return torch.tensor([index[letter] for letter in TEXT[begin:end]])


def windows(text: torch.Tensor, length: int) -> torch.Tensor:
    """Pieces of length + 1 that begin `length` apart [n, length + 1]: each letter is told once."""
    return text.unfold(0, length + 1, length)
