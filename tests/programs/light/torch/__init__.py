"""As much of torch as torchrun is (`distributed/run.py`)."""
