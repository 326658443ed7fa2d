"""Turn published post-training runs into the few parameters of `rl.parameters`, and say how far off they are.

Phases of every row are predicted once with all factors at 1. A step is then a sum, or a maximum of two sums, of phases
times factors, so that a fit needs no further prediction:

    synchronous    (1 + o) (r G + (d + e l) n + k m + c (f F + t U) + w + s)
    asynchronous   max(r G + (d + e l) n + k m, f F + t U) + w + o (f F + t U + w)

G, F, U = rollout, forward passes, updates; r, f, t their factors; d = seconds more of each of n engine steps, e of each
of l layers where kernels are launched one by one, k of each of m tokens that a replica samples; c = factor of shared
chips; w = weight sync with its software; s = switching; o = share between phases. The logarithm of
every parameter is drawn to where it starts, as nobody knows how other clusters differ.

Errors are of families: all rows of a framework are predicted by parameters that saw none of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from scipy.optimize import minimize

from ridgeline.calibrate.truth.rl_rows import (
    PHASE_COLUMNS,
    RlRow,
    length_key,
    longest_answer,
    reasons,
    rl_row,
    turns_of,
    usual_answer,
)
from ridgeline.calibrate.truth.rows import Row, Skipped
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonObject
from ridgeline.plan.rl_roles import rollout_scenario
from ridgeline.plan.rl_workload import LognormalTokens
from ridgeline.rl import CONVERTED, RlParameters, RlPrediction, predict_rl, weight_tensors

NEUTRAL = RlParameters()
FITTED = (
    *("rollout_factor", "training_factor", "forward_factor", "colocated_factor", "decode_step_s"),
    *("token_s", "eager_layer_s", "other_share"),
    *("tensor_s", "bucket_s", "convert_s", "switch_s"),
)
START = RlParameters(
    colocated_factor=1.2,
    decode_step_s=2e-3,
    token_s=2e-5,
    eager_layer_s=5e-4,
    other_share=0.06,
    tensor_s=1.0e-3,
    bucket_s=0.02,
    convert_s=4e-4,
    switch_s=4.0,
)
PRIOR = 0.5  # standard deviation of the logarithm of a parameter about where it starts: assumed
FACTORS, FACTOR_PRIOR = ("rollout_factor", "training_factor"), 0.2  # of phases that serving and training rows tell
TOGETHER = 0.3  # correlation of the errors of a family's rows: assumed
NOISE = 0.25  # of a step or phase, in logarithms: assumed
PHASE_WEIGHT = 0.5  # of a phase's squared error over a step's
TRUSTED = ("A", "B")  # grades of rows that parameters are fitted on; lengths are fitted for all
LENGTHS = tuple(float(tokens) for tokens in np.geomspace(200, 12000, 18).round())  # mean answers that are tried
PRIOR_MODELS = 2.0  # models that what is usual of a class is drawn to where it starts by
FORWARD = ("log-probabilities", "reference", "reward_model", "critic", "teacher")
UPDATES = ("update", "critic update")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPhases:
    """What a row's step consists of with all parameters neutral, in seconds."""

    read: RlRow
    phases: Mapping[str, float]
    tensors: int
    buckets: int
    conversion_tensors: int
    wire_s: float
    sync_every: int
    overlapped: bool
    frees: bool
    colocated: bool
    copies_s: float
    steps: float
    layers: int
    sampled_tokens: float
    tokens_per_chip: float


def row_phases(read: RlRow) -> RowPhases | Skipped:
    """The phases of a row with neutral parameters, or why there are none."""
    results = predict_rl(read.scenario, parameters=NEUTRAL, draws=3)
    if not isinstance(results, RlPrediction):
        return Skipped(id=read.row.id, reason=str(results).replace("\n", "; ")[:300])
    sync = results.weight_sync
    assert sync is not None  # every row of the table generates
    rl = read.scenario.plan.rl
    by_tensor = sync.method == "tensor"
    return RowPhases(
        read=read,
        phases=MappingProxyType(results.phase_seconds),
        tensors=sync.pieces if by_tensor else 0,
        buckets=0 if by_tensor else sync.pieces,
        conversion_tensors=weight_tensors(read.scenario.model) if sync.method in CONVERTED else 0,
        wire_s=sync.seconds,
        sync_every=rl.sync_every,
        overlapped=rl.placement in ("one-step-off", "async"),
        frees=not rl.separate and rl.free_engine,
        colocated=not rl.separate,
        copies_s=results.phase_seconds.get("switch", 0.0),
        steps=_steps(results),
        layers=read.scenario.model.layers if rl.rollout.eager else 0,
        sampled_tokens=results.answer_tokens / max(rollout_scenario(read.scenario).plan.serving.replicas or 1, 1),
        tokens_per_chip=results.tokens / read.scenario.system.chips,
    )


def _steps(results: RlPrediction) -> float:
    """Steps of the rollout engine in one step: of the slowest replica, or of a stream as many as its time asks for."""
    times = results.rollout
    if times is None or not times.seconds:
        return 0.0
    return times.steps * results.phase_seconds["generate"] / times.seconds


def combine(row: RowPhases, parameters: RlParameters) -> dict[str, float]:
    """Seconds of a row's phases under parameters, the step and the weight sync among them."""
    sync = (
        max(row.wire_s, row.conversion_tensors * parameters.convert_s)
        + row.tensors * parameters.tensor_s
        + row.buckets * parameters.bucket_s
    )
    per_item = sync / row.sync_every
    shared = parameters.colocated_factor if row.colocated else 1.0
    forward = parameters.forward_factor * shared * sum(row.phases.get(name, 0.0) for name in FORWARD)
    update = parameters.training_factor * shared * sum(row.phases.get(name, 0.0) for name in UPDATES)
    rollout = parameters.rollout_factor * row.phases.get("generate", 0.0) + row.phases.get("verify", 0.0)
    rollout += row.steps * (parameters.decode_step_s + row.layers * parameters.eager_layer_s)
    rollout += row.sampled_tokens * parameters.token_s
    switch = row.copies_s + (parameters.switch_s if row.frees else 0.0)
    training = forward + update + switch
    if row.overlapped:
        step = max(rollout, training) + per_item + parameters.other_share * (training + per_item)
    else:
        step = (1 + parameters.other_share) * (rollout + training + per_item)
    results = {
        "step_time_s": step,
        "t_sync_s": sync,
        "tokens_per_s": row.tokens_per_chip / step,
        "t_rollout_s": rollout,
    }
    for column in ("t_logprob_s", "t_ref_s"):
        results[column] = (
            parameters.forward_factor * shared * sum(row.phases.get(name, 0.0) for name in PHASE_COLUMNS[column])
        )
    return results | {"t_train_s": update}


def phase_pairs(row: RowPhases) -> Iterable[tuple[str, float]]:
    """Columns of phases that a row states and a prediction has."""
    for column, measured in row.read.phases.items():
        if column != "t_sync_s" and not (column == "t_rollout_s" and row.overlapped):
            yield column, measured


def loss_of(rows: Sequence[RowPhases], parameters: RlParameters) -> float:
    """Sum of log errors of steps, and of phases at less weight: squared while small, linear where a row is far off.

    2 (sqrt(1 + (e / n)^2) - 1)      n = `NOISE`

    Rows of a family are wrong together: m of them count as m / (1 + `TOGETHER` (m - 1)).
    """
    total = 0.0
    many = Counter(row.read.family for row in rows)
    for row in rows:
        results = combine(row, parameters)
        own = _soft(math.log(results[row.read.metric] / row.read.measured))
        for column, measured in phase_pairs(row):
            if results[column] > 0:
                own += PHASE_WEIGHT * _soft(math.log(results[column] / measured))
        total += own / (1 + TOGETHER * (many[row.read.family] - 1))
    return total


def _soft(error: float) -> float:
    return 2 * (math.sqrt(1 + (error / NOISE) ** 2) - 1)


def fit_parameters(rows: Sequence[RowPhases]) -> RlParameters:
    """The parameters that explain rows best, each drawn to where it starts."""
    start = np.array([math.log(getattr(START, name)) for name in FITTED])
    priors = np.array([FACTOR_PRIOR if name in FACTORS else PRIOR for name in FITTED])

    def loss(logs: Array) -> float:
        parameters = _with(logs)
        return loss_of(rows, parameters) + float((((logs - start) / priors) ** 2).sum())

    results = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-4, "fatol": 1e-6})
    return _with(results.x)


def _with(logs: Array) -> RlParameters:
    values: JsonObject = {name: float(math.exp(value)) for name, value in zip(FITTED, logs, strict=True)}
    return replace(START, **values)


# -- lengths that nobody prints ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _phases_at(id: str, cells: tuple[tuple[str, str], ...], tokens: float) -> RowPhases | Skipped:
    row = Row(id=id, table="rl.csv", cells=MappingProxyType(dict(cells)))
    read = rl_row(row, NEUTRAL, {length_key(row): tokens})
    return read if isinstance(read, Skipped) else row_phases(read)


def phases_at(row: Row, tokens: float) -> RowPhases | Skipped:
    """A row's phases with this mean answer, where the row does not state lengths."""
    return _phases_at(row.id, tuple(row.cells.items()), tokens)


def lacks_lengths(row: Row) -> bool:
    """Whether nobody prints a row's lengths, and they matter for what it measures."""
    return not row["response_len_mean"] and row["x_measure"] != "weight sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class RlFit:
    """Parameters, and a mean answer in tokens for every model that prints none."""

    parameters: RlParameters
    lengths: Mapping[str, float]


def fit_rows(rows: Sequence[Row], *, rounds: int = 3) -> RlFit:
    """Parameters and lengths in turn: each round fits one with the other as it is."""
    parameters = START
    lengths = {length_key(row): usual_answer(row, START) for row in rows if lacks_lengths(row)}
    trusted_rows = [row for row in rows if row["x_trust"] in TRUSTED]
    for _ in range(rounds):
        parameters = fit_parameters(rows_at(trusted_rows, lengths))
        lengths = {key: best_length(_of_key(rows, key), parameters) for key in lengths}
    usual: JsonObject = {**usual_answers(trusted_rows, lengths)}
    return RlFit(parameters=replace(parameters, **usual), lengths=lengths)


def usual_answers(rows: Sequence[Row], lengths: Mapping[str, float]) -> dict[str, float]:
    """Mean answers of models that answer at once and of those that reason, one word of each model, and a prior of two.

    Agents take no part: the tokens of a turn are assumed.
    """
    logs: dict[str, dict[str, float]] = {"answer_tokens": {}, "reasoning_tokens": {}}
    for row in rows:
        read = rl_row(row, NEUTRAL, lengths)
        if isinstance(read, Skipped) or row["x_measure"] == "weight sync" or turns_of(row) > 1 or _is_agent(row):
            continue
        response = read.scenario.workload.data.response_tokens
        assert isinstance(response, LognormalTokens)  # as rows are read
        uncut = NEUTRAL.uncut_answer(response.mean, longest_answer(row))
        logs["reasoning_tokens" if reasons(row) else "answer_tokens"][length_key(row)] = math.log(uncut)
    answer = {}
    for name, own in logs.items():
        start = math.log(getattr(NEUTRAL, name))
        answer[name] = math.exp((sum(own.values()) + PRIOR_MODELS * start) / (len(own) + PRIOR_MODELS))
    return answer


def _is_agent(row: Row) -> bool:
    """Whether a row's lengths are those of conversations with tools."""
    return "swe" in row["algorithm"].lower()


def best_length(rows: Sequence[Row], parameters: RlParameters) -> float:
    """The mean answer that explains rows of one model best, drawn to what is usual."""
    return min(LENGTHS, key=lambda tokens: _length_loss(rows, tokens, parameters))


def _length_loss(rows: Sequence[Row], tokens: float, parameters: RlParameters) -> float:
    results = [entry for row in rows if isinstance(entry := phases_at(row, tokens), RowPhases)]
    if not results:
        return math.inf
    unusual = math.log(tokens / usual_answer(rows[0], parameters)) / parameters.answer_spread
    return loss_of(results, parameters) + unusual**2


def rows_at(rows: Sequence[Row], lengths: Mapping[str, float]) -> list[RowPhases]:
    """Phases of all rows with these lengths."""
    results = [phases_at(row, lengths.get(length_key(row), usual_answer(row, NEUTRAL))) for row in rows]
    return [entry for entry in results if isinstance(entry, RowPhases)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row predicted by parameters that saw nothing of its family.

    cold         with lengths as strangers have them
    calibrated   with one number for its model, from the model's other rows; None where the table has no other
    """

    id: str
    family: str
    model: str
    metric: str
    measured: float
    cold: float
    calibrated: float | None = None
    states_lengths: bool = True

    @property
    def log_error(self) -> float:
        """log(predicted / measured) of seconds, cold: above 0 is too slow a prediction."""
        return (-1.0 if self.metric == "tokens_per_s" else 1.0) * math.log(self.cold / self.measured)


def left_out(rows: Sequence[Row]) -> list[LeftOut]:
    """Every row under the parameters of the other families, then with one number for each model."""
    results: list[LeftOut] = []
    for family in dict.fromkeys(row["x_family"] for row in rows):
        parameters = fit_rows([row for row in rows if row["x_family"] != family]).parameters
        own = [_stranger(row, parameters) for row in rows if row["x_family"] == family]
        results += [entry for entry in own if entry is not None]
    return [replace(entry, calibrated=_calibrate_entry(entry, results)) for entry in results]


def _stranger(row: Row, parameters: RlParameters) -> LeftOut | None:
    """A row under parameters that saw none of its family."""
    at_usual = phases_at(row, round(usual_answer(row, parameters)))
    if not isinstance(at_usual, RowPhases):
        return None
    metric = at_usual.read.metric
    return LeftOut(
        id=row.id, family=row["x_family"], model=at_usual.read.scenario.model.id, metric=metric,
        measured=at_usual.read.measured, cold=combine(at_usual, parameters)[metric],
        states_lengths=not lacks_lengths(row),
    )  # fmt: skip


def _calibrate_entry(entry: LeftOut, rows: Sequence[LeftOut]) -> float | None:
    """A row over what its model's other rows are off by together, drawn to 1 by one row.

    log pace = sum of n log errors / (n + 1)
    """
    errors = [other.log_error for other in rows if other.model == entry.model and other.id != entry.id]
    pace = math.exp(sum(errors) / (len(errors) + 1))
    return (entry.cold * pace if entry.metric == "tokens_per_s" else entry.cold / pace) if errors else None


def _of_key(rows: Sequence[Row], key: str) -> list[Row]:
    return [row for row in rows if length_key(row) == key and lacks_lengths(row)]
