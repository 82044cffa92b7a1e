"""Machines over SSH: connecting, sending files, remote tasks, tunnels to agents."""
