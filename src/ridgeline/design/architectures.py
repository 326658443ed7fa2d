"""Turn a study's shapes into models of equal predicted loss, each with its tokens, days, dollars and memory.

    tokens     those with which the law gives a shape the target loss
    total $    tokens x $ of a trained token + serving tokens x $ of a served token          both predicted

At the least total, with effects of size and tokens on the loss at their exchange rate of dollars,

    e_N / e_D = (d$ / d ln N) / (d$ / d ln D)          e = -d L / d ln

which is 1 + D_serve / (3 D) where dollars are 6 N D and 2 N D_serve flops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import DAY, HOUR
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.cost import default_calibration
from ridgeline.cost.pricing import ParameterColumns
from ridgeline.design.architecture_answer import Architecture, ArchitectureAnswer, Basin, RefusedShape
from ridgeline.design.architecture_table import (
    ArchitectureTable,
    ModelShape,
    count,
    read_architectures,
    serving_scenario,
    shapes,
    training_scenario,
)
from ridgeline.design.capacity import needed_bytes
from ridgeline.design.laws import LossLaw, quality_note
from ridgeline.design.points import tokens_of, usd_per_million
from ridgeline.design.study import DesignStudy
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import capacity_of
from ridgeline.sim.batches import MachineRows, StepBatch

BATCH = 64  # scenarios that are priced together
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCosts:
    """What a shape costs: dollars and seconds of a trained token, and of a served one; bytes on the fullest chip."""

    step_s: float
    train_s_per_token: float
    train_usd_per_token: float
    tpot_s: float | None
    usd_per_million: float | None
    memory_bytes: float


def search_architectures(study: DesignStudy, progress: ProgressCallback = ignore_progress) -> ArchitectureAnswer:
    """Models of equal predicted loss: the frontier of training time, serving cost and memory, and the flat basin."""
    if study.architectures is None:
        raise InputError(Problem(path="architectures", given="nothing", expected="an [architectures] table"))
    read, law, target = read_architectures(study.architectures)
    candidates, refusals = shapes(read)
    inside, outside = _split_by_support(candidates, law, target)
    priced_shapes, unable = _price_shapes(inside, read, progress)
    serve_tokens = count("serve_tokens", read.serve_tokens)
    models = [_architecture(shape, costs, law, target, serve_tokens) for shape, costs in priced_shapes]
    models.sort(key=lambda model: (model.total_usd, model.name))
    judged_models = _judge_models(models, law, read)
    best = judged_models[0] if judged_models else None
    interval = law.interval(best.active_params, best.tokens) if best else (target, target)
    return ArchitectureAnswer(
        study=study.title,
        law=MappingProxyType(_law_words(law)),
        target_loss=target,
        loss_interval=interval,
        best=best,
        candidates=tuple(judged_models),
        basin=_basin(judged_models, read),
        refusals=(*refusals, *outside, *unable),
        notes=tuple(_notes(judged_models, law, serve_tokens)),
    )


def _law_words(law: LossLaw) -> dict[str, str]:
    support = (
        f"{law.params[0]:.2g} to {law.params[1]:.2g} parameters, {law.tokens[0]:.2g} to {law.tokens[1]:.2g} tokens"
    )
    per = f"{law.tokens_per_param[0]:g} to {law.tokens_per_param[1]:g} tokens a parameter"
    return {"id": law.id, "form": law.form, "source": law.source, "support": f"{support}, {per}", "note": law.note}


def _size(shape: ModelShape, law: LossLaw) -> float:
    """Parameters as the law counts them: all of a dense model, the active ones of a mixture."""
    return shape.active_params if law.family == "moe" else shape.params


def _split_by_support(
    candidates: Sequence[ModelShape], law: LossLaw, target: float
) -> tuple[list[ModelShape], list[RefusedShape]]:
    inside, outside = [], []
    for shape in candidates:
        tokens = float(law.tokens_for(target, _size(shape, law), shape.granularity))
        reasons = (
            [*law.outside(_size(shape, law), tokens, shape.granularity)]
            if np.isfinite(tokens)
            else ["no number of tokens reaches the loss"]
        )
        if law.family == "dense" and shape.active_params != shape.params:
            reasons.append(f"a mixture of experts: {law.id} is of dense models")
        if reasons:
            outside.append(RefusedShape(name=shape.name, reason="; ".join(reasons)))
        else:
            inside.append(shape)
    return inside, outside


def _price_shapes(
    candidates: Sequence[ModelShape], read: ArchitectureTable, progress: ProgressCallback
) -> tuple[list[tuple[ModelShape, ShapeCosts]], list[RefusedShape]]:
    """Shapes with their costs, and those that cannot run as the study trains and serves them."""
    able: list[tuple[ModelShape, Scenario, Scenario | None]] = []
    unable: list[RefusedShape] = []
    for shape in candidates:
        train, serve = training_scenario(shape, read), serving_scenario(shape, read)
        reason = _unable(train) or (_unable(serve) if serve is not None else "")
        if reason:
            unable.append(RefusedShape(name=shape.name, reason=reason))
        else:
            able.append((shape, train, serve))
    calibration, steps = default_calibration(), list[float]()
    for start in range(0, len(able), BATCH):
        scenarios = [train for _, train, _ in able[start : start + BATCH]]
        batch = StepBatch.of(scenarios, calibration.profiles)
        steps += [float(value) for value in batch.steps(ParameterColumns.of(calibration, scenarios)).step_s]
        progress(start + len(scenarios), len(able), "models", "")
    return [
        (shape, _costs(train, serve, step)) for (shape, train, serve), step in zip(able, steps, strict=True)
    ], unable


def _unable(scenario: Scenario) -> str:
    problems = tuple(check(scenario))
    if problems:
        return str(problems[0])
    share = needed_bytes(scenario) / capacity_of(scenario)
    return "" if share <= 1 else f"{scenario.workload.kind} needs {share:.2f} of a chip's memory"


def _costs(train: Scenario, serve: Scenario | None, step_s: float) -> ShapeCosts:
    chips, price = train.system.chips, train.system.chip.price
    per_token = step_s / tokens_of(train)
    hour = price.value * chips if price else float("nan")
    if serve is None:
        tpot, million, memory = None, None, needed_bytes(train)
    else:
        tpot = float(MachineRows(serve).times({}, 1).seconds[0])
        own_ratio = serve.system.chip.price
        million = usd_per_million(own_ratio.value, serve, tpot) if own_ratio else None
        memory = needed_bytes(serve)
    return ShapeCosts(
        step_s=step_s,
        train_s_per_token=per_token,
        train_usd_per_token=per_token * hour / HOUR,
        tpot_s=tpot,
        usd_per_million=million,
        memory_bytes=memory,
    )


def _architecture(
    shape: ModelShape, costs: ShapeCosts, law: LossLaw, target: float, serve_tokens: float
) -> Architecture:
    size = _size(shape, law)
    tokens = float(law.tokens_for(target, size, shape.granularity))
    low, high = law.interval(size, tokens, shape.granularity)
    train_usd = tokens * costs.train_usd_per_token
    serve_usd = serve_tokens / MILLION * costs.usd_per_million if costs.usd_per_million is not None else 0.0
    notes = [quality_note(name, word) for name, word in shape.words.items() if word != "gqa"]
    return Architecture(
        name=shape.name,
        shape=shape.choices,
        params=shape.params,
        active_params=size,
        tokens=tokens,
        loss=target,
        loss_low=low,
        loss_high=high,
        train_step_s=costs.step_s,
        train_days=tokens * costs.train_s_per_token / DAY,
        train_usd=train_usd,
        tpot_s=costs.tpot_s,
        usd_per_million_tokens=costs.usd_per_million,
        memory_bytes=costs.memory_bytes,
        total_usd=train_usd + serve_usd,
        on_frontier=False,
        in_basin=False,
        quality_notes=tuple(notes),
    )


def _judge_models(models: Sequence[Architecture], law: LossLaw, read: ArchitectureTable) -> list[Architecture]:
    """The candidates with whether another beats them in all, and whether they lie in the flat basin."""
    if not models:
        return []
    table = np.array([[model.train_days, model.usd_per_million_tokens or 0.0, model.memory_bytes] for model in models])
    no_worse = np.all(table[:, None] <= table, axis=2) & np.any(table[:, None] < table, axis=2)
    is_beaten = [bool(column.any()) for column in no_worse.T]
    budget = models[0].total_usd
    judged_models = []
    for model, lost in zip(models, is_beaten, strict=True):
        within = loss_at_budget(model, budget, law) - model.loss <= read.tolerance
        judged_models.append(replace(model, on_frontier=not lost, in_basin=bool(within)))
    return judged_models


def loss_at_budget(model: Architecture, budget: float, law: LossLaw) -> float:
    """The loss that a shape reaches for so many dollars over training and serving; infinite where serving takes all."""
    serve_usd = model.total_usd - model.train_usd
    left_usd = budget - serve_usd
    if left_usd <= 0:
        return float("inf")
    tokens = model.tokens * left_usd / model.train_usd
    granularity = model.shape.get("granularity", 1.0)
    return float(law.loss(model.active_params, tokens, granularity))


def _basin(judged_models: Sequence[Architecture], read: ArchitectureTable) -> Basin:
    flat = [model for model in judged_models if model.in_basin]
    ranges: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(name for model in flat for name in model.shape):
        values = [model.shape[name] for model in flat]
        ranges[name] = (min(values), max(values))
    if flat:
        ranges["params"] = (min(model.params for model in flat), max(model.params for model in flat))
        ranges["tokens"] = (min(model.tokens for model in flat), max(model.tokens for model in flat))
    return Basin(tolerance=read.tolerance, candidates=len(flat), ranges=MappingProxyType(ranges))


def _notes(judged_models: Sequence[Architecture], law: LossLaw, serve_tokens: float) -> Iterator[str]:
    yield "every candidate has the same predicted loss by one law; what the law does not know stands with each model"
    if judged_models:
        best = judged_models[0]
        own_ratio, flops = exchange_ratio(law, best), flops_exchange(best.tokens, serve_tokens)
        yield f"at the best, 1 % of size is worth {own_ratio:.2f} % of tokens; by flops alone it would be {flops:.2f} %"
    yield "chips at their catalog price by the hour; failures, restarts and what is tried before are not counted"


def exchange_ratio(law: LossLaw, model: Architecture) -> float:
    """Effect of one per cent of size on the loss over that of one per cent of tokens.

    e_N / e_D = (alpha A / N^alpha) / (beta B / D^beta)
    """
    granularity = model.shape.get("granularity", 1.0)
    step = 1e-6
    size = law.loss(model.active_params * (1 + step), model.tokens, granularity) - model.loss
    tokens = law.loss(model.active_params, model.tokens * (1 + step), granularity) - model.loss
    return float(size / tokens)


def flops_exchange(tokens: float, serve_tokens: float) -> float:
    """What the ratio is where dollars are flops: 1 + D_serve / (3 D)."""
    return 1 + serve_tokens / (3 * tokens)
