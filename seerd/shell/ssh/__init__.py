"""Machines over SSH: strict host keys, a cause for every failure, what is pushed, tunnels to
agents.

The one rule: it knows no run and no trial; providers are made of it.
"""
