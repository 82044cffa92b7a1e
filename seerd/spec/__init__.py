"""What a person asks for: spec.toml and the command line, read strictly; every mistake is named."""
