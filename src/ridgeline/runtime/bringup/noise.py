"""How far right devices lie apart: what a run gives, held against draws of right runs around the exact one.

    spread = Spread(exact, draws)
    spread.judged(name, got)           a device's tensor against the exact one
    spread.apart(name, one, other)     two tensors of one device that should be the same number

    z = (got - exact) / sigma          sigma^2: half the draws' mean square there, half that of its row
    power   mean of z^2        typical   median over rows of the same        far   the largest |z|

Every draw is held against the others in the same way; a limit is some times the worst of them, never below a floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.runtime.bringup.arithmetic import UNIT

MARGIN = 4.0
FLOORS = {"power": 6.0, "typical": 6.0, "far": 12.0, "divergence": 0.0}

Trace = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The statistic that came nearest to its limit, or furthest beyond."""

    statistic: str = ""
    value: float = 0.0
    limit: float = 1.0

    @property
    def excess(self) -> float:
        """Above 1: beyond the limit."""
        return self.value / self.limit if self.value == self.value else torch.inf

    @property
    def right(self) -> bool:
        """Whether it stays below."""
        return self.excess <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The exact trace of a run and draws of it, tensors by name on the host.

    chooses   numbers decide a way (experts): where two are nearly equal right devices may part, so that only what most
              rows show is judged
    """

    exact: Trace
    draws: Sequence[Trace]
    chooses: bool = False

    def judge_value(self, name: str, got: Tensor) -> Measured:
        """One tensor against the exact one."""
        exact, draws = self.exact[name].double(), [draw[name].double() for draw in self.draws]
        if got.shape != exact.shape:
            return Measured(statistic="shape", value=float(got.numel()), limit=max(1.0, float(exact.numel())) / 2)
        return self._worst(got.double() - exact, [draw - exact for draw in draws], exact, got.dtype)

    def apart(
        self, name: str, one: Tensor, other: Tensor, part: slice | int | tuple[slice | int, ...] = ()
    ) -> Measured:
        """Two tensors that differ by rounding alone; `part` says which of the traced one they are."""
        draws = [draw[name][part].double() for draw in self.draws]
        exact = self.exact[name][part].double()
        if one.shape != other.shape or one.shape != exact.shape:
            return Measured(statistic="shape", value=float(one.numel()), limit=max(1.0, float(exact.numel())) / 2)
        if torch.equal(one, other):
            return Measured(statistic="power", value=0.0, limit=FLOORS["power"])
        pairs = [draws[k] - draws[k - 1] for k in range(len(draws))]
        return self._worst(one.double() - other.double(), pairs, exact, one.dtype)

    def divergence(self, name: str, got: Tensor) -> Measured:
        """Kullback-Leibler divergence of teacher-forced next-token distributions, mean over tokens."""
        truth = self.exact[name].double().log_softmax(-1)

        def kl(logits: Tensor) -> float:
            log_probabilities = logits.double().log_softmax(-1)
            return float((truth.exp() * (truth - log_probabilities)).sum(-1).mean().clamp(min=0))

        largest = max(kl(draw[name]) for draw in self.draws)
        return Measured(statistic="divergence", value=kl(got), limit=max(MARGIN * largest, 1e-15))

    def _worst(self, error: Tensor, errors: list[Tensor], exact: Tensor, dtype: torch.dtype) -> Measured:
        if not bool(error.isfinite().all()):
            return Measured(statistic="nonfinite", value=float((~error.isfinite()).sum()), limit=0.5)
        return worst(error, errors, exact, dtype, typical=self.chooses)


def worst(error: Tensor, errors: list[Tensor], exact: Tensor, dtype: torch.dtype, *, typical: bool = False) -> Measured:
    """The statistic of an error that is furthest beyond what right errors show."""
    unit = UNIT.get(dtype, UNIT[torch.float32])
    scale = exact.square().mean().sqrt() if exact.numel() else torch.tensor(1.0)
    floor = (unit * (exact.abs() * 0.1 + 0.01 * scale)).clamp(min=1e-30)
    squares = [error.square() for error in errors]
    total = torch.stack(squares).sum(0)

    def statistics(value: Tensor, among: Tensor, count: int) -> dict[str, float]:
        mean = among / count
        pooled_mean = mean.mean(-1, keepdim=True) if mean.dim() else mean
        z2 = value.square() / torch.maximum(0.5 * mean + 0.5 * pooled_mean, floor.square())
        rows = z2.mean(-1) if z2.dim() > 1 else z2
        return {"power": float(z2.mean()), "typical": float(rows.median()), "far": float(z2.max()) ** 0.5}

    measurements = statistics(error, total, len(errors))
    rights = [statistics(error_, total - squares[k], len(errors) - 1) for k, error_ in enumerate(errors)]
    worst_ = Measured()
    for name, value in measurements.items():
        if typical and name != "typical":
            continue
        limit = max(FLOORS[name], MARGIN * max(right[name] for right in rights))
        if not worst_.statistic or value / limit > worst_.excess:
            worst_ = Measured(statistic=name, value=value, limit=limit)
    return worst_
