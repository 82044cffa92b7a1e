"""A small transformer that tells the next letter from those before it."""

from typing import Any

import torch
from torch import nn

LENGTH = 64
"""Letters that it sees."""


class Teller(nn.Module):
    """Letters [n, length] to scores of the next ones [n, length, letters]."""

    def __init__(self, letters: int, embedding: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, embedding)
        self.place = nn.Embedding(LENGTH, embedding)
        layer = nn.TransformerEncoderLayer(
            embedding, 4, 4 * embedding, dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(embedding)
        self.out = nn.Linear(embedding, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Letters to scores."""
        length = text.shape[1]
        later = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        x = self.letter(text) + self.place.weight[:length]
        return self.out(self.norm(self.layers(x, mask=later, is_causal=True)))


def build(letters: int, config: dict[str, Any]) -> nn.Module:
    """What a configuration says."""
    return Teller(letters, config["embedding"], config["layers"], config["dropout"])
