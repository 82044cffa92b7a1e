"""Which version of seerd this is. pyproject.toml takes it from here."""

VERSION = "0.1.0"
