"""Turn measured post-training runs into cases: a step, a weight sync or a rate beside its prediction, and the phases.

A row is predicted by the shipped parameters, with the length that was fitted for its model where nobody prints one and
the pace of its framework. Its interval is that of its framework, wider where its length is a guess. Rows that share
`x_pair` differ in placement: the ratio of asynchronous to synchronous is predicted too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ridgeline.calibrate.truth.rl_rows import PHASE_COLUMNS, RlRow, fitted_figures, rl_row
from ridgeline.calibrate.truth.rows import Row, Skipped
from ridgeline.calibrate.validation import Pair, PhaseCheck, Validation, ValidationCase
from ridgeline.plan.rl_workload import LognormalTokens
from ridgeline.rl import RlParameters, RlPrediction, predict_rl, shipped_parameters

Z90 = 1.645  # standard deviations either way that hold nine of ten
BASE = "sync"  # x_async of the row that others of a pair are compared with


def validate_rl(rows: Iterable[Row], parameters: RlParameters | None = None) -> Validation:
    """The cases of a table of post-training runs; rows that cannot be predicted with their reasons."""
    used = parameters or shipped_parameters()
    cases: list[ValidationCase] = []
    skipped_rows: list[Skipped] = []
    for row in rows:
        read = rl_row(row, used)
        answer = read if isinstance(read, Skipped) else _case(read, used)
        if isinstance(answer, Skipped):
            skipped_rows.append(answer)
        else:
            cases.append(answer)
    return Validation(kind="rl", cases=tuple(cases), skipped=tuple(skipped_rows), pairs=tuple(_pairs(cases)))


def _case(read: RlRow, parameters: RlParameters) -> ValidationCase | Skipped:
    answer = predict_rl(read.scenario, parameters=parameters)
    if not isinstance(answer, RlPrediction):
        return Skipped(id=read.row.id, reason=str(answer).replace("\n", "; ")[:300])
    pace = family_pace(read.family)
    sync = answer.weight_sync.seconds if answer.weight_sync else 0.0
    step = answer.step_time_s * pace
    figures = {"step_time_s": step, "t_sync_s": sync, "tokens_per_s": answer.tokens_per_s_per_chip / pace}
    seconds = answer.phase_seconds
    checks = {
        column: PhaseCheck(measured=measured_value, predicted=pace * sum(seconds.get(name, 0.0) for name in names))
        for column, names in PHASE_COLUMNS.items()
        if (measured_value := read.phases.get(column))
    }
    spread = math.hypot(family_spread(read.family, parameters.spread), _spread_of_length(read, answer, parameters))
    reach = math.exp(Z90 * spread)
    return ValidationCase.of(
        read.row, read.measured, figures[read.metric], (1 / reach, reach), part=read.metric,
        chip=read.scenario.system.chip.id, engine=read.row["framework"], cross_validated=False,
        assumptions=(*_pace_note(read.family, pace), *answer.assumptions), metric=read.metric,
        phases=MappingProxyType(checks) or None,
    )  # fmt: skip


def _spread_of_length(read: RlRow, answer: RlPrediction, parameters: RlParameters) -> float:
    """Standard deviation of a step's logarithm from what is not known of its answers: how far longer ones move it."""
    response = read.scenario.workload.data.response_tokens
    if not read.length_spread or not isinstance(response, LognormalTokens):
        return 0.0
    mean = round(response.mean * math.exp(read.length_spread))
    longer = replace(response, mean=min(mean, response.high or mean))
    if longer.mean <= response.mean:
        return 0.0
    work = read.scenario.workload
    scenario = replace(read.scenario, workload=replace(work, data=replace(work.data, response_tokens=longer)))
    longer_answer = predict_rl(scenario, parameters=parameters, draws=1)
    if not isinstance(longer_answer, RlPrediction):
        return 0.0
    name = "tokens_per_s_per_chip" if read.metric == "tokens_per_s" else "step_time_s"
    step = math.log(longer.mean / response.mean)
    return abs(math.log(getattr(longer_answer, name) / getattr(answer, name))) * read.length_spread / step


def _pace_note(family: str, pace: float) -> tuple[str, ...]:
    return (f"framework {family}: steps x {pace:.2f}, fitted on its runs",) if pace != 1 else ()


def family_pace(family: str) -> float:
    """How much slower than predicted the runs of a framework are together; 1 where nothing was fitted."""
    return fitted_figures("paces").get(family, 1.0)


def family_spread(family: str, usual: float) -> float:
    """Standard deviation of log(measured / predicted) of a framework's runs; that of strangers where there are few."""
    return fitted_figures("spreads").get(family, usual)


def _pairs(cases: Sequence[ValidationCase]) -> Iterable[Pair]:
    """Comparisons of a synchronous row with every other of its pair."""
    named_parts: dict[str, list[ValidationCase]] = {}
    for case in cases:
        if case.row["x_pair"] and case.metric == "step_time_s":
            named_parts.setdefault(case.row["x_pair"], []).append(case)
    for name, members in named_parts.items():
        base = next((case for case in members if case.row["x_async"] == BASE), None)
        for case in members:
            if base is not None and case is not base:
                yield Pair(
                    pair=name, sync=base.row.id, other=case.row.id,
                    measured_ratio=case.measured_s / base.measured_s,
                    predicted_ratio=case.predicted_s / base.predicted_s,
                )  # fmt: skip


def log_errors(cases: Sequence[ValidationCase]) -> Mapping[str, list[float]]:
    """log(predicted / measured) of rows by family, of throughputs turned round: above 0 is too slow a prediction."""
    answer: dict[str, list[float]] = {}
    for case in cases:
        sign = -1.0 if case.metric == "tokens_per_s" else 1.0
        answer.setdefault(case.row["x_family"], []).append(sign * math.log(case.predicted_s / case.measured_s))
    return answer
