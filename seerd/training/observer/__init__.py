"""Observes a script that does not import seerd, and takes part for it: a process beside it, started
by the agent in the same attempt.

What the script prints becomes reports; what it saves becomes checkpoints; when the attempt is to
end, it gets SIGTERM. What this process tells and writes is what docs/training-side.md says of any
program.

The one rule: what the script saves is taken only when it is whole.

- A zip, as `torch.save` writes it, has checksums of its own: a copy of it shows.
- Anything else must not have changed for a moment, nobody may have it open for writing, and it must
  not change while it is copied. A folder must be quiet for long, or written in its usual order.
- What is there when the script has ended by itself, with exit status 0, is whole.
"""
