"""The base: a small Llama made from a configuration, trained for a minute, and saved as
transformers saves every model. `python base.py` makes it; else the first trial of a machine does.
"""

import fcntl
import os
from pathlib import Path

import torch
from data import LENGTH, loss_of, prose, windows
from transformers import LlamaConfig, LlamaForCausalLM

BASE = Path(os.environ.get("BASE", Path.home() / ".cache" / "seerd-lora-base"))
STEPS = int(os.environ.get("BASE_STEPS", "300"))
SIZES = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
    bos_token_id=None,
    eos_token_id=None,
)


def ready() -> Path:
    """Return the folder of the base, made if it does not exist; other processes wait meanwhile."""
    BASE.parent.mkdir(parents=True, exist_ok=True)
    with BASE.with_name(f"{BASE.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not BASE.exists():
            part = BASE.with_name(f"{BASE.name}.part")
            made().save_pretrained(part)
            part.rename(BASE)
    return BASE


def made() -> LlamaForCausalLM:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(SIZES).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
        texts = windows(prose())
        for _ in range(STEPS):
            loss = loss_of(model, texts[torch.randint(len(texts), (16,))].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    print(ready())
