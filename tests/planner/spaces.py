"""Spaces of every kind, for properties that hold in all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from seerd.planner.parameter import Condition, Parameter, ends
from seerd.planner.space import Space

SGD, ADAM = Condition("optimizer", ("sgd",)), Condition("optimizer", ("adam", "lion"))
MIXED = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("optimizer", choices=("sgd", "adam", "lion")),
        Parameter("momentum", low=0.8, high=0.99, when=(SGD,)),
        Parameter("nesterov", choices=(True, False), when=(SGD,)),
        Parameter("damp", low=0.0, high=0.5, step=0.05, when=(Condition("nesterov", (False,)),)),
        Parameter("beta", mean=0.9, std=0.02, low=0.8, high=0.999, when=(ADAM,)),
        Parameter("decay", mean=1e-4, std=3.0, low=1e-6, high=1e-2, log=True),
        Parameter("layers", low=1, high=6, integer=True),
        Parameter("width", low=16, high=256, log=True, integer=True),
        Parameter("epochs", choices=(90,)),
        Parameter("blocks", choices=((64,), (64, 128), ((3, 5), "x"), ())),
    ),
    constraints=("layers * width <= 512", "lr / (1 - momentum) <= 2"),
)
"""Every kind of parameter, nested conditions, and constraints."""

numbers = st.floats(-1e6, 1e6)


@st.composite
def ranges(draw: st.DrawFn, name: str = "x", when: tuple[Condition, ...] = ()) -> Parameter:
    """A range of any kind."""
    log = draw(st.booleans())
    low = draw(st.floats(1e-6, 1e6) if log else numbers)
    if draw(st.booleans()):
        low, span = round(low) + log, draw(st.integers(1, 1000))
        step = draw(st.none() | st.integers(1, span))
        return Parameter(
            name, low=low, high=low + span, step=step, log=log, integer=True, when=when
        )
    high = low * draw(st.floats(1.01, 1e4)) if log else low + draw(st.floats(1e-3, 1e6))
    step = draw(st.none() | st.floats(1e-3, 1.0).map(lambda share: share * (high - low)))
    return Parameter(name, low=low, high=high, step=step, log=log, when=when)


@st.composite
def normals(draw: st.DrawFn, name: str = "x", when: tuple[Condition, ...] = ()) -> Parameter:
    """A normal of any kind; its ends, if it has any, lie 0.1 to 3 deviations from the mean."""
    log = draw(st.booleans())
    mean = draw(st.floats(1e-6, 1e6) if log else numbers)
    std = draw(st.floats(1.01, 10.0) if log else st.floats(1e-3, 1e6))
    step = draw(st.none() | st.floats(0.01, 0.5).map(lambda s: s * (mean if log else std)))
    low, high = ends(mean, std, step, log=log)
    near = draw(st.floats(0.5, 3.0))
    if draw(st.booleans()):
        low = mean / std**near if log else mean - std * near
    if draw(st.booleans()):
        high = mean * std**near if log else mean + std * near
    if step is not None and step > high - low:
        step = None
    return Parameter(name, low=low, high=high, step=step, log=log, mean=mean, std=std, when=when)


@st.composite
def choices(draw: st.DrawFn, name: str = "x", when: tuple[Condition, ...] = ()) -> Parameter:
    """One to four different values of any kind."""
    value = st.booleans() | st.integers(-9, 9) | numbers | st.text(max_size=3)
    unique = st.lists(value, min_size=1, max_size=4, unique_by=lambda v: (v, isinstance(v, bool)))
    return Parameter(name, choices=tuple(draw(unique)), when=when)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Up to six parameters; each may be active only with some values of choices before it."""
    made: list[Parameter] = []
    for number in range(draw(st.integers(1, 6))):
        parents = [p for p in made if p.choices]
        when = ()
        if parents and draw(st.booleans()):
            parent = draw(st.sampled_from(parents))
            values = draw(st.lists(st.sampled_from(parent.choices), min_size=1, max_size=3))
            when = (Condition(parent.name, tuple(values)),)
        kind = draw(st.sampled_from((ranges, normals, choices)))
        made.append(draw(kind(f"p{number}", when)))
    return Space(tuple(made))
