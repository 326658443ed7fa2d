"""Turn measured serving runs into predictions: the steps each of them took, priced under any serving parameters.

row -> scenario and load -> closed batch: compositions of steps -> nominal work, once
nominal work x serving parameters -> seconds of steps -> what the row measured, for a fit as often as it likes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.calibrate.truth.inference_rows import Inference
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.errors import MissingNumber
from ridgeline.cost.calibration import SERVING_PARAMETERS, Calibration, Owners, ServingCalibration, owners
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.serving_settings import BARE
from ridgeline.serving.saturated import ClosedBatch, Limits, closed_batch
from ridgeline.sim import (
    PRODUCTS,
    SIDE_BY_SIDE,
    ForwardWorkload,
    beside,
    class_seconds,
    forward_work,
    host_seconds,
    is_weight_only,
    limits_of,
    serving_memory,
)

BENCHED = {"tensorrt-llm": 0.95}  # share of free memory that published runs at maximum load take
SEED = 20
AT_LEAST = 0.75  # of nominal time that memory takes: no chip moves more than its data sheet says


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedRun:
    """A measured run as a straight line in the seconds of its steps.

        time = sum of share x step seconds  (+ first_token)        figure = time x scale, or amount / time

    work        nominal, by class and step: of the slowest stage, as often as there are stages, and of drafts
    share       how often each step counts
    amount      tokens that a throughput counts; 0 where the time itself was measured
    """

    item: Inference
    work: Array
    graphed: Mask
    requests: Array
    sends: Array
    share: Array
    amount: float

    @property
    def contradiction(self) -> str:
        """Why the figure cannot be what its labels say: the cache and weights it reads take longer at memory's rate.

        Of the nominal time of memory-bound products and of reading the cache, what a data sheet's rate leaves at least.
        """
        least = AT_LEAST * float((self.work[[0, 4, 10]].sum(0) * self.share).sum())
        time = self.amount / self.item.measured if self.amount else self.item.measured / self.item.scale
        if time >= least:
            return ""
        seen = f"{self.item.row['metric']} {self.item.measured:g}"
        return f"value: {seen}, but reading weights and cache takes {least / time:.1f} times as long; check the load"

    @property
    def owners(self) -> Owners:
        """What its parameters are known by."""
        return owners(self.item.scenario.system.chip, self.item.scenario.engine)

    @property
    def others(self) -> float:
        """Requests in flight beside one, whatever rank serves them; a static batch is handed over as one."""
        return 0.0 if self.item.static else float(self.item.in_flight * self.item.scenario.plan.mesh.dp - 1)

    @property
    def waits(self) -> bool:
        """Whether the first token was measured where it reaches a client, not where the engine computes it."""
        return self.item.asked == "ttft" and self.item.row["metric"].startswith("ttft")


def price_run(item: Inference, calibration: Calibration) -> PricedRun | str:
    """A run's steps with their nominal work, or why there is none."""
    try:
        if item.asked == "step":
            steps = forward_steps(decodes=float(item.in_flight), kv_tokens=float(item.in_flight * item.isl))
            return _priced(item, forward_work(item.scenario, steps, calibration), np.ones(1), 0.0)
        limits = _limits(item)
        if isinstance(limits, str):
            return limits
        batch = closed_batch(_lengths(item), limits)
        work = forward_work(item.scenario, batch.steps, calibration)
        return _priced(item, work, *_figure(item, batch))
    except MissingNumber as missing:
        return f"x_chip: {missing.path} of {missing.owner} is not published"


def _figure(item: Inference, batch: ClosedBatch) -> tuple[Array, float]:
    """How often each composition counts in what was measured, and the tokens over it."""
    mesh, plan = item.scenario.plan.mesh, item.scenario.plan
    gained = plan.speculation.tokens_per_step if plan.speculation else 1.0
    if item.asked == "ttft":
        return batch.ttft_shares(), 0.0
    if item.asked == "tpot":
        middle = item.static and item.median
        return (batch.median_step() if middle else batch.tpot_shares()) / gained, 0.0
    n = item.row["n"]
    replicas = max(1.0, float(n) / mesh.ranks) if n else 1.0
    tokens = batch.outputs * mesh.dp * mesh.pp * gained
    return batch.shares(), tokens / mesh.ranks if item.over == "chip" else tokens * replicas


def _priced(item: Inference, load: ForwardWorkload, share: Array, amount: float) -> PricedRun:
    stages = load.work.shape[1]
    slowest = load.work.sum(0).sum(1).argmax()
    return PricedRun(
        item=item,
        work=stages * load.work[:, slowest] + load.draft,
        graphed=load.graphed,
        requests=load.requests,
        sends=load.sends * stages * (stages > 1),
        share=share * np.ones(len(load.graphed)),
        amount=amount,
    )


def _limits(item: Inference) -> Limits | str:
    """Requests at once and tokens of a step, as memory and the engine allow."""
    used = limits_of(item.scenario)
    if item.static:
        buckets = (item.scenario.engine.serves or BARE).static_shapes
        return Limits(batch=item.in_flight, tokens=max(item.in_flight * item.isl, 1), buckets=buckets)
    if item.disagg:
        return Limits(batch=item.in_flight, tokens=1_000_000_000)
    held = replace(
        used, gpu_memory_utilization=BENCHED.get(item.scenario.engine.id, used.gpu_memory_utilization)
    )  # fmt: skip
    fit = int(serving_memory(item.scenario, held).requests(item.isl + item.osl))
    if fit < 1:
        return f"tp: {item.scenario.model.id} and one request of {item.isl + item.osl} tokens do not fit on the chips"
    pp = item.scenario.plan.mesh.pp
    most = min(fit, item.in_flight or used.max_num_seqs)
    engine = item.scenario.engine.id
    return Limits(
        batch=max(1, most // pp),
        tokens=max(used.max_num_batched_tokens, item.isl + most // pp if engine == "tensorrt-llm" else 0),
        chunked=engine != "tensorrt-llm",
        alone=engine == "sglang",
    )


def _lengths(item: Inference) -> list[tuple[int, int, int]]:
    """Requests of one scheduler with their lengths; spread evenly where they differ."""
    pp = item.scenario.plan.mesh.pp
    many = max(1, item.requests // pp)
    prompt = 1 if item.disagg else item.isl
    if item.spread == 1.0:
        return [(many, prompt, item.osl)]
    draw = np.random.default_rng(SEED)
    shares = draw.uniform(item.spread, 1.0, (many, 2))
    return [(1, max(1, round(prompt * a)), max(1, round(item.osl * b))) for a, b in shares.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunColumns:
    """Steps of many runs side by side, so that one pass prices them all under any parameters."""

    runs: tuple[PricedRun, ...]
    work: Array
    graphed: Mask
    requests: Array
    sends: Array
    share: Array
    own: Index

    def predicted(self, values: Mapping[str, Array]) -> Array:
        """The figure of every run in its own unit; values of parameters by run."""
        each = {name: column[self.own] for name, column in values.items()}
        step_s = np.sum(list(class_seconds(self.work, self.graphed, each).values()), axis=0)
        step_s = step_s + self.sends + host_seconds(self.requests, each)
        waits, others, amount, scale = self._facts()
        ahead = waits * (values["first_token"] + others * values["arrival"])
        total = np.bincount(self.own, step_s * self.share, len(self.runs)) + ahead
        return np.where(amount > 0, amount / total, total * scale)

    def slopes(self, values: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Logarithm of every figure, and how it answers to the logarithm of each parameter of its run."""
        each = {name: column[self.own] for name, column in values.items()}
        parts = class_seconds(self.work, self.graphed, each)
        kernels, meetings = self.work[6], self.work[8]
        by_vector = self.work[9] * each["decode_vector"] > self.work[4] * each["decode_attention"]
        gaps = kernels * each["kernel"]
        busy = np.sum([parts[name] for name in parts if name != "kernel"], axis=0) + gaps
        waited = np.where(self.graphed, 0.0, kernels * each["issue"])
        both = beside(busy, waited)
        shown = self.share * (busy / both) ** (SIDE_BY_SIDE - 1)
        host = host_seconds(self.requests, each)
        step_s = np.sum(list(parts.values()), axis=0) + self.sends + host
        answers = {
            "product_memory": self.work[0] * each["product_memory"] * shown,
            "product_compute": self.work[1] * each["product_compute"] * shown,
            "expert_product": self.work[2] * each["expert_product"] * shown,
            "expert_memory": self.work[10] * each["expert_memory"] * shown,
            "prefill_attention": parts["attention"] * shown,
            "decode_attention": np.where(by_vector, 0.0, parts["kv-cache"]) * shown,
            "decode_vector": np.where(by_vector, parts["kv-cache"], 0.0) * shown,
            "kernel": gaps * shown,
            "wire": self.work[7] * each["wire"] * shown,
            "all_reduce": meetings * each["all_reduce"] * shown,
            "issue": waited * (waited / both) ** (SIDE_BY_SIDE - 1) * self.share,
            "step": np.where(self.requests > 0, each["step"], 0.0) * self.share,
            "request": self.requests * each["request"] * self.share,
        }
        many = len(self.runs)
        waits, others, amount, scale = self._facts()
        waited_s = waits * (values["first_token"] + others * values["arrival"])
        total = np.bincount(self.own, step_s * self.share, many) + waited_s
        sign = np.where(amount > 0, -1.0, 1.0) / total
        found = {name: np.bincount(self.own, column, many) * sign for name, column in answers.items()}
        figure = np.where(amount > 0, amount / total, total * scale)
        narrow = np.array([is_weight_only(run.item.scenario) for run in self.runs])
        found["weight_only"] = np.where(narrow, sum(found[name] for name in PRODUCTS), 0.0)
        ahead = {
            "first_token": waits * values["first_token"] * sign,
            "arrival": waits * others * values["arrival"] * sign,
        }
        return np.log(figure), found | ahead

    def _facts(self) -> tuple[Array, Array, Array, Array]:
        facts = [(float(run.waits), run.others, run.amount, run.item.scale) for run in self.runs]
        waits, others, amount, scale = np.array(facts, dtype=np.float64).reshape(-1, 4).T
        return waits, others, amount, scale


def run_columns(runs: Sequence[PricedRun]) -> RunColumns:
    """The columns of several runs."""
    return RunColumns(
        runs=tuple(runs),
        work=np.concatenate([run.work for run in runs], axis=1),
        graphed=np.concatenate([run.graphed for run in runs]),
        requests=np.concatenate([run.requests for run in runs]),
        sends=np.concatenate([run.sends for run in runs]),
        share=np.concatenate([run.share for run in runs]),
        own=np.repeat(np.arange(len(runs)), [len(run.graphed) for run in runs]),
    )


def run_values(runs: Sequence[PricedRun], serving: ServingCalibration) -> dict[str, Array]:
    """Every serving parameter by run."""
    each = [run.owners for run in runs]
    known = {own: {name: serving.owned(name, own) for name in SERVING_PARAMETERS} for own in set(each)}
    values = {name: np.array([known[own][name] for own in each]) for name in SERVING_PARAMETERS}
    narrow = np.array([is_weight_only(run.item.scenario) for run in runs])
    slower = np.where(narrow, values["weight_only"], 1.0)
    return values | {name: values[name] * slower for name in PRODUCTS}
