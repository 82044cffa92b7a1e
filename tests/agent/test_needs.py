"""What a script imports, by its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from seerd.agent.needs import imports_of, needs_torch


@pytest.mark.parametrize(
    ("launcher", "text", "needs"),
    [
        ("torchrun", "", True),
        ("command", "import torch", False),
        ("python", "import torch.nn as nn", True),
        ("python", "from torchvision.models import resnet18", True),
        ("python", "import numpy, lightning", True),
        ("python", "import torchless", False),
        ("python", "def late():\n    import torch", False),
        ("python", "from .torch import x", False),
        ("python", "import (", False),
    ],
)
def test_torch_is_needed_where_it_is_imported_in_any_case(
    tmp_path: Path, launcher: str, text: str, needs: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    assert needs_torch(launcher, tmp_path / "train.py") is needs


def test_files_beside_the_script_are_read_too_once_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json\nimport model\nfrom data.sets import x\n")
    (tmp_path / "model.py").write_text("import train\nfrom torch import nn\n")
    (tmp_path / "unused.py").write_text("import accelerate\n")
    assert imports_of(tmp_path / "train.py") == [
        *("json", "data.sets", "data.sets.x", "torch", "torch.nn")
    ]
    assert needs_torch("python", tmp_path / "train.py")
    assert imports_of(tmp_path / "missing.py") == []
