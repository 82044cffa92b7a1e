"""Pure maths: search policies, search spaces, plans. Imports nothing of seerd or agent, reads no clock, does no I/O."""
