"""Reads a run entry by entry and writes its story.

The one rule: a fold over events and what was decided; whoever reads the run beside it may decide
again, and the story is the one that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, PolicyAnswered
from seerd.core.state import State
from seerd.core.step import QUIET, commands_of, follow
from seerd.story.chapters import Story
from seerd.story.decisions import decisions
from seerd.story.facts import Before, facts

Follow = Callable[[State, AnyEvent, Sequence[AnyDecision]], None]


class Historian:
    """Keeps the story of a run. `go`: what leads the state from one event to the next."""

    def __init__(self, go: Follow = follow) -> None:
        self.story = Story()
        self._go = go

    def read(self, state: State, event: AnyEvent, decided: Sequence[AnyDecision]) -> None:
        """Follow the run by one event, and write down what happened."""
        story = self.story
        story.events += 1
        story.commands += len(commands_of(decided))
        if not decided and isinstance(event, QUIET):
            self._go(state, event, decided)
            story.attempts.hear(event, state)
            return
        before = Before.of(event, state)
        self._go(state, event, decided)
        story.attempts.hear(event, state)
        beats = [
            *facts(before, event, decided, story, state),
            *decisions(before, event, decided, story, state),
        ]
        new = event.plan.new if isinstance(event, PolicyAnswered) else ()
        story.write(beats, [one.trial for one in new], state)
