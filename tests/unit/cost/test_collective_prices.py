"""The four prices of a collective: each layer's own number, in order where every layer counts more than the last."""

from __future__ import annotations

import numpy as np
import pytest

import ridgeline
from ridgeline.calibrate.collectives import expected_seconds
from ridgeline.comm.answer import LayerPrice
from ridgeline.cost.calibration import default_calibration, owners
from ridgeline.cost.collectives import ALL_REDUCE, collective_seconds, links_of
from ridgeline.cost.library_times.question import CollectiveQuestion
from ridgeline.cost.machine import Machines, ParameterColumns
from ridgeline.hardware.load import system
from ridgeline.plan.engine import ENGINES


def layers(name: str, on: str, size: float, **options: object) -> tuple[LayerPrice, ...]:
    prices = ridgeline.collective(name, on=on, size=size, **options).prices  # type: ignore[arg-type]
    assert prices is not None
    return prices.ideal, prices.library, prices.benchmark, prices.step


@pytest.mark.parametrize(
    ("on", "size", "microseconds"),
    [
        ("8xh100-sxm", 1e6, (5.4, 27.4, 29.6, 168)),
        ("8xh100-sxm", 64e6, (167, 215, 301, 489)),
        ("64xh100-sxm", 1e6, (44.2, 92.9, 122, 393)),
    ],
)
def test_each_layer_counts_more_than_the_one_before(on: str, size: float, microseconds: tuple[float, ...]) -> None:
    seconds = [layer.seconds for layer in layers("allreduce", on, size)]
    assert seconds == [pytest.approx(value * 1e-6, rel=0.01) for value in microseconds]
    assert seconds == sorted(seconds)  # type: ignore[type-var]
    assert all(layer.adds and layer.source and not layer.reason for layer in layers("allreduce", on, size))


@pytest.mark.parametrize("size", [64e3, 1e6, 1e9])
def test_every_layer_is_the_number_of_its_own_model(size: float) -> None:
    """Nothing is priced a second time: the tuner's choice, the fit of benchmarks, and what `predict` pays."""
    on = system("64xh100-sxm")
    answer = ridgeline.collective("allreduce", on=on.name, size=size)
    ideal, library, benchmark, step = layers("allreduce", on.name, size)
    assert (ideal.seconds, ideal.algorithm) == (answer.seconds, answer.algorithm.name)
    chosen = ridgeline.library_choice("allreduce", on=on.name, size=size).chosen
    assert (library.seconds, library.algorithm) == (chosen.seconds, chosen.name)
    question = CollectiveQuestion(kind="all-reduce", size=size, ranks=64, system=on)
    assert benchmark.seconds == expected_seconds(question)[0]
    own = owners(on.chip, ENGINES["megatron-core"])  # links are a chip's, whichever engine runs
    values = {name: np.array([default_calibration().owner_value(name, own)]) for name in ("near", "far", "meet")}
    links = links_of(Machines.of([on]), ParameterColumns(values=values))
    ones = np.ones(1)
    assert step.seconds == collective_seconds(ALL_REDUCE, size * ones, 64 * ones, ones, links)[0]


@pytest.mark.parametrize(
    ("name", "on", "known"),
    [
        ("allreduce", "64xtpu-v5p", ("ideal", "benchmark", "step")),  # no tuner of its library is known
        ("alltoall", "8xh100-sxm", ("ideal", "benchmark", "step")),  # grouped sends: nothing to choose
        ("broadcast", "8xh100-sxm", ("ideal", "library")),  # no step has one, and no rows were measured
        ("dispatch", "8xh100-sxm", ("ideal",)),
        ("allgather", "16xmi300x", ("ideal", "library", "benchmark", "step")),
    ],
)
def test_an_unknown_price_has_a_reason(name: str, on: str, known: tuple[str, ...]) -> None:
    for layer, price in zip(("ideal", "library", "benchmark", "step"), layers(name, on, 1e6), strict=True):
        assert (price.seconds is not None) == (layer in known) == (not price.reason), layer


def test_only_the_ideal_knows_drawn_and_changed_networks() -> None:
    drawn = ridgeline.collective("allreduce", topology="torus:4x4", size=1e6).prices
    broken = ridgeline.collective("allreduce", on="8xh100-sxm", size=1e6, slow=["node:3:0.5"]).prices
    for prices, word in ((drawn, "drawn"), (broken, "changed")):
        assert prices is not None
        assert prices.ideal.seconds
        assert all(word in layer.reason for layer in (prices.library, prices.benchmark, prices.step))
