"""Default placement: nothing is lost, nothing is lopsided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.plan.scenario import balance_layers


@given(st.integers(1, 200).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers))))
def test_balanced(size: tuple[int, int]) -> None:
    layers, stages = size
    held = balance_layers(layers, stages)
    assert len(held) == stages
    assert sum(held) == layers
    assert min(held) >= 0
    slots = [count + (stage == 0) + (stage == stages - 1) for stage, count in enumerate(held)]
    assert max(slots) == -(-(layers + 2) // stages)  # no placement does better
