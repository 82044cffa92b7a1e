"""Random states of python, numpy, torch and this rank's CUDA device."""

import random
import sys
from typing import Any, Dict


def seed_all(torch: Any, seed: int) -> None:
    """Seed python, numpy (if the script has imported it) and torch."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)


def states(torch: Any) -> Dict[str, Any]:
    """Return the present states in plain values and tensors, which can be loaded safely."""
    version, words, gauss = random.getstate()
    result: Dict[str, Any] = {"python": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        result["numpy"] = [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]
    if torch is not None:
        result["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            result["cuda"] = torch.cuda.get_rng_state()
    return result


def restore(torch: Any, saved: Dict[str, Any]) -> None:
    """Set the states that `states` returned."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in saved and "numpy" in sys.modules:
        kind, keys, *rest = saved["numpy"]
        numpy = sys.modules["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), *rest))
    if torch is not None and "torch" in saved:
        torch.set_rng_state(saved["torch"])
        if "cuda" in saved and torch.cuda.is_available():
            torch.cuda.set_rng_state(saved["cuda"])
