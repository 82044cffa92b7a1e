"""One folder for each way to get GPUs, behind `base.Provider`, with all that is its own.

Adapters know neither the core nor each other.
"""
