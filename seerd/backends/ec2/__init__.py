"""Instances of EC2: launched, watched, ended."""
