"""What trials use of torch on a GPU, on the fake one in the file FAKE_GPU."""

from torch import cuda

__all__ = ["cuda"]
__version__ = "fake"
