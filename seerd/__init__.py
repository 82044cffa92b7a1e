"""seerd."""
