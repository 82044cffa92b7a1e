"""Machines over SSH: strict host keys, a cause for every failure, sending files, running remote
tasks, and tunnels to agents.

The one rule: nothing here decides about a run or its trials; providers are built on it.
"""
