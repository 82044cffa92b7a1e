"""The GPU, as scripts of `bench/gpu.py` use it: in their folder this file is `device.py`."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

BACKEND = "nccl"
CLASSES, IMAGES, BATCH = 10, 30_000, 256


def use() -> None:
    """Make a context on the device."""
    torch.zeros(1, device="cuda").item()


def hold(mib: int) -> torch.Tensor:
    """Return so much memory of the device. Raises `torch.OutOfMemoryError`."""
    return torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")


def hang() -> None:
    """Wait inside a kernel that never ends."""
    torch.cuda._sleep(1 << 62)  # noqa: SLF001
    torch.cuda.synchronize()


class State:
    """A state of so many MiB on the device, with a number that can be read in its file."""

    def __init__(self, mib: int) -> None:
        self.mark = 0
        self._tensor = torch.zeros(mib << 18, device="cuda")

    def state_dict(self) -> dict[str, object]:
        return {"mark": f"mark-{self.mark}.", "tensor": self._tensor}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.mark = int(str(state["mark"])[5:-1])
        self._tensor.copy_(state["tensor"])


class Network:
    """A residual network of 8 to 64 channels, and images to classify that are drawn on the device:
    as many, and as large, as half of Fashion-MNIST.
    """

    def __init__(self, lr: float) -> None:
        torch.manual_seed(0)
        self._labels = torch.randint(0, CLASSES, (IMAGES,), device="cuda")
        self._images = torch.randn(IMAGES, 1, 28, 28, device="cuda")
        self._images += self._labels[:, None, None, None] / CLASSES
        blocks: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1)]
        for width in (8, 16, 32, 64):
            blocks += [Block(width), nn.Conv2d(width, min(64, 2 * width), 3, 2, padding=1)]
        self._model = nn.Sequential(
            *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
        ).to("cuda")
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=lr, momentum=0.9)

    def tracked(self) -> dict[str, object]:
        return {"model": self._model, "optimizer": self._optimizer}

    def epoch(self) -> float:
        """Train for a pass; return the accuracy on images that are not trained on."""
        train = IMAGES - 10 * BATCH
        for at in range(0, train, BATCH):
            with torch.autocast("cuda", torch.bfloat16):
                scores = self._model(self._images[at : at + BATCH])
                loss = cross_entropy(scores, self._labels[at : at + BATCH])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        with torch.no_grad():
            right = self._model(self._images[train:]).argmax(1) == self._labels[train:]
        return right.float().mean().item()


class Block(nn.Module):
    """Two convolutions that are added to what they are given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))
