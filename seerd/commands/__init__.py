"""What commands do; cli.py declares the commands and their options."""
