"""Plan searches: pure maths that imports nothing of seerd or agent, reads no clock, does no I/O.

`policies` has all policies by their names, `model` what they see and answer; docs/architecture.md
says what each module is for.
"""
