"""A run as its user asks for it: spec.toml and the command line, read strictly."""
