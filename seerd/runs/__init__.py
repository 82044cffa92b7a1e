"""A run from its first file to its last: wired, begun, resumed, read."""
