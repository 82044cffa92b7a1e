"""What a command does beyond one call; cli.py declares commands and options."""
