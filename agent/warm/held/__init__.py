"""Comes first on the module path of an attempt on a part of a GPU."""
