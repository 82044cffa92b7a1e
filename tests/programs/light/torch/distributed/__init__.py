"""As much of it as torchrun is."""
