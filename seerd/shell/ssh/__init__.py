"""Machines over SSH: strict host keys, connections with a cause for every failure, what is pushed, tunnels to agents. Knows no run and no trial."""
