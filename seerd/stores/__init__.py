"""Where checkpoints are kept: one adapter per kind of store, behind `base.Store`."""
