"""Fit the parameters of post-training on the bundled runs, and write how far off they are.

Rewrites `src/ridgeline/rl/parameters.toml`, `src/ridgeline/calibrate/truth/rl_fitted.toml` and the tables of
`docs/concepts/post-training.md`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.calibrate.rl_fit import FITTED, LeftOut, RlFit, RowPhases, combine, fit_rows, left_out, rows_at
from ridgeline.calibrate.truth.rl_rows import FITTED_FILE, rl_row
from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped, read_table
from ridgeline.rl.parameters import FILE, RlParameters
from tools.pages import ROOT, replace_block, write_or_check

COMMAND = "figures rl"
PAGE = ROOT / "docs" / "concepts" / "post-training.md"
MEANINGS = {
    "rollout_factor": "rollout over what a serving engine of its own would take",
    "training_factor": "updates over what pre-training of the same batch would take",
    "forward_factor": "log-probability and reference passes over the forward part of training",
    "colocated_factor": "passes that share their chips with an engine over those that do not",
    "decode_step_s": "seconds of an engine step beyond what serving takes: sampling, log-probabilities, the loop",
    "token_s": "seconds of software for one sampled token: handing it over, its text and log-probability",
    "eager_layer_s": "seconds of the host for a layer of a rollout step whose kernels are launched one by one",
    "other_share": "rewards, data and waiting between phases, of all phases",
    "tensor_s": "seconds of software for one tensor of a weight sync",
    "bucket_s": "seconds of software for one bucket of a weight sync",
    "convert_s": "seconds of software for one tensor that is converted to the engine's layout, beside the wire",
    "switch_s": "seconds of putting an engine to sleep and waking it, when colocated",
    "answer_tokens": "mean answer of a model that answers at once, uncut, where nobody states lengths",
    "reasoning_tokens": "mean answer of a model that reasons first, uncut, where nobody states lengths",
    "spread": "standard deviation of log(measured / predicted), each framework predicted without its rows, for so few",
}
FEWEST = 3  # rows of a framework from which it has a pace and a spread of its own
BELIEF = 2.0  # rows that a framework's own pace is drawn to 1 by
LEAST_SPREAD = 0.22
FEW_FAMILIES = 1.3  # Student's t over the normal distribution for nine of ten, with four degrees of freedom
USUAL = ("answer_tokens", "reasoning_tokens")


def run(arguments: argparse.Namespace) -> int:
    """Write or check the parameters, what was fitted of rows, and both tables."""
    _, all_rows = read_table(TRUTH / "rl.csv")
    rows = [row for row in all_rows if not isinstance(rl_row(row, RlParameters(), {}), Skipped)]
    fit, strangers = fit_rows(rows), left_out(rows)
    spread = spread_of(strangers)
    phases = rows_at(rows, fit.lengths)
    text = parameters_text(fit, spread, len(rows), len(_families(rows)))
    page = PAGE.read_text(encoding="utf-8")
    page = replace_block(page, "parameters", parameters_table(fit, spread), "end of parameters")
    page = replace_block(page, "rows", rows_table(strangers, phases, fit), "end of rows")
    texts = {FILE: text, FITTED_FILE: fitted_text(fit, phases), PAGE: page}
    return max(write_or_check(path, text, check=arguments.check, command=COMMAND) for path, text in texts.items())


def _families(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["x_family"] for row in rows))


def spread_of(strangers: Sequence[LeftOut]) -> float:
    """Root of the mean squared log error of strangers with known lengths; of one row a factor of e at most."""
    logs = [min(abs(entry.log_error), 1.0) for entry in strangers if entry.states_lengths]
    return float(np.sqrt(np.mean(np.square(logs)))) * FEW_FAMILIES


def parameters_text(fit: RlFit, spread: float, runs: int, families: int) -> str:
    """The parameters as their file has them."""
    lines = [f"# Written by `python -m tools {COMMAND}` from the runs of calibrate/truth/rl.csv.", ""]
    lines += [f"runs = {runs}", f"families = {families}"]
    for name in (*FITTED, *USUAL, "spread"):
        value = spread if name == "spread" else getattr(fit.parameters, name)
        lines += ["", f"[{name}]", f"value = {value:.4g}", f'meaning = "{MEANINGS[name]}"']
    return "\n".join(lines) + "\n"


def fitted_text(fit: RlFit, phases: Sequence[RowPhases]) -> str:
    """Lengths by model, and what frameworks are off by together."""
    logs: dict[str, list[float]] = {}
    for row in phases:
        predicted = combine(row, fit.parameters)[row.read.metric]
        sign = -1.0 if row.read.metric == "tokens_per_s" else 1.0
        logs.setdefault(row.read.family, []).append(sign * math.log(row.read.measured / predicted))
    own = {family: values for family, values in logs.items() if len(values) >= FEWEST}
    shrunk = {family: math.exp(sum(values) / (len(values) + BELIEF)) for family, values in own.items()}
    spreads = {
        family: max(_deviation(values, math.log(shrunk[family])), LEAST_SPREAD) for family, values in own.items()
    }
    lines = [f"# Written by `python -m tools {COMMAND}`.", "", "[answer_tokens]  # mean answer where a row prints none"]
    lines += [f'"{key}" = {tokens:.0f}' for key, tokens in fit.lengths.items()]
    lines += ["", "[paces]  # measured steps over predicted ones, drawn to 1 by two rows"]
    lines += [f'"{family}" = {pace:.3f}' for family, pace in shrunk.items()]
    lines += ["", "[spreads]  # standard deviation of what is left, in logarithms"]
    lines += [f'"{family}" = {spread:.3f}' for family, spread in spreads.items()]
    return "\n".join(lines) + "\n"


def _deviation(values: Sequence[float], middle: float) -> float:
    return math.sqrt(sum((value - middle) ** 2 for value in values) / max(len(values) - 1, 1)) * FEW_FAMILIES


def parameters_table(fit: RlFit, spread: float) -> str:
    """Every parameter and its value."""
    lines = ["| parameter | value | means |", "|---|---|---|"]
    for name in (*FITTED, *USUAL, "spread"):
        value = spread if name == "spread" else getattr(fit.parameters, name)
        lines.append(f"| `{name}` | {value:.3g} | {MEANINGS[name]} |")
    return "\n".join(lines) + "\n"


def rows_table(strangers: Sequence[LeftOut], phases: Sequence[RowPhases], fit: RlFit) -> str:
    """Medians of |predicted / measured - 1| by framework: cold, with one number for each model, and fitted."""
    lines = ["| framework | rows | left out, cold | left out, one number for a model | in the fit |", "|---" * 5 + "|"]
    inside: Mapping[str, float] = {
        row.read.row.id: abs(combine(row, fit.parameters)[row.read.metric] / row.read.measured - 1) for row in phases
    }
    for family in [*dict.fromkeys(one.family for one in strangers), "all"]:
        own = [one for one in strangers if family in (one.family, "all")]
        cold = np.median([abs(one.cold / one.measured - 1) for one in own])
        again = [abs(one.calibrated / one.measured - 1) for one in own if one.calibrated is not None]
        calibrated = f"{np.median(again):.0%} of {len(again)}" if again else "-"
        known = np.median([inside[one.id] for one in own])
        lines.append(f"| {family} | {len(own)} | {cold:.0%} | {calibrated} | {known:.0%} |")
    return "\n".join(lines) + "\n"
