"""Judge one result of a device against its op's contract.

    d = result - nearest(exact)            how far it lies from the right result, rounded once
    w^2 = ulp sigma + sigma^2              how large d^2 may be expected: sigma is the spread of the contract's draws;
                                           where it is far below an ulp, sigma / ulp of the elements miss by one

The statistics of d are computed for every draw as well. A limit is the larger of a floor that theory gives and some
times the worst draw. Nothing is a fixed tolerance.

    beyond    the largest error beyond half an ulp, in sigma
    power     mean of d^2 / w^2
    bias      mean of d sign(y) / w, times sqrt(n): all too large, or all too small
    shift     mean of d / w, times sqrt(n)
    row       the largest such mean of a row; column: of a column
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ridgeline.runtime.bringup.arithmetic import UNIT, Draw, nearest, spacing
from ridgeline.runtime.bringup.contracts import contract_of, name_of
from ridgeline.runtime.bringup.sampling import sampled

DRAWS = 8
MARGINS = {"beyond": 3.0}  # the spread of eight draws is uncertain where one element decides
MARGIN = 1.5
FLUSHED = 256 * torch.finfo(torch.float32).tiny  # what denormals on the way may leave out
FLOORS = {"beyond": 8.0, "power": 4.0, "bias": 8.0, "shift": 8.0, "row": 8.0, "column": 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was seen of one output: a statistic, what it measured and its limit; right where it stays below."""

    right: bool
    statistic: str = ""
    measured: float = 0.0
    limit: float = 0.0


RIGHT = Verdict(right=True)


class NoContractError(Exception):
    """An op that the host cannot compute and no contract describes: its results are not judged."""


CHOSEN = frozenset(("topk", "sort", "max", "min"))  # values and where they stood: of equal values any may be named


def _chooses(args: tuple[Any, ...], outputs: list[Any]) -> bool:
    """Whether the places named hold the values given; each once."""
    values, places = outputs
    dim = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool) and a < 0), -1)
    if values.dim() != args[0].dim() or places.numel() == 0:
        return False
    if int(places.max()) >= args[0].shape[dim] or int(places.min()) < 0:
        return False
    distinct = places.sort(dim).values.diff(dim=dim)
    return bool((args[0].gather(dim, places) == values).all()) and not bool((distinct == 0).any())


def judge(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any], seed: int = 0) -> Verdict:
    """The worst verdict over an op's outputs; arguments and outputs lie on the host, as the device had them."""
    args, kwargs, outputs = sampled(func, args, kwargs, outputs)
    wide_args, wide_kwargs = tree_map(widened, args), tree_map(widened, kwargs)
    program = contract_of(func)
    form = next((x.dtype for x in outputs if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    sources = [None, *(torch.Generator().manual_seed(seed + k) for k in range(DRAWS))]
    try:
        exact, *draws = (
            program(Draw(source=source, format=form), func, _fresh(wide_args), _fresh(wide_kwargs))
            for source in sources
        )
    except (NotImplementedError, RuntimeError) as error:
        raise NoContractError(str(func)) from error
    if name_of(func) in CHOSEN and len(outputs) == 2:
        outputs = outputs[:1] if _chooses(args, outputs) else outputs
    worst = RIGHT
    for index, output in enumerate(outputs):
        got = output
        if not isinstance(got, Tensor) or index >= len(exact) or not isinstance(exact[index], Tensor):
            continue
        if got.numel() == exact[index].numel() and got.dim() == exact[index].dim() + 1 and got.shape[-1] == 1:
            got = got.squeeze(-1)  # log-sums, one column wide
        found = judge_output(got, exact[index], [draw[index] for draw in draws])
        if not found.right and (worst.right or found.measured / found.limit > worst.measured / worst.limit):
            worst = found
    return worst


def widened(value: Any) -> Any:
    """Floating tensors, and formats asked for, as fp64."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.float64)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _fresh(value: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def judge_output(got: Tensor, exact: Tensor, draws: list[Tensor]) -> Verdict:
    """One tensor against the exact one and the contract's draws."""
    if tuple(got.shape) != tuple(exact.shape):
        return Verdict(right=False, statistic="shape", measured=float(got.numel()), limit=float(exact.numel()))
    if not got.is_floating_point():
        wrong = int((got != exact).sum())
        return Verdict(right=False, statistic="unequal", measured=float(wrong), limit=0.5) if wrong else RIGHT
    dtype, y = got.dtype, got.to(torch.float64)
    top = torch.finfo(dtype).max
    settled = nearest(exact, dtype)
    huge = exact.abs() > top * (1 - 4 * UNIT[dtype])  # may be the largest number, or infinite
    odd = ~settled.isfinite() | ~y.isfinite() | huge
    same = (y == settled) | (y.isnan() & settled.isnan()) | (huge & (y.abs() >= top * (1 - 8 * UNIT[dtype])))
    if (odd & ~same).any():
        return Verdict(right=False, statistic="nonfinite", measured=float((odd & ~same).sum()), limit=0.5)
    sane = ~odd
    for draw in draws:
        sane &= draw.isfinite()
    if not sane.any():
        return RIGHT
    ulp, floor = spacing(exact, dtype), spacing(exact, torch.float32) * 0.05 + FLUSHED
    squares = torch.stack([(draw - exact).square() for draw in draws])
    total = squares.sum(0)

    def seen(value: Tensor, among: Tensor, count: int) -> dict[str, float]:
        sigma = torch.where(sane, torch.maximum((among / count).sqrt(), floor), torch.ones_like(among))
        return _statistics(value, exact, settled, sigma, ulp, sane)

    measured = seen(y, total, len(draws))  # a draw is held against the others: the spread of few is itself uncertain
    rights = [seen(nearest(draw, dtype), total - squares[k], len(draws) - 1) for k, draw in enumerate(draws)]
    worst = RIGHT
    for name, value in measured.items():
        limit = max(FLOORS[name], MARGINS.get(name, MARGIN) * max(right[name] for right in rights))
        if value > limit and (worst.right or value / limit > worst.measured / worst.limit):
            worst = Verdict(right=False, statistic=name, measured=value, limit=limit)
    return worst


def _statistics(
    y: Tensor, exact: Tensor, settled: Tensor, sigma: Tensor, ulp: Tensor, sane: Tensor
) -> dict[str, float]:
    d = torch.where(sane, y - settled, torch.zeros_like(y))
    beyond = torch.where(sane, ((y - exact).abs() - 0.5 * ulp).clamp(min=0), torch.zeros_like(y)) / sigma
    z = d / (ulp * sigma + sigma.square()).sqrt()
    n = max(1, int(sane.sum()))
    signed = z * exact.sign()
    found = {
        "beyond": float(beyond.max()),
        "power": float(z.square().sum() / n),
        "bias": abs(float(signed.sum())) / n**0.5,
        "shift": abs(float(z.sum())) / n**0.5,
        "row": 0.0,
        "column": 0.0,
    }
    if y.dim() >= 2 and y.shape[-1] > 1:
        flat = signed.flatten(0, -2)
        found["row"] = float((flat.sum(1).abs() / flat.shape[1] ** 0.5).max())
        found["column"] = float((flat.sum(0).abs() / flat.shape[0] ** 0.5).max())
    return found
