"""This machine: agents in the folder of the run."""
