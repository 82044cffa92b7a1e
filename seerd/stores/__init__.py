"""Where checkpoints are kept: one adapter per kind of store, behind `base.Store`. Adapters know
neither the core nor each other.
"""
