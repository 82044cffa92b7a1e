"""Machines that people have, over SSH."""
