"""Machines over SSH: strict host keys, a cause for every failure, sending files, remote tasks, and
tunnels to agents. Nothing here decides about a run or its trials.
"""
