"""Where instances come from: one adapter per kind of machine, behind `base.Provider`. Adapters know
neither the core nor each other.
"""
