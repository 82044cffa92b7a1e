"""Backward passes and steps of the optimizer, counted: for samplers, and for the agent."""

from typing import Any

from seerd.training.marks import REDUCING, WORKING, Mark


class Steps:
    """Steps of the first tracked optimizer, and backward passes of the first tracked model."""

    def __init__(self, mark: Mark) -> None:
        self.counting = False  # whether there is an optimizer to count with
        self.done = 0  # steps in this attempt
        self.accumulate = 1  # backward passes for one step
        self._mark = mark
        self._passes, self._sees_passes = 0, False

    def watch(self, thing: Any) -> None:
        """Count with this optimizer or model, if it is the first of its kind."""
        if not self.counting and hasattr(thing, "register_step_post_hook"):
            thing.register_step_post_hook(self._step)
            self.counting = True
        if self._mark.shown and not self._sees_passes and hasattr(thing, "parameters"):
            first = next(
                (parameter for parameter in thing.parameters() if parameter.requires_grad), None
            )
            if first is not None:
                self._sees_passes = True
                first.register_hook(self._pass)

    def _step(self, *_: Any) -> None:
        self.done += 1
        self._passes = 0
        self._mark.tick(WORKING)

    def _pass(self, _: Any) -> None:
        """Count a backward pass. After the last one before a step, a rank waits for the others."""
        self._passes += 1
        self._mark.tick(WORKING if self._passes % self.accumulate else REDUCING)
