"""Turn a scenario into the measurements that would make its prediction surer, the most first.

Every candidate is a step or a kernel with slopes along the same parameters as the scenario. Before anything is measured
the conditional normal distribution already says how much variance it will take away (`cost.anchoring`): that depends on
what is measured, not on what comes out.

    width after = width now x (sd after / sd now) ^ narrowing

What a kernel says holds for parameters alone; a run also says how far the user's runs lie from everybody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd, log
from types import MappingProxyType
from typing import Literal

from ridgeline.core.dtype import PEAKS
from ridgeline.core.errors import InputError
from ridgeline.cost import PARAMETERS, Calibration, owners
from ridgeline.cost.anchoring import APART, Anchored, Sensitivity, after_one_more
from ridgeline.cost.fitting import product_parameter
from ridgeline.cost.pricing import Machines
from ridgeline.hardware.load import system as load_system
from ridgeline.ir.ops import Attend, MatMul
from ridgeline.lowering.program import lower
from ridgeline.plan.engine import OVERLAPS
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim import Impossible, Prediction, default_calibration, predict
from ridgeline.sim.batches import StepBatch, sensitivities

STEPS = 20  # of a run that is measured, warm-up among them
KERNEL_NOISE = 0.03  # in logarithms: what measured kernels and the rates they stand for differ by
KERNEL_S = 10.0  # a kernel is measured for, set-up among it
HALF = 1e-3  # of a numerical derivative, in offsets
TOLD = 3  # parameters that are told
Kind = Literal["run", "kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementCandidate:
    """Something that could be measured.

    pins           parameters it says most about, as far as the scenario depends on them
    low_s, high_s  the interval of the scenario's step after it, were its prediction right
    width          of that interval over the present one, in logarithms
    chip_seconds   it takes, roughly
    how            what to run
    """

    kind: Kind
    name: str
    how: str
    pins: tuple[str, ...]
    low_s: float
    high_s: float
    width: float
    chip_seconds: float

    JSON = "what=kind name how pins interval width chip_seconds"

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds of the step after the measurement."""
        return self.low_s, self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NextMeasurements:
    """A prediction, and what would make it surer: the narrowest interval first, the cheaper of equals."""

    prediction: Prediction
    candidates: tuple[MeasurementCandidate, ...]

    JSON = """
        kind='next measurement' scenario=prediction.scenario.name step_time_s=prediction.step_time_s interval
        candidates
    """

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds of the step now."""
        return self.prediction.interval.low, self.prediction.interval.high


def next_measurements(scenario: Scenario, calibration: Calibration | None = None) -> NextMeasurements:
    """Rank runs and kernels by how much their measurement is expected to narrow the scenario's interval.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = next_measurements(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> [one.name for one in found.candidates][0], all(0 < one.width <= 1 for one in found.candidates)
    ('the scenario itself', True)
    """
    used = default_calibration() if calibration is None else calibration
    now = predict(scenario, used)
    if isinstance(now, Impossible):
        raise InputError(now.reasons)
    target = _Target(scenario=now.scenario, prediction=now, calibration=used, own=_sensitivity(scenario, used))
    order = sorted([*_runs(target), *_kernels(target)], key=lambda item: (round(item.width, 3), item.chip_seconds))
    return NextMeasurements(prediction=now, candidates=tuple(order))


def _sensitivity(scenario: Scenario, calibration: Calibration) -> Sensitivity:
    return sensitivities(StepBatch.of([scenario], calibration.profiles), [scenario], calibration)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What is to be known better."""

    scenario: Scenario[Train]
    prediction: Prediction
    calibration: Calibration
    own: Sensitivity

    @property
    def anchors(self) -> Anchored:
        """What anchors the calibration already; nothing where it is the shipped one."""
        if self.calibration.anchored is not None:
            return self.calibration.anchored
        return Anchored(components=self.calibration.components, runs=(), moved=MappingProxyType({}))

    def candidate(
        self, kind: Kind, name: str, how: str, other: Sensitivity, chip_seconds: float
    ) -> MeasurementCandidate:
        """What a measurement of something else would do to the interval."""
        anchors, kernel = self.anchors, kind == "kernel"
        noise = KERNEL_NOISE if kernel else anchors.components.noise
        before, after = after_one_more(anchors, self.own, other, noise, kernel=kernel)
        width = (after / before) ** (anchors.components.narrowing / 2)
        step, span = self.prediction.step_time_s, self.prediction.interval
        low, high = (step * (end / step) ** width for end in (span.low, span.high))
        pins = _shared_parameters(self.own, other)
        return MeasurementCandidate(
            kind=kind, name=name, how=how, pins=pins, low_s=low, high_s=high, width=width, chip_seconds=chip_seconds
        )


def _shared_parameters(own: Sensitivity, other: Sensitivity) -> tuple[str, ...]:
    """The parameters that two steps depend on most together."""
    variances = {
        name: item.common_spread**2 + sum(APART[owner] ** 2 for owner in item.per) for name, item in PARAMETERS.items()
    }
    shared = {name: abs(own.slopes[name] * other.slopes.get(name, 0.0)) * variances[name] for name in variances}
    ordered_names = sorted((name for name in shared if shared[name] > 0), key=lambda name: -shared[name])
    largest = shared[ordered_names[0]] if ordered_names else 0.0
    return tuple(name for name in ordered_names[:TOLD] if shared[name] > largest / 20)


def _runs(target: _Target) -> Iterator[MeasurementCandidate]:
    done: set[str] = set()
    for name, how, variant in _variants(target.scenario):
        kind = name.partition(",")[0]
        prediction = None if kind in done else predict(variant, target.calibration)
        if isinstance(prediction, Prediction) and (prediction.fits or variant is target.scenario):
            done.add(kind)
            spent = prediction.step_time_s * variant.system.chips * STEPS
            yield target.candidate("run", name, how, _sensitivity(variant, target.calibration), spent)


def _variants(scenario: Scenario[Train]) -> Iterator[tuple[str, str, Scenario]]:
    """The scenario and cheaper or other runs of the same software and machine; some cannot run."""
    plan, work, model = scenario.plan, scenario.workload, scenario.model
    measure = f"{STEPS} steps; step time as [measured] step_time_s, or a trace with --anchor TRACE@SCENARIO"
    yield "the scenario itself", measure, scenario
    yield from _one_node(scenario, measure)
    stages = plan.virtual_stages
    few = max(stages, model.layers // 4 // stages * stages)
    if few < model.layers:
        shorter = replace(model, order=model.order[:few])
        fewer = replace(scenario, model=shorter, plan=replace(plan, placement=()))
        yield f"{few} of {model.layers} layers", f"model.layers={few}; {measure}", fewer
    for size in (plan.microbatch * 2, plan.microbatch // 2):
        if size and work.sequences % (size * plan.mesh.dp) == 0:
            variant = replace(scenario, plan=replace(plan, microbatch=size))
            yield f"microbatch {size}", f"--set plan.microbatch={size}; {measure}", variant
    if work.seq >= 1024:
        half = replace(work, seq=work.seq // 2, global_batch=work.sequences, tokens_per_batch=None, document=None)
        yield f"sequences of {half.seq}", f"--set workload.seq={half.seq}; {measure}", replace(scenario, workload=half)
    without_overlap = replace(plan, switches=replace(plan.switches, overlap=dict.fromkeys(OVERLAPS, False)))
    if scenario.system.chips > 1:
        yield "nothing overlapped", f"every plan.overlap off; {measure}", replace(scenario, plan=without_overlap)


def _one_node(scenario: Scenario[Train], measure: str) -> Iterator[tuple[str, str, Scenario]]:
    """The same on the chips of one innermost domain: layers of one pipeline stage or fewer, a batch as much smaller."""
    plan, work, mesh, system = scenario.plan, scenario.workload, scenario.plan.mesh, scenario.system
    inner = system.tiers[0].chips if system.tiers else 1
    if system.chips <= inner or inner % (mesh.tp * mesh.cp):
        return
    dp = inner // (mesh.tp * mesh.cp)
    try:
        node = replace(load_system(f"{inner}x{system.chip.id}"), chip=system.chip)
    except InputError:
        return
    batch = dp * plan.microbatch * scenario.microbatches
    small = replace(
        plan,
        mesh=Mesh(dp=dp, tp=mesh.tp, cp=mesh.cp, ep=gcd(mesh.ep, inner), etp=mesh.etp),
        schedule=type(plan.schedule)(),
        placement=(),
    )
    workload = replace(work, global_batch=batch, tokens_per_batch=None)
    for layers in dict.fromkeys(max(1, scenario.model.layers // (mesh.pp * cut)) for cut in (1, 2, 4, 8)):
        few = replace(scenario.model, order=scenario.model.order[:layers])
        yield (
            f"one node of {inner}, {layers} layers",
            f"model.layers={layers} on {inner} chips; {measure}",
            replace(scenario, model=few, system=node, plan=small, workload=workload),
        )


def _kernels(target: _Target) -> Iterator[MeasurementCandidate]:
    """Kernels that the step spends its time in, each by itself."""
    scenario, system = target.scenario, target.scenario.system
    inner = min(system.chips, system.tiers[0].chips) if system.tiers else 1
    for name, how, slopes, chips in (*_products(target), *_other_kernels(scenario, inner)):
        kernel_slopes = {key: sign * _log_slope(target, key) for key, sign in slopes.items()}
        if "power" in kernel_slopes:
            kernel_slopes["power"] *= log(float(Machines.of([system]).density[0, PEAKS.index("bf16")]))
        kernel_sensitivity = replace(target.own, slopes=MappingProxyType(kernel_slopes))
        if any(abs(kernel_slopes[key] * target.own.slopes[key]) > 0 for key in kernel_slopes):
            yield target.candidate("kernel", name, how, kernel_sensitivity, chips * KERNEL_S)


_Kernel = tuple[str, str, Mapping[str, float], int]  # name, how, parameters with the sign of their slope, chips


def _products(target: _Target) -> Iterator[_Kernel]:
    """The product and the attention kernels that most time goes to."""
    program = lower(target.scenario, tensors=False)
    counts = [sum(stage[index] for stage in program.stages) for index in range(len(program.sections))]
    ops = [
        (count, op)
        for count, section in zip(counts, program.sections, strict=True)
        for op in (*section.forward, *section.backward_input, *section.backward_weight)
    ]
    products = [(float(op.flops) * count, op) for count, op in ops if isinstance(op, MatMul)]
    for in_groups in (False, True):
        group_products = [entry for entry in products if (entry[1].groups > 1) == in_groups]
        if group_products:
            op = max(group_products, key=lambda entry: entry[0])[1]
            share = product_parameter(op.peak)
            slopes = {share: -1.0, "power": 1.0} | ({"experts": -1.0} if in_groups else {})
            sizes = f"{op.m:.0f}x{op.n:.0f}x{op.k:.0f}" + (f", {op.groups:.0f} groups" if in_groups else "")
            yield f"product {op.label} {sizes} in {op.peak}", "torch.matmul or cublasLt, warm", slopes, 1
    if any(isinstance(op, Attend) for _, op in ops):
        yield "attention forward", "the engine's attention kernel at this length", {"attention": -1.0}, 1
        back = {"attention": -1.0, "attention_back": -1.0}
        yield "attention backward", "the backward of the same kernel", back, 1


def _other_kernels(scenario: Scenario, inner: int) -> Iterator[_Kernel]:
    """Memory, links and the host."""
    yield "memory copy", "a large device-to-device copy", {"memory": -1.0}, 1
    if inner > 1:
        yield "collective inside a domain", f"nccl-tests all_reduce on {inner} chips, large", {"near": -1.0}, inner
        yield "barrier inside a domain", f"nccl-tests all_reduce on {inner} chips, small", {"meet": 1.0}, inner
    if scenario.system.chips > inner:
        chips = 2 * inner
        yield "collective between domains", f"nccl-tests all_reduce on {chips} chips, large", {"far": -1.0}, chips
    yield "host launch", "empty kernels issued one after the other", {"host": 1.0}, 1
    yield "gap between kernels", "a trace of small kernels in a row", {"kernel": 1.0}, 1


def _log_slope(target: _Target, name: str) -> float:
    """Change of a parameter's logarithm, of the exponent itself for `power`, with its offset."""
    item, owner_names = PARAMETERS[name], owners(target.scenario.system.chip, target.scenario.engine)
    keys = [name, *(f"{name}/{owner_names.of(owner)}" for owner in item.per if owner_names.of(owner))]
    at = sum(target.calibration.offsets.get(key, 0.0) for key in keys)
    ends = item.value(at + HALF), item.value(at - HALF)
    change = ends[0] - ends[1] if name == "power" else log(ends[0] / ends[1])
    return change / (2 * HALF)
