"""Mistakes in what is drawn: conditions, constraints, values, and what a person is shown of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SPACE = "tests/planner/test_space.py"
CONSTRAINTS = "tests/planner/test_constraints.py"
PLANNING = "tests/test_planning.py"

DRAWING = (
    Mutant(
        "a configuration that does not meet the constraints is drawn",
        "every configuration meets the constraints",
        "Space.sample",
        "self.allows(config)",
        "config",
        (f"{SPACE}::test_every_draw_meets_the_constraints",),
    ),
    Mutant(
        "a constraint applies to what is inactive",
        "a constraint that names an inactive parameter does not apply",
        "Constraint.met",
        "if not self.names <= config.keys():\n    return True",
        "if not self.names <= config.keys():\n    return False",
        (f"{CONSTRAINTS}::test_with_an_inactive_parameter_it_does_not_apply",),
    ),
    Mutant(
        "any function may be called",
        "nothing but a constraint is ever computed",
        "constraints._computed",
        "name in FUNCTIONS",
        "True",
        (f"{CONSTRAINTS}::test_anything_else_is_refused",),
    ),
    Mutant(
        "constraints that are never met are taken",
        "what cannot be drawn is refused before anything is started",
        "never_met",
        "together >= MET and tried >= LOOKED_AT",
        "tried >= LOOKED_AT",
        (f"{SPACE}::test_what_is_never_met_is_told_with_how_seldom_each_was",),
    ),
    Mutant(
        "the ends of a grid are drawn half as often",
        "stepped values are equally likely",
        "Parameter._edges",
        "not self.stepped",
        "True",
        (f"{SPACE}::test_the_ends_of_a_grid_are_as_likely_as_its_middle",),
    ),
    Mutant(
        "a parameter whose condition does not hold uses up no draw",
        "a condition changes nothing else in the sequence of draws",
        "Space._filled",
        "value = choose(parameter)\nif parameter.active(config):\n"
        "    config[parameter.name] = value",
        "if parameter.active(config):\n    config[parameter.name] = choose(parameter)",
        (f"{SPACE}::test_a_condition_changes_nothing_else_in_the_sequence",),
    ),
    Mutant(
        "a plan shows other configurations than are tried",
        "a plan shows what would be started",
        "first_configs",
        "[drawn[number] for number in range(CONFIGS)]",
        "[drawn[number + 1] for number in range(CONFIGS)]",
        (f"{PLANNING}::test_the_configurations_that_are_shown_are_tried_in_that_order",),
    ),
    Mutant(
        "a step that is too small for its range is taken",
        "what cannot be drawn is refused in a sentence",
        "_check_step",
        "0 < step < (high - low) / LARGEST",
        "False",
        ("tests/test_spec.py::test_one_mistake_of_a_space",),
    ),
)
