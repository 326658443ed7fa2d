"""Turn measured serving runs into predictions and serving parameters, and say what these are worth on new ones.

row -> scenario and load -> closed batch: compositions of steps -> nominal work, once
nominal work x serving parameters -> seconds of steps -> what the row measured, for a fit as often as it likes

Each parameter has a common value and moves for a family of chips and for an engine, as far as runs of these insist:

    minimise   sum over runs  w (log predicted - log measured)^2 / s^2   +   sum over offsets  (offset / prior)^2

s = what a kind of row is expected to scatter, w = 1 / (1 + (residual / 3 s)^2): a row far off counts less and less.
Own measurements are not doubted: w = 1. Rows that took part in the fit are predicted by parameters that saw nothing of
their configuration (own rows apart, which are few and of one machine), all others by the shipped ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from zlib import crc32

import numpy as np

from ridgeline import sim
from ridgeline.calibrate.truth.inference_rows import InferenceRow, inference_of
from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped, read_table
from ridgeline.calibrate.validation import Validation, ValidationCase
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import MissingNumber
from ridgeline.core.files import write_text
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.cost import (
    SERVING_PARAMETERS,
    Calibration,
    Owners,
    ServingCalibration,
    default_calibration,
    owners,
    shipped_serving,
)
from ridgeline.cost.fitting import SHIPPED_SERVING
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.plan.serving_plan import BARE
from ridgeline.serving.simulation import ClosedBatch, Limits, closed_batch
from ridgeline.sim import forward_work as forward

INFERENCE = "inference.csv"
WIDE = (0.4, 2.5)  # around a prediction of a kind that no row was fitted of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedServing:
    """What ships: the parameters of every fold, rows that were fitted, and quantiles of their residuals by kind."""

    folds: tuple[ServingCalibration, ...] = ()
    fitted: frozenset[str] = frozenset()
    spread: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))


@cache
def shipped_folds() -> ShippedServing:
    """The folds that ship, none before there are any."""
    data: JsonObject = json.loads(SHIPPED_SERVING.read_text(encoding="utf-8")) if SHIPPED_SERVING.exists() else {}
    return ShippedServing(
        folds=tuple(ServingCalibration(offsets=offsets) for offsets in data.get("folds", ())),
        fitted=frozenset(data.get("fitted", ())),
        spread={kind: (low, high) for kind, (low, high) in data.get("spread", {}).items()},
    )


def priced_runs(rows: Iterable[Row], calibration: Calibration | None = None) -> tuple[list[PricedRun], list[Skipped]]:
    """Rows as priced runs, and those that cannot be predicted with their reasons."""
    used = calibration or default_calibration()
    runs: list[PricedRun] = []
    skipped_rows: list[Skipped] = []
    for row in rows:
        if isinstance(item := inference_of(row), Skipped):
            skipped_rows.append(item)
        elif isinstance(run := price_run(item, used), str):
            skipped_rows.append(Skipped(id=row.id, reason=run))
        elif run.contradiction:
            skipped_rows.append(Skipped(id=row.id, reason=run.contradiction))
        else:
            runs.append(run)
    return runs, skipped_rows


def kind_of_run(run: PricedRun) -> str:
    """What residuals are told apart by: the kind of row and what it measured."""
    return f"{run.item.kind}/{run.item.asked}"


def validate_inference(rows: Iterable[Row], calibration: Calibration | None = None) -> Validation:
    """The cases of a table of serving runs, each in its metric's own unit."""
    runs, skipped_rows = priced_runs(rows, calibration)
    shipped_fit = shipped_folds()
    is_left_out = [
        run.item.row.id in shipped_fit.fitted and run.item.kind != "own" and bool(shipped_fit.folds) for run in runs
    ]
    fold = [fold_of(run.item.group) if in_fold else -1 for run, in_fold in zip(runs, is_left_out, strict=True)]
    predicted_s = np.zeros(len(runs))
    for place in set(fold):
        in_fold = np.array([place_of == place for place_of in fold])
        fold_runs = [run for run, place_of in zip(runs, in_fold, strict=True) if place_of]
        serving = shipped_serving() if place < 0 else shipped_fit.folds[place]
        predicted_s[in_fold] = run_columns(fold_runs).predict_runs(run_values(fold_runs, serving))
    cases = tuple(
        ValidationCase.of(
            run.item.row, run.item.measured, value, shipped_fit.spread.get(kind_of_run(run), WIDE), part=run.item.kind,
            chip=run.item.scenario.system.chip.id, engine=run.item.scenario.engine.id,
            cross_validated=is_cross_validated, assumptions=run.item.notes, metric=run.item.row["metric"],
        )
        for run, value, is_cross_validated in zip(runs, predicted_s.tolist(), is_left_out, strict=True)
    )  # fmt: skip
    return Validation(kind="inference", cases=cases, skipped=tuple(skipped_rows))


def refit_serving(progress: ProgressCallback = ignore_progress) -> JsonObject:
    """Fit the bundled rows, write the parameters that ship, and say what they are worth."""
    _, rows = read_table(TRUTH / INFERENCE, ("inference",))
    progress(0, 2, f"{len(rows)} rows, priced")
    runs, skipped_rows = priced_runs(rows)
    progress(1, 2, f"{len(runs)} runs, cross-validated")
    fit = cross_validate_serving(runs, f"{len(runs)} rows of {INFERENCE}")
    measured_s = np.array([run.item.measured for run in runs])
    own_predicted = run_columns(runs).predict_runs(run_values(runs, fit.full))
    predicted_s = np.where([run.item.kind == "own" for run in runs], own_predicted, fit.predicted)
    off = np.log(predicted_s / measured_s)
    kinds = np.array([kind_of_run(run) for run in runs])
    spreads, errors = {}, {}
    for kind in sorted(set(kinds.tolist())):
        offs = off[kinds == kind]
        least, highest = np.quantile(offs, [0.05, 0.95])
        margin = 1 + 3 / len(offs)
        spreads[kind] = [round(float(np.exp(-highest * margin)), 4), round(float(np.exp(-least * margin)), 4)]
        errors[kind] = {"n": len(offs), "mape": round(float(np.abs(np.exp(offs) - 1).mean()), 4)}
    table = {
        "source": fit.full.source,
        "offsets": dict(sorted(fit.full.offsets.items())),
        "spread": spreads,
        "errors": errors,
        "fitted": [run.item.row.id for run in runs],
        "folds": [dict(sorted(calibration.offsets.items())) for calibration in fit.folds],
    }
    write_text(SHIPPED_SERVING, json.dumps(table, indent=1) + "\n")
    return {"rows": len(rows), "predicted": len(runs), "skipped": len(skipped_rows), "errors": errors}


# what a kind of row scatters beyond what parameters explain: an own machine, a benchmark, a stranger's closed loop
SCATTER: Mapping[str, float] = MappingProxyType({"own": 0.02, "max-load": 0.1, "static": 0.1, "concurrency": 0.25})
FIRST_TOKEN_SCATTER = 0.8  # of a closed loop's first token, which hangs on how a client sends
# how far offsets may move, in logarithms: seconds are known to an order of magnitude, factors to tens of percent
PRIOR: Mapping[str, float] = MappingProxyType({"s": 1.0, "x": 0.3})
OWNED_PRIOR: Mapping[str, float] = MappingProxyType({"s": 0.7, "x": 0.2})
FEWEST = 4  # runs of a family or an engine, below which it keeps the common value
ROUNDS = 25
FOLDS = 10


def fit_serving(runs: Sequence[PricedRun], source: str = "") -> ServingCalibration:
    """The parameters that runs say, by Gauss-Newton with weights taken again in every round."""
    return _fit(run_columns(runs), source)


def _fit(columns: RunColumns, source: str) -> ServingCalibration:
    runs = columns.runs
    names, place, prior = _unknowns(runs)
    log_measured = np.log([run.item.measured for run in runs])
    scatter, is_own = np.array([scatter_of(run) for run in runs]), np.array([run.item.kind == "own" for run in runs])
    offsets = np.zeros(len(names))
    best, damping = np.inf, 1e-2
    for _ in range(ROUNDS):
        serving = ServingCalibration(offsets=dict(zip(names, offsets.tolist(), strict=True)))
        figure, slopes = columns.slopes(run_values(runs, serving))
        off = (figure - log_measured) / scatter
        weight = np.where(is_own, 1.0, 1 / (1 + (off / 3) ** 2))
        loss = float(np.where(is_own, off**2, 9 * np.log1p((off / 3) ** 2)).sum() + ((offsets / prior) ** 2).sum())
        if loss < best:
            best, best_offsets, damping = loss, offsets, max(damping / 3, 1e-6)
            jacobian = _jacobian(slopes, place, len(names)) / scatter[:, None]
            normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / prior**2)
            downhill = jacobian.T @ (weight * off) + offsets / prior**2
        else:
            damping *= 5
        offsets = best_offsets - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
    rounded_offsets = {
        name: round(float(value), 4) for name, value in zip(names, best_offsets, strict=True) if abs(value) >= 5e-5
    }
    return ServingCalibration(offsets=MappingProxyType(rounded_offsets), source=source)


def scatter_of(run: PricedRun) -> float:
    """What a run of this kind is expected to be off by, whatever the parameters."""
    return FIRST_TOKEN_SCATTER if run.waits and not run.item.static else SCATTER[run.item.kind]


def _unknowns(runs: Sequence[PricedRun]) -> tuple[list[str], Mapping[str, tuple[Index, ...]], Array]:
    """Keys of offsets; for each parameter which of them each run answers to (-1: none); how far each may move."""
    owner_rows = [run.owners for run in runs]
    owners = {kind: [getattr(row, kind) for row in owner_rows] for kind in ("family", "link", "engine")}
    many = {kind: Counter(column) for kind, column in owners.items()}
    names: list[str] = []
    prior: list[float] = []
    place: dict[str, tuple[Index, ...]] = {}
    for name, item in SERVING_PARAMETERS.items():
        columns = [np.full(len(runs), len(names))]
        names.append(name)
        prior.append(PRIOR[item.unit])
        for kind in item.per:
            places = {owner: len(names) + k for k, owner in enumerate(o for o, n in many[kind].items() if n >= FEWEST)}
            names += [f"{name}/{owner}" for owner in places]
            prior += [OWNED_PRIOR[item.unit]] * len(places)
            columns.append(np.array([places.get(owner, -1) for owner in owners[kind]]))
        place[name] = tuple(columns)
    return names, place, np.array(prior)


def _jacobian(slopes: Mapping[str, Array], place: Mapping[str, tuple[Index, ...]], many: int) -> Array:
    jacobian = np.zeros((len(next(iter(slopes.values()))), many))
    rows = np.arange(len(jacobian))
    for name, slope in slopes.items():
        for column in place[name]:
            has_owner = column >= 0
            jacobian[rows[has_owner], column[has_owner]] += slope[has_owner]
    return jacobian


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingFit:
    """Parameters from all runs, and predictions of each run by parameters that saw nothing of its configuration."""

    full: ServingCalibration
    folds: tuple[ServingCalibration, ...]
    predicted: Array


def fold_of(group: str) -> int:
    """The fold that a configuration is left out of: the same whatever else a table holds.

    >>> fold_of("h100-sxm/llama3-8b") == fold_of("h100-sxm/llama3-8b"), 0 <= fold_of("x") < FOLDS
    (True, True)
    """
    return crc32(group.encode()) % FOLDS


def cross_validate_serving(runs: Sequence[PricedRun], source: str = "") -> ServingFit:
    """Fit on all runs, and once for each fold on the rest of them."""
    fold = np.array([fold_of(run.item.group) for run in runs])
    predicted_s = np.zeros(len(runs))
    folds = []
    for place in range(FOLDS):
        training_runs = [run for run, run_fold in zip(runs, fold, strict=True) if run_fold != place]
        test_runs = [run for run, run_fold in zip(runs, fold, strict=True) if run_fold == place]
        fold_fit = fit_serving(training_runs, source) if training_runs else ServingCalibration()
        folds.append(fold_fit)
        if test_runs:
            predicted_s[fold == place] = run_columns(test_runs).predict_runs(run_values(test_runs, fold_fit))
    return ServingFit(full=fit_serving(runs, source), folds=tuple(folds), predicted=predicted_s)


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

    item: InferenceRow
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
        figure = f"{self.item.row['metric']} {self.item.measured:g}"
        return f"value: {figure}, but reading weights and cache takes {least / time:.1f} times as long; check the load"

    @property
    def owners(self) -> Owners:
        """What its parameters are known by."""
        return owners(self.item.scenario.system.chip, self.item.scenario.engine)

    @property
    def in_flight_requests(self) -> float:
        """Requests in flight beside one, whatever rank serves them; a static batch is handed over as one."""
        return 0.0 if self.item.static else float(self.item.in_flight * self.item.scenario.plan.mesh.dp - 1)

    @property
    def waits(self) -> bool:
        """Whether the first token was measured where it reaches a client, not where the engine computes it."""
        return self.item.asked == "ttft" and self.item.row["metric"].startswith("ttft")


def price_run(item: InferenceRow, calibration: Calibration) -> PricedRun | str:
    """A run's steps with their nominal work, or why there is none."""
    try:
        if item.asked == "step":
            steps = forward_steps(decodes=float(item.in_flight), kv_tokens=float(item.in_flight * item.isl))
            return _price_load(item, forward.forward_work(item.scenario, steps, calibration), np.ones(1), 0.0)
        limits = _limits(item)
        if isinstance(limits, str):
            return limits
        batch = closed_batch(_lengths(item), limits)
        work = forward.forward_work(item.scenario, batch.steps, calibration)
        return _price_load(item, work, *_figure(item, batch))
    except MissingNumber as missing:
        return f"x_chip: {missing.path} of {missing.owner} is not published"


def _figure(item: InferenceRow, batch: ClosedBatch) -> tuple[Array, float]:
    """How often each composition counts in what was measured, and the tokens over it."""
    mesh, plan = item.scenario.plan.mesh, item.scenario.plan
    tokens_per_step = plan.speculation.tokens_per_step if plan.speculation else 1.0
    if item.asked == "ttft":
        return batch.ttft_shares(), 0.0
    if item.asked == "tpot":
        middle = item.static and item.median
        return (batch.median_step() if middle else batch.tpot_shares()) / tokens_per_step, 0.0
    n = item.row["n"]
    replicas = max(1.0, float(n) / mesh.ranks) if n else 1.0
    tokens = batch.outputs * mesh.dp * mesh.pp * tokens_per_step
    return batch.shares(), tokens / mesh.ranks if item.over == "chip" else tokens * replicas


def _price_load(item: InferenceRow, load: forward.ForwardWorkload, share: Array, amount: float) -> PricedRun:
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


def _limits(item: InferenceRow) -> Limits | str:
    """Requests at once and tokens of a step, as memory and the engine allow."""
    used = sim.limits_of(item.scenario)
    if item.static:
        buckets = (item.scenario.engine.serves or BARE).static_shapes
        return Limits(batch=item.in_flight, tokens=max(item.in_flight * item.isl, 1), buckets=buckets)
    if item.disagg:
        return Limits(batch=item.in_flight, tokens=1_000_000_000)
    settings = replace(
        used, gpu_memory_utilization=BENCHED.get(item.scenario.engine.id, used.gpu_memory_utilization)
    )  # fmt: skip
    fit = int(sim.serving_memory(item.scenario, settings).requests(item.isl + item.osl))
    if fit < 1:
        return f"tp: {item.scenario.model.id} and one request of {item.isl + item.osl} tokens do not fit on the chips"
    pp = item.scenario.plan.mesh.pp
    largest_batch = min(fit, item.in_flight or used.max_num_seqs)
    engine = item.scenario.engine.id
    return Limits(
        batch=max(1, largest_batch // pp),
        tokens=max(used.max_num_batched_tokens, item.isl + largest_batch // pp if engine == "tensorrt-llm" else 0),
        chunked=engine != "tensorrt-llm",
        alone=engine == "sglang",
    )


def _lengths(item: InferenceRow) -> list[tuple[int, int, int]]:
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

    def predict_runs(self, values: Mapping[str, Array]) -> Array:
        """The figure of every run in its own unit; values of parameters by run."""
        row_values = {name: column[self.own] for name, column in values.items()}
        step_s = np.sum(list(forward.class_seconds(self.work, self.graphed, row_values).values()), axis=0)
        step_s = step_s + self.sends + forward.host_seconds(self.requests, row_values)
        return self._figures(values, step_s)[0]

    def _figures(self, values: Mapping[str, Array], step_s: Array) -> tuple[Array, Array, Array, Array]:
        """The figure of every run by seconds of steps, how it answers to a second, who waits, and for how many."""
        facts = [(float(run.waits), run.in_flight_requests, run.amount, run.item.scale) for run in self.runs]
        waits, in_flight, amount, scale = np.array(facts, dtype=np.float64).reshape(-1, 4).T
        ahead = waits * (values["first_token"] + in_flight * values["arrival"])
        total = np.bincount(self.own, step_s * self.share, len(self.runs)) + ahead
        figure = np.where(amount > 0, amount / total, total * scale)
        return figure, np.where(amount > 0, -1.0, 1.0) / total, waits, in_flight

    def slopes(self, values: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Logarithm of every figure, and how it answers to the logarithm of each parameter of its run."""
        row_values = {name: column[self.own] for name, column in values.items()}
        parts = forward.class_seconds(self.work, self.graphed, row_values)
        kernels, meetings = self.work[6], self.work[8]
        by_vector = self.work[9] * row_values["decode_vector"] > self.work[4] * row_values["decode_attention"]
        gaps = kernels * row_values["kernel"]
        busy = np.sum([parts[name] for name in parts if name != "kernel"], axis=0) + gaps
        issue_s = np.where(self.graphed, 0.0, kernels * row_values["issue"])
        joint_s = forward.overlap_host(busy, issue_s)
        busy_share = self.share * (busy / joint_s) ** (forward.SIDE_BY_SIDE - 1)
        host = forward.host_seconds(self.requests, row_values)
        step_s = np.sum(list(parts.values()), axis=0) + self.sends + host
        answers = {
            "product_memory": self.work[0] * row_values["product_memory"] * busy_share,
            "product_compute": self.work[1] * row_values["product_compute"] * busy_share,
            "expert_product": self.work[2] * row_values["expert_product"] * busy_share,
            "expert_memory": self.work[10] * row_values["expert_memory"] * busy_share,
            "prefill_attention": parts["attention"] * busy_share,
            "decode_attention": np.where(by_vector, 0.0, parts["kv-cache"]) * busy_share,
            "decode_vector": np.where(by_vector, parts["kv-cache"], 0.0) * busy_share,
            "kernel": gaps * busy_share,
            "wire": self.work[7] * row_values["wire"] * busy_share,
            "all_reduce": meetings * row_values["all_reduce"] * busy_share,
            "issue": issue_s * (issue_s / joint_s) ** (forward.SIDE_BY_SIDE - 1) * self.share,
            "step": np.where(self.requests > 0, row_values["step"], 0.0) * self.share,
            "request": self.requests * row_values["request"] * self.share,
        }
        many = len(self.runs)
        figure, sign, waits, in_flight = self._figures(values, step_s)
        run_slopes = {name: np.bincount(self.own, column, many) * sign for name, column in answers.items()}
        narrow = np.array([forward.is_weight_only(run.item.scenario) for run in self.runs])
        run_slopes["weight_only"] = np.where(narrow, sum(run_slopes[name] for name in forward.PRODUCTS), 0.0)
        ahead = {
            "first_token": waits * values["first_token"] * sign,
            "arrival": waits * in_flight * values["arrival"] * sign,
        }
        return np.log(figure), run_slopes | ahead


def run_columns(runs: Sequence[PricedRun]) -> RunColumns:
    """The columns of several runs."""
    columns = {
        name: np.concatenate([getattr(run, name) for run in runs], axis=-1)
        for name in ("work", "graphed", "requests", "sends", "share")
    }
    own = np.repeat(np.arange(len(runs)), [len(run.graphed) for run in runs])
    return RunColumns(runs=tuple(runs), own=own, **columns)


def run_values(runs: Sequence[PricedRun], serving: ServingCalibration) -> dict[str, Array]:
    """Every serving parameter by run."""
    owner_rows = [run.owners for run in runs]
    values = {}
    for name in SERVING_PARAMETERS:
        value_of = {owner: serving.owner_value(name, owner) for owner in set(owner_rows)}
        values[name] = np.array([value_of[owner] for owner in owner_rows])
    narrow = np.array([forward.is_weight_only(run.item.scenario) for run in runs])
    slower = np.where(narrow, values["weight_only"], 1.0)
    return values | {name: values[name] * slower for name in forward.PRODUCTS}
