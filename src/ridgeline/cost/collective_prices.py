"""Turn a collective's ideal time into the prices of four layers: ideal links, the library, a benchmark, a step.

    ideal       the algorithm's steps on links of the data sheet's rate and latency: `comm.timing`
    library     what the library's own tuner expects of the algorithm and protocol it takes: `comm.libraries`
    benchmark   what nccl-tests would measure, by a fit to measured collectives: `cost.library_times`
    step        what a training or serving step pays, by the fitted calibration: `cost.collectives`

Each layer counts what the one before leaves out. A layer that knows nothing of the collective, the chip or the network
says why instead of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2
from types import MappingProxyType

import numpy as np

from ridgeline.comm import CollectivePrices, CollectiveTime, LayerPrice
from ridgeline.comm.libraries import chosen_option, library_of
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.core.units import format_quantity
from ridgeline.cost.calibration import Calibration, default_calibration, owners
from ridgeline.cost.collectives import KINDS as CLOSED_KINDS
from ridgeline.cost.collectives import explain_collective, links_of
from ridgeline.cost.library_times.formulas import benchmark_seconds
from ridgeline.cost.library_times.question import CollectiveQuestion, QuestionKind, describes
from ridgeline.cost.machine import Machines, ParameterColumns
from ridgeline.hardware.system import System
from ridgeline.plan.engine import ENGINES

KINDS: Mapping[str, QuestionKind] = MappingProxyType(
    {
        "allreduce": "all-reduce",
        "allgather": "all-gather",
        "reducescatter": "reduce-scatter",
        "alltoall": "all-to-all",
    }
)
"""Collectives that benchmarks and steps are priced for."""
LAYERS = ("ideal", "library", "benchmark", "step")
ENGINE = "generic"  # whose parameters price a step where no engine is named; those of links belong to chips
DRAWN = "a drawn topology has no chips: name a system with --on"
CHANGED = "links or ranks were changed, which only the ideal layer counts"


def collective_prices(
    time: CollectiveTime, system: System | None, *, changed: bool = False, calibration: Calibration | None = None
) -> CollectivePrices:
    """The four prices of a collective; `changed`: its graph is not the system's as the catalog has it."""
    adds = "bytes over the data sheet's rate, and the latency of every hop; ranks arrive together"
    source = "links of the catalog" if system is not None else "links as given"
    ideal = LayerPrice(seconds=time.seconds, algorithm=time.algorithm.name, adds=adds, source=source)
    if system is None or changed:
        unknown = LayerPrice(reason=CHANGED if system is not None else DRAWN)
        return CollectivePrices(ideal=ideal, library=unknown, benchmark=unknown, step=unknown)
    name, size = time.collective, time.size_bytes
    return CollectivePrices(
        ideal=ideal,
        library=_or_reason(lambda: _library_price(name, size, system)),
        benchmark=_or_reason(lambda: _benchmark_price(name, size, system)),
        step=_or_reason(lambda: step_price(name, size, system, calibration)),
    )


def _or_reason(price: Callable[[], LayerPrice]) -> LayerPrice:
    """A price, or the reason why there is none."""
    try:
        return price()
    except (InputError, MissingNumber) as refusal:
        return LayerPrice(reason=str(refusal).strip())


def _library_price(name: str, size: float, system: System) -> LayerPrice:
    library = library_of(system)
    if library is None:
        return LayerPrice(reason=f"the tuner of {system.chip.vendor}'s library is not known")
    if name == "alltoall":
        return LayerPrice(reason=f"{library.upper()} sends it as grouped messages and chooses nothing")
    option, version = chosen_option(name, system, size, library)
    return LayerPrice(
        seconds=option.seconds,
        algorithm=option.name,
        adds=f"{_s(option.latency_s)} of launch and hops by protocol, and the share of the links that it counts on",
        source=f"{library.upper()} {version}: its own cost model",
    )


def _benchmark_price(name: str, size: float, system: System) -> LayerPrice:
    if name not in KINDS:
        return LayerPrice(reason=f"no measured rows of {name}")
    question = CollectiveQuestion(kind=KINDS[name], size=size, ranks=system.chips, system=system)
    source = "fit to measured collectives" if describes(system) else "closed forms at the rates that benchmarks reach"
    return LayerPrice(
        seconds=float(benchmark_seconds([question])[0]),
        adds="the start of a kernel, cutting the payload into slices, and the rate that links really reach",
        source=f"nccl-tests, by the {source}" if describes(system) else source,
    )


def step_price(name: str, size: float, system: System, calibration: Calibration | None = None) -> LayerPrice:
    """What a step pays for a collective over all chips of a system, as `predict` prices it."""
    if name not in KINDS:
        return LayerPrice(reason=f"steps have no {name}")
    numbers, owner_names = calibration or default_calibration(), owners(system.chip, ENGINES[ENGINE])
    values = {
        parameter: np.array([numbers.owner_value(parameter, owner_names)]) for parameter in ("near", "far", "meet")
    }
    links = links_of(Machines.of([system]), ParameterColumns(values=values))
    options = explain_collective(CLOSED_KINDS[KINDS[name]], size, system.chips, 1, links)
    if not options:
        return LayerPrice(reason="one chip has nobody to send to")
    skew, shares = float(links.skew[0]) * log2(system.chips), (values["near"][0], values["far"][0])
    adds = f"{_s(skew)} because ranks do not arrive together; links at {shares[0]:.2f} of their rate"
    if len(system.tiers) > 1:
        adds += f", {shares[1]:.2f} between domains"
    return LayerPrice(
        seconds=options[0].seconds,
        algorithm=options[0].algorithm,
        adds=f"{adds}, beside other work",
        source="calibration fitted to measured steps",
    )


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s", 3)
