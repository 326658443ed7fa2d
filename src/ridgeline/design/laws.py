"""Turn parameters and tokens into a loss by a published law, inside the box of the points that it was fitted to.

    chinchilla     L = E + A / N^alpha + B / D^beta
    granularity    L = E + (g / G^gamma + a) / N^alpha + B / D^beta

A law is data (`laws/*.toml`): constants, errors, support and source. Outside its support it is refused, and losses of
two laws are never compared. Published errors of A and alpha (B and beta) move together: their covariance is taken so
that the law is best known at the middle of its support, in logarithms.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.ir.ops import Num

FOLDER = Path(__file__).parent / "laws"
DEFAULT = "besiroglu2024"
FLOPS_PER_PARAM = 6.0  # of a parameter and token of training; 2 of serving
NINETY = 1.645
MOST_RESIDUAL = 0.02  # median residual, of the loss, from which a fit is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLaw:
    """A published law of loss.

    params, tokens, tokens_per_param, granularity, sparsity   ends of its support
    errors     standard deviations of constants, as published
    residual   root mean square of its residuals, in nats
    """

    id: str
    form: Literal["chinchilla", "granularity", "sparsity"]
    family: Literal["dense", "moe"]
    constants: Mapping[str, float]
    params: tuple[float, ...]
    tokens: tuple[float, ...]
    tokens_per_param: tuple[float, ...]
    source: str
    errors: Mapping[str, float] | None = None
    granularity: tuple[float, ...] | None = None
    sparsity: tuple[float, ...] | None = None
    residual: float = 0.01
    note: str = ""

    def loss(self, params: Num, tokens: Num, granularity: Num = 1.0) -> Num:
        """Nats a token.

        >>> round(float(law("besiroglu2024").loss(70e9, 1.4e12)), 4)
        1.9739
        """
        constants = self.constants
        if self.form == "sparsity":
            raise InputError(
                Problem(path="law", given=self.id, expected="a law of active parameters or of granularity")
            )
        size = (
            constants["A"]
            if self.form == "chinchilla"
            else constants["a"] + constants["g"] / granularity ** constants["gamma"]
        )
        return constants["E"] + size / params ** constants["alpha"] + constants["B"] / tokens ** constants["beta"]

    def tokens_for(self, loss: float, params: Num, granularity: Num = 1.0) -> Array:
        """Tokens with which a model of this size reaches a loss; infinite where none suffice.

        D = (B / (L - E - A / N^alpha))^(1 / beta)
        """
        room = np.asarray(loss - self.loss(params, np.inf, granularity), dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            needed_amount = (self.constants["B"] / room) ** (1 / self.constants["beta"])
        return np.where(room > 0, needed_amount, np.inf)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens of least loss at so many training flops, 6 N D.

            N = (alpha A / (beta B))^(1 / (alpha + beta)) (C / 6)^(beta / (alpha + beta))

        >>> params, tokens = law("besiroglu2024").optimum(5.76e23)
        >>> round(params / 1e9, 1), round(tokens / params, 1)
        (72.2, 18.4)
        """
        constants = self.constants
        alpha, beta = constants["alpha"], constants["beta"]
        params = (alpha * constants["A"] / (beta * constants["B"])) ** (1 / (alpha + beta))
        params *= (flops / FLOPS_PER_PARAM) ** (beta / (alpha + beta))
        return params, flops / FLOPS_PER_PARAM / params

    def deviation(self, params: float, tokens: float) -> float:
        """Standard deviation of the loss, from the law's errors and residual.

        With ln A = a0 + alpha ln N0 known apart from alpha at the middle N0 of the support, a move of alpha changes
        the term by (ln N0 - ln N) of itself.
        """
        if not self.errors:
            return 2 * self.residual
        constants = self.constants
        terms = [constants["A"] / params ** constants["alpha"], constants["B"] / tokens ** constants["beta"]]
        middles = [sqrt(self.params[0] * self.params[1]), sqrt(self.tokens[0] * self.tokens[1])]
        moves = [
            term * self.errors[name] * log(middle / size)
            for term, name, middle, size in zip(terms, ("alpha", "beta"), middles, (params, tokens), strict=True)
        ]
        return sqrt(sum(move**2 for move in moves) + self.residual**2)

    def interval(self, params: float, tokens: float, granularity: float = 1.0) -> tuple[float, float]:
        """Nine of ten times the loss is in between."""
        middle, deviation = float(self.loss(params, tokens, granularity)), NINETY * self.deviation(params, tokens)
        return middle - deviation, middle + deviation

    def outside(self, params: float, tokens: float, granularity: float = 1.0) -> Iterator[str]:
        """Why a model is outside the support; nothing where it is inside."""
        asked_values = {
            "parameters": (params, self.params),
            "tokens": (tokens, self.tokens),
            "tokens a parameter": (tokens / params, self.tokens_per_param),
            "granularity": (granularity, self.granularity or (0.0, np.inf)),
        }
        for name, (value, (low, high)) in asked_values.items():
            if not low <= value <= high:
                yield f"{name} {value:.3g} outside {low:.3g} to {high:.3g}, the support of {self.id}"


@cache
def laws() -> Mapping[str, LossLaw]:
    """Every law by id."""
    best_fit: dict[str, LossLaw] = {}
    for name in ("dense", "moe"):
        table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        best_fit |= {id: decode(LossLaw, {"id": id, **entry}, f"laws.{id}") for id, entry in table.items()}
    return MappingProxyType(best_fit)


def law(id: str) -> LossLaw:
    """A law by id; an unknown one is refused with the known ones."""
    if id not in laws():
        raise UnknownId("law", id[:60], [*laws()])
    return laws()[id]


@cache
def quality_rows() -> tuple[Mapping[str, object], ...]:
    """What was measured of shapes beside size."""
    return tuple(tomllib.loads((FOLDER / "quality.toml").read_text(encoding="utf-8"))["row"])


def quality_note(choice: str, value: object) -> str:
    """What is known of a choice: the row that says it, or that it is unknown.

    >>> quality_note("attention", "mla")
    'attention mla: not worse than gqa (DeepSeek-V2, arXiv:2405.04434: cache of 2.25 groups)'
    >>> quality_note("attention", "linear")
    'attention linear: effect on quality unknown'
    """
    for row in quality_rows():
        if row["choice"] == choice and row.get("value") == value and "verdict" in row:
            against = f" than {row['against']}" if "against" in row else ""
            return f"{choice} {value}: {row['verdict']}{against} ({row['source']})"
    return f"{choice} {value}: effect on quality unknown"


def measured_best(choice: str, group: str) -> Mapping[str, object]:
    """The row of least loss among those measured at one size."""
    rows = [row for row in quality_rows() if row["choice"] == choice and row.get("group") == group]
    return min(rows, key=lambda row: float(str(row["loss"])))


# -- fits -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """Constants of a fitted law, and its median and 95th percentile residual, as shares of the loss."""

    constants: Mapping[str, float]
    median: float
    p95: float
    points: int


def fit_law(params: Array, tokens: Array, loss: Array) -> LawFit:
    """Constants of a chinchilla law: least Huber loss (1e-3) of log residuals, from many starts.

    A set that no law fits to two per cent in the median is refused: its losses are not on one scale.
    """
    from scipy.optimize import minimize

    logs = np.log(params), np.log(tokens), np.log(loss)

    def cost(theta: Array) -> float:
        return float(_huber(_log_loss(theta, *logs[:2]) - logs[2]).sum())

    starts = [
        np.array([a, b, e, alpha, beta])
        for a in (3.0, 6.0, 10.0)
        for b in (5.0, 8.0, 12.0)
        for e in (0.0, 0.7)
        for alpha, beta in ((0.3, 0.3), (0.6, 0.4))
    ]
    best_fit = min((minimize(cost, start, method="L-BFGS-B") for start in starts), key=lambda one: float(one.fun))
    a, b, e, alpha, beta = (float(value) for value in best_fit.x)
    share = np.abs(np.exp(_log_loss(best_fit.x, *logs[:2]) - logs[2]) - 1)
    median, p95 = float(np.median(share)), float(np.quantile(share, 0.95))
    if median > MOST_RESIDUAL:
        given_text, expectation = (
            f"a median residual of {median:.1%}",
            f"at most {MOST_RESIDUAL:.0%}: losses on one scale",
        )
        raise InputError(
            Problem(path="points", given=given_text, expected=expectation, todo="fit each corpus by itself")
        )
    constants = {"E": exp(e), "A": exp(a), "B": exp(b), "alpha": alpha, "beta": beta}
    return LawFit(constants=MappingProxyType(constants), median=median, p95=p95, points=len(loss))


HUBER = 1e-3


def _huber(residual: Array) -> Array:
    size = np.abs(residual)
    return np.where(size <= HUBER, 0.5 * residual**2, HUBER * (size - HUBER / 2))


def _log_loss(theta: Array, log_params: Array, log_tokens: Array) -> Array:
    a, b, e, alpha, beta = theta
    terms = np.stack([a - alpha * log_params, b - beta * log_tokens, np.full_like(log_params, e)])
    return np.asarray(np.logaddexp.reduce(terms, axis=0))
