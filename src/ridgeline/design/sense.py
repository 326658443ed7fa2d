"""Turn a scenario into what limits it: the elasticity of its time or cost to every number of machine and model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.units import HOUR, MILLION
from ridgeline.cost import Calibration, ServingCalibration
from ridgeline.cost.pricing import ParameterColumns
from ridgeline.design.capacity import capacity_elasticity
from ridgeline.design.elasticities import limiters, regime_changes, saturation_curve, slopes
from ridgeline.design.machine_parameters import MachineParameter, machine_parameters
from ridgeline.design.model_parameters import SizeParameter, model_parameters
from ridgeline.design.sensitivity import Elasticity, MoneyBasis, RegimeChange, SaturationCurve, SensitivityAnswer
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario, is_serving, is_training
from ridgeline.plan.workload import Decode, Prefill
from ridgeline.serving import predict_serving, refuse_impossible
from ridgeline.serving.simulation import running_batch
from ridgeline.sim import Impossible, predict
from ridgeline.sim.batches import MachineRows, RowTimes, StepBatch
from ridgeline.sim.forward_work import predict_phase

METRICS = {"train": "step_time_s", "prefill": "ttft_s", "decode": "tpot_s", "serve": "tpot_s", "rl": "step_time_s"}


def sense(
    scenario: Scenario,
    *,
    metric: str = "",
    curve: str = "",
    calibration: Calibration | None = None,
    serving: ServingCalibration | None = None,
) -> SensitivityAnswer:
    """Every elasticity of a scenario's step time (TTFT of a prefill, TPOT of a decode or of requests), or of its cost.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> answer = sense(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> answer.machine[0].parameter, abs(answer.rate_sum + 1) < 1e-9
    ('chip.peak.bf16', True)
    """
    if scenario.workload.kind == "rl":
        from ridgeline.design.sense_rl import sense_rl

        return sense_rl(scenario, metric=metric, curve=curve, calibration=calibration)
    own_scenario, notes = _priced_scenario(scenario)
    rows = MachineRows(own_scenario, calibration, serving)
    metric_name = _metric_of(scenario, metric)
    parameters = machine_parameters(rows)
    today_times = rows.times({}, 1)
    basis = money_basis(own_scenario, float(today_times.seconds[0]))
    entries = _machine_elasticities(rows, parameters, basis)
    value, low, high = _value(scenario, own_scenario, rows, calibration)
    capacity = capacity_elasticity(own_scenario, rows)
    model = _size_elasticities(own_scenario, rows, float(today_times.seconds[0]), basis)
    scale = (basis.usd_per_unit or 0.0) / value if metric_name == "cost_usd" else 1.0
    return SensitivityAnswer(
        scenario=scenario,
        metric=metric_name,
        unit="USD" if metric_name == "cost_usd" else "s",
        value=value * scale,
        low=None if low is None else low * scale,
        high=None if high is None else high * scale,
        limiter=limiter_words(today_times),
        rate_sum=rate_sum(entries),
        machine=(*_strongest_first(entries), *([capacity] if capacity else [])),
        model=tuple(_strongest_first(model)),
        money=tuple(_money_elasticities(own_scenario, metric_name, basis)),
        basis=basis,
        curve=_curve(rows, parameters, curve, (metric_name, scale)) if curve else None,
        notes=(*notes, *NOTES),
    )


def _machine_elasticities(
    rows: MachineRows, parameters: Sequence[MachineParameter], basis: MoneyBasis
) -> list[Elasticity]:
    """Elasticities of every number of the machine, with the regimes beside today's."""
    today = slopes(rows, parameters)
    changes = regime_changes(rows, parameters, today)
    return [
        _machine_elasticity(parameter, float(today.below[place]), float(today.above[place]), changes[place], basis)
        for place, parameter in enumerate(parameters)
    ]


def rate_sum(entries: Sequence[Elasticity]) -> float:
    """Elasticities of rates minus those of times: -1 where nothing else takes time."""
    signs = {"rate": 1.0, "time": -1.0}
    return float(sum(signs.get(entry.kind, 0.0) * entry.elasticity for entry in entries))


def _priced_scenario(scenario: Scenario) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario whose time is asked: of requests under load, one decode step of what runs at once on average."""
    if not is_serving(scenario):
        return scenario, ()
    prediction = refuse_impossible(predict_serving(scenario, sample=True))
    batch = running_batch(prediction)
    if batch.step is None:
        expectation = "requests that decode"
        raise InputError(Problem(path="workload", given="no request decodes", expected=expectation))
    instance = next(instance for instance in prediction.instances if instance.role != "prefill")
    own_scenario, mesh = instance.scenario, instance.scenario.plan.mesh
    many = max(mesh.dp * mesh.pp, round(batch.step.batch * mesh.dp))
    work = Decode(context=max(1, round(batch.context)), batch=many)
    note = f"TPOT is that of a decode step of {many} requests with {work.context} cached tokens: what runs on average"
    return replace(own_scenario, workload=work), (note,)


def _metric_of(scenario: Scenario, metric: str) -> str:
    usual = METRICS[scenario.workload.kind]
    known_sides = (usual, "cost_usd")
    if metric and metric not in known_sides:
        raise InputError(not_among("--metric", metric, known_sides))
    return metric or usual


def _value(
    scenario: Scenario, own_scenario: Scenario, rows: MachineRows, calibration: Calibration | None
) -> tuple[float, float | None, float | None]:
    """The metric in seconds, with its interval."""
    if is_serving(scenario):
        return float(rows.times({}).seconds[0]), None, None
    prediction = (
        predict(own_scenario, calibration) if is_training(own_scenario) else predict_phase(own_scenario, calibration)
    )
    if isinstance(prediction, Impossible):
        raise InputError(prediction.reasons)
    return prediction.step_time_s, prediction.interval.low, prediction.interval.high


def limiter_words(times: RowTimes) -> str:
    """The largest part of the first row, what bounds it, and its share."""
    places, names = limiters(times)
    word = names[int(places[0])]
    return f"{word}: {float(times.parts[word.split(' ')[0]][0] / times.seconds[0]):.0%}"


def money_basis(own_scenario: Scenario, seconds: float) -> MoneyBasis:
    """What an hour of the system costs, and what its unit of work costs: a step, or a million tokens."""
    price, chips, work = own_scenario.system.chip.price, own_scenario.system.chips, own_scenario.workload
    unit = "step" if work.kind in ("train", "rl") else "million tokens"
    if price is None:
        return MoneyBasis(usd_per_hour=None, unit=unit, usd_per_unit=None, source="no price of the chip is published")
    hour = price.value * chips
    per = hour / HOUR * seconds
    tokens = _tokens_of(own_scenario) if unit != "step" else 0.0
    cost = per if unit == "step" else per / tokens * MILLION
    source = f"{price.value:g} USD/h a chip ({price.evidence.label}, {price.source}) x {chips} chips"
    return MoneyBasis(usd_per_hour=hour, unit=unit, usd_per_unit=cost, source=source)


def _tokens_of(own_scenario: Scenario) -> float:
    """Tokens that a prefill reads, or that a decode step writes, over the whole system."""
    work = own_scenario.workload
    if isinstance(work, Prefill):
        return float(work.batch * (work.seq - work.cached))
    drafts = own_scenario.plan.speculation
    return work.sequences * (drafts.tokens_per_step if drafts else 1.0)


def _machine_elasticity(
    parameter: MachineParameter,
    below: float,
    above: float,
    changes: tuple[RegimeChange | None, RegimeChange | None],
    basis: MoneyBasis,
) -> Elasticity:
    worth = -above if parameter.kind == "rate" else below
    return Elasticity(
        parameter=parameter.parameter,
        title=parameter.title,
        kind=parameter.kind,
        group=parameter.group,
        unit=parameter.unit,
        value=parameter.value,
        below=below,
        above=above,
        usd_per_hour_per_percent=_percent(worth, basis.usd_per_hour),
        usd_per_unit_per_percent=_percent(worth, basis.usd_per_unit),
        lower_change=changes[0],
        upper_change=changes[1],
        evidence=parameter.evidence.label,
        source=parameter.source,
    )


def _percent(worth: float, dollars: float | None) -> float | None:
    return None if dollars is None else worth * dollars / 100


def _size_elasticities(scenario: Scenario, rows: MachineRows, seconds: float, basis: MoneyBasis) -> list[Elasticity]:
    """Elasticities of sizes: of each from the next smaller and the next larger one that can be priced."""
    sizes = model_parameters(scenario)
    values = [size.value + sign * size.step for size in sizes for sign in (-1, 1)]
    changed_value = [
        _possible(size, value) for size, value in zip((s for s in sizes for _ in (-1, 1)), values, strict=True)
    ]
    seconds_left = iter(
        _seconds_of([other_scenario for other_scenario in changed_value if other_scenario is not None], rows)
    )
    slopes_of = [
        None if other_scenario is None else log(next(seconds_left) / seconds) / log(value / size.value)
        for other_scenario, value, size in zip(changed_value, values, (s for s in sizes for _ in (-1, 1)), strict=True)
    ]
    pairs = zip(sizes, slopes_of[::2], slopes_of[1::2], strict=True)
    return [_size_elasticity(size, sides, basis) for size, *sides in pairs if sides != [None, None]]


def _possible(size: SizeParameter, value: int) -> Scenario | None:
    """The scenario with another size; None where nothing can run so."""
    try:
        changed_value = size.change(value) if value > 0 else None
        return None if changed_value is None or tuple(check(changed_value)) else changed_value
    except InputError:
        return None


def _seconds_of(scenarios: Sequence[Scenario], rows: MachineRows) -> list[float]:
    """Seconds of several scenarios: of training steps priced together."""
    if not all(map(is_training, scenarios)):
        return [
            float(MachineRows(other_scenario, rows.calibration, rows.serving).times({}, 1).seconds[0])
            for other_scenario in scenarios
        ]
    if not scenarios:
        return []
    batch = StepBatch.of(scenarios, rows.calibration.profiles)
    return [float(value) for value in batch.steps(ParameterColumns.of(rows.calibration, scenarios)).step_s]


def _size_elasticity(size: SizeParameter, sides: Sequence[float | None], basis: MoneyBasis) -> Elasticity:
    known_sides = [side for side in sides if side is not None]
    below, above = (known_sides[0] if side is None else side for side in sides)
    worth = -(below + above) / 2
    return Elasticity(
        parameter=size.parameter,
        title=size.title,
        kind="size",
        group="model",
        unit="",
        value=float(size.value),
        below=below,
        above=above,
        step=size.step / size.value,
        usd_per_hour_per_percent=_percent(-worth, basis.usd_per_hour),
        usd_per_unit_per_percent=_percent(-worth, basis.usd_per_unit),
        evidence="analytic",
        source="the scenario's model and workload",
    )


def _strongest_first(entries: Sequence[Elasticity]) -> list[Elasticity]:
    return sorted(entries, key=lambda entry: (-abs(entry.elasticity), entry.parameter))


def _money_elasticities(scenario: Scenario, metric: str, basis: MoneyBasis) -> Iterator[Elasticity]:
    """The price of an hour, to which a cost is proportional and a time is nothing."""
    price = scenario.system.chip.price
    if price is None:
        return
    slope = 1.0 if metric == "cost_usd" else 0.0
    yield Elasticity(
        parameter="chip.price",
        title="price of a chip for an hour",
        kind="price",
        group="money",
        unit="USD/h",
        value=price.value,
        below=slope,
        above=slope,
        usd_per_hour_per_percent=_percent(1.0, basis.usd_per_hour),
        usd_per_unit_per_percent=_percent(1.0, basis.usd_per_unit),
        evidence=price.evidence.label,
        source=price.source,
    )


def _curve(
    rows: MachineRows, parameters: Sequence[MachineParameter], name: str, how: tuple[str, float]
) -> SaturationCurve:
    by_name = {parameter.parameter: parameter for parameter in parameters}
    if name not in by_name:
        raise InputError(not_among("--curve", name, tuple(by_name)))
    return saturation_curve(rows, by_name[name], *how)


NOTES = (
    "worth of one per cent: of a rate more, of a time less; of a size, what one per cent more of it costs",
    "the plan stays as it is: another plan may be better on another machine, which `ridgeline design` asks",
)
