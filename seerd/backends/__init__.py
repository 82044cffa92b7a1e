"""One folder for each way to get GPUs, with everything of its own, behind `base.Provider`. Adapters
know neither the core nor each other.
"""
