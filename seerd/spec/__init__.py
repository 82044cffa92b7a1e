"""What a person asks for: spec.toml and the command line, read strictly, each mistake named."""
