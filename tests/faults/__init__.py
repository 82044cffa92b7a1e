"""The fault world: the real daemon on a virtual-time event loop, among a cloud, agents, a store and
a disk that go wrong, from one seed.

See README.md for what is real in it and what is not.
"""
