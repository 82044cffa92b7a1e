"""Machines over SSH: strict host keys, a cause for every failure, sending files, running remote
tasks, and tunnels to agents.

The one rule: nothing here knows of runs' trials or of providers; providers are built on it.
"""
