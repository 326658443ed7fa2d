"""Turn published post-training runs into the few parameters of `rl.parameters`, and say how far off they are.

Phases of every row are predicted once with all factors at 1. A step is then a sum, or a maximum of two sums, of phases
times factors, so that a fit needs no further prediction:

    synchronous    (1 + o) (r G + d n + c (f F + t U) + w + s)
    asynchronous   max(r G + d n, f F + t U) + w + o (f F + t U + w)

G, F, U = rollout, forward passes, updates; r, f, t their factors; d = seconds more of each of n engine steps; c =
factor of shared chips; w = weight sync with its software; s = switching; o = share between phases. The logarithm of
every parameter is drawn to where it starts, as nobody knows how other clusters differ.

Errors are of families: all rows of a framework are predicted by parameters that saw none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from scipy.optimize import minimize

from ridgeline.calibrate.truth.rl_rows import DEFAULT_LONGEST, PHASE_COLUMNS, RlRow, length_key, rl_row
from ridgeline.calibrate.truth.rows import Row, Skipped
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonObject
from ridgeline.plan.rl_workload import LognormalTokens
from ridgeline.rl import RlParameters, RlPrediction, predict_rl

NEUTRAL = RlParameters()
FITTED = (
    *("rollout_factor", "training_factor", "forward_factor", "colocated_factor", "decode_step_s", "other_share"),
    *("tensor_s", "bucket_s", "switch_s"),
)
START = RlParameters(
    colocated_factor=1.2, decode_step_s=2e-3, other_share=0.06, tensor_s=1.0e-3, bucket_s=0.02, switch_s=4.0
)
PRIOR = 0.5  # standard deviation of the logarithm of a parameter about where it starts: assumed
NOISE = 0.25  # of a step or phase, in logarithms: assumed
PHASE_WEIGHT = 0.5  # of a phase's squared error over a step's
TRUSTED = ("A", "B")  # grades of rows that parameters are fitted on; lengths are fitted for all
LENGTHS = tuple(float(tokens) for tokens in np.geomspace(300, 9000, 14).round())  # mean answers that are tried
FORWARD = ("log-probabilities", "reference", "reward_model", "critic", "teacher")
UPDATES = ("update", "critic update")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPhases:
    """What a row's step consists of with all parameters neutral, in seconds."""

    read: RlRow
    phases: Mapping[str, float]
    tensors: int
    buckets: int
    wire_s: float
    sync_every: int
    overlapped: bool
    frees: bool
    colocated: bool
    copies_s: float
    steps: float
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
        wire_s=sync.seconds,
        sync_every=rl.sync_every,
        overlapped=rl.placement in ("one-step-off", "async"),
        frees=not rl.separate and rl.free_engine,
        colocated=not rl.separate,
        copies_s=results.phase_seconds.get("switch", 0.0),
        steps=_steps(results),
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
    sync = row.wire_s + row.tensors * parameters.tensor_s + row.buckets * parameters.bucket_s
    per_item = sync / row.sync_every
    shared = parameters.colocated_factor if row.colocated else 1.0
    forward = parameters.forward_factor * shared * sum(row.phases.get(name, 0.0) for name in FORWARD)
    update = parameters.training_factor * shared * sum(row.phases.get(name, 0.0) for name in UPDATES)
    rollout = parameters.rollout_factor * row.phases.get("generate", 0.0) + row.phases.get("verify", 0.0)
    rollout += row.steps * parameters.decode_step_s
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
    """
    total = 0.0
    for row in rows:
        results = combine(row, parameters)
        total += _soft(math.log(results[row.read.metric] / row.read.measured))
        for column, measured in phase_pairs(row):
            if results[column] > 0:
                total += PHASE_WEIGHT * _soft(math.log(results[column] / measured))
    return total


def _soft(error: float) -> float:
    return 2 * (math.sqrt(1 + (error / NOISE) ** 2) - 1)


def fit_parameters(rows: Sequence[RowPhases]) -> RlParameters:
    """The parameters that explain rows best, each drawn to where it starts."""
    start = np.array([math.log(getattr(START, name)) for name in FITTED])

    def loss(logs: Array) -> float:
        parameters = _with(logs)
        return loss_of(rows, parameters) + float(((logs - start) ** 2).sum()) / PRIOR**2

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
    lengths = {length_key(row): 1200.0 for row in rows if lacks_lengths(row)}
    trusted_rows, parameters = [row for row in rows if row["x_trust"] in TRUSTED], START
    for _ in range(rounds):
        parameters = fit_parameters(rows_at(trusted_rows, lengths))
        lengths = {key: best_length(_of_key(rows, key), parameters) for key in lengths}
    roots = [entry.root for row in rows if (entry := _row_answer_root(row, lengths))]
    usual = float(np.exp(np.mean(np.log(roots)))) if roots else NEUTRAL.answer_root
    return RlFit(parameters=replace(parameters, answer_root=usual), lengths=lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRoot:
    """Mean answer of a row over the square root of its longest."""

    root: float


def _row_answer_root(row: Row, lengths: Mapping[str, float]) -> AnswerRoot | None:
    read = rl_row(row, NEUTRAL, lengths)
    if isinstance(read, Skipped) or row["x_measure"] == "weight sync":
        return None
    response = read.scenario.workload.data.response_tokens
    if not isinstance(response, LognormalTokens) or not response.high:
        return None
    return AnswerRoot(root=response.mean / response.high**0.5)


def best_length(rows: Sequence[Row], parameters: RlParameters) -> float:
    """The mean answer that explains rows of one model best."""
    return min(LENGTHS, key=lambda tokens: _length_loss(rows, tokens, parameters))


def _length_loss(rows: Sequence[Row], tokens: float, parameters: RlParameters) -> float:
    results = [entry for row in rows if isinstance(entry := phases_at(row, tokens), RowPhases)]
    return loss_of(results, parameters) if results else math.inf


def rows_at(rows: Sequence[Row], lengths: Mapping[str, float]) -> list[RowPhases]:
    """Phases of all rows with these lengths."""
    results = [phases_at(row, lengths.get(length_key(row), 1200.0)) for row in rows]
    return [entry for entry in results if isinstance(entry, RowPhases)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row predicted by parameters that saw nothing of its family.

    cold         with lengths as strangers have them
    calibrated   with one number for its model, fitted on the model's rows
    """

    id: str
    family: str
    model: str
    metric: str
    measured: float
    cold: float
    calibrated: float


def left_out(rows: Sequence[Row]) -> list[LeftOut]:
    """Every row under the parameters of the other families."""
    results: list[LeftOut] = []
    for family in dict.fromkeys(row["x_family"] for row in rows):
        fit = fit_rows([row for row in rows if row["x_family"] != family])
        results += _strangers([row for row in rows if row["x_family"] == family], fit.parameters)
    return results


def _strangers(rows: Sequence[Row], parameters: RlParameters) -> list[LeftOut]:
    """Rows of a family under parameters that saw none of them; then with one number for each model.

    The number is the mean answer where nobody prints it, else what the model's steps are off by together.
    """
    keys = dict.fromkeys(length_key(row) for row in rows)
    lengths = {key: best_length(own_part, parameters) for key in keys if (own_part := _of_key(rows, key))}
    results: list[LeftOut] = []
    for row in rows:
        usual = round(parameters.usual_answer(float(row["response_len_max"] or DEFAULT_LONGEST)))
        cold, fitted_value = (phases_at(row, tokens) for tokens in (usual, lengths.get(length_key(row), usual)))
        if isinstance(cold, RowPhases) and isinstance(fitted_value, RowPhases):
            metric = cold.read.metric
            results.append(
                LeftOut(
                    id=row.id, family=row["x_family"], model=length_key(row), metric=metric,
                    measured=cold.read.measured, cold=combine(cold, parameters)[metric],
                    calibrated=combine(fitted_value, parameters)[metric],
                )
            )  # fmt: skip
    pace = {key: paces([entry for entry in results if entry.model == key]) for key in keys if key not in lengths}
    return [
        replace(entry, calibrated=entry.cold / pace.get(entry.model, 1.0)) if entry.model in pace else entry
        for entry in results
    ]


def paces(rows: Sequence[LeftOut]) -> float:
    """Predicted over measured of rows together: the geometric mean."""
    return math.exp(float(np.mean([math.log(entry.cold / entry.measured) for entry in rows]))) if rows else 1.0


def _of_key(rows: Sequence[Row], key: str) -> list[Row]:
    return [row for row in rows if length_key(row) == key and lacks_lengths(row)]
