"""Adapters on a frozen base."""

from typing import Any

import torch
from accelerate import init_empty_weights
from base import ready
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

TARGETS = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
    "all": "all-linear",
}
"""Layers of the base that get an adapter."""


def mapped_base() -> nn.Module:
    """Return the base, whose weights are the file's pages: on a CPU all trials of a machine share
    them in memory, and a GPU is sent them from there.
    """
    folder = ready()
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
    return model


def adapted(config: dict[str, Any]) -> nn.Module:
    """Return the base with new adapters, the only weights that are trained."""
    lora = LoraConfig(
        r=config["rank"],
        lora_alpha=config["alpha"],
        target_modules=TARGETS[config["targets"]],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(mapped_base(), lora)


class Adapter:
    """The adapters of a model: all that a checkpoint has of it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the adapters' weights."""
        return get_peft_model_state_dict(self.model)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Put these weights into the model."""
        set_peft_model_state_dict(self.model, state)
