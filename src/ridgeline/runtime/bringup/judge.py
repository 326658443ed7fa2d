"""Judge one result of a device against its op's contract.

    d = result - nearest(exact)            how far it lies from the right result, rounded once
    w^2 = ulp sigma + sigma^2              how large d^2 may be expected: sigma is the spread of the contract's draws;
                                           where it is far below an ulp, sigma / ulp of the elements miss by one

The statistics of d are computed for every draw as well. A limit is the larger of a floor that theory gives and some
times the worst draw. Nothing is a fixed tolerance.

    beyond    the largest error beyond half an ulp, in sigma
    power     mean of d^2 / w^2; block: the largest such mean of 16 x 16 elements
    bias      mean of d sign(y) / w, times sqrt(n): all too large, or all too small
    shift     mean of d / w, times sqrt(n)
    row       the largest such mean of a row; column: of a column
    slope     d sign(y) / w against log |y|: an exponential whose argument is scaled

What only moves numbers is compared with them: `unequal` counts the elements that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import PLAIN, UNIT, Draw, Unit, nearest, spacing
from ridgeline.runtime.bringup.choices import CHOICES
from ridgeline.runtime.bringup.contracts import contract_of, moves, name_of, outputs_of
from ridgeline.runtime.bringup.outcome import RIGHT, Verdict, worse, wrong
from ridgeline.runtime.bringup.sampling import Parts, distance, sample_output

DRAWS = 8
MARGINS = {
    "beyond": 3.0,
    "block": 2.5,
    "slope": 3.0,
}  # the spread of eight draws is uncertain where few elements decide
MARGIN = 1.5
FLUSHED = 256 * torch.finfo(torch.float32).tiny  # what denormals on the way may leave out
FLOORS = {
    "beyond": 8.0, "power": 4.0, "bias": 8.0, "shift": 8.0, "row": 8.0, "column": 8.0, "slope": 12.0, "block": 8.0,
}  # fmt: skip
BLOCK = 16


class NoContractError(Exception):
    """An op that the host cannot compute and no contract describes: its results are not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one output may be: the exact one in fp64, the spread of right ones, and the limits of the statistics."""

    exact: Tensor
    settled: Tensor
    sigma: Tensor
    ulp: Tensor
    sane: Tensor
    limits: dict[str, float]


def judge(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any], seed: int = 0, unit: Unit = PLAIN,
    theirs: list[Any] | None = None,
) -> Verdict:  # fmt: skip
    """The worst verdict over an op's outputs; arguments and outputs lie on the host, as the device had them.

    theirs    the host's own results, where they are known: they tell which part of a large output to look at
    """
    chosen = CHOICES.get(name_of(func))
    if chosen is not None:
        verdict = chosen(func, args, kwargs, outputs)
        if verdict is not None:
            return verdict
    if moves(func) or not any(_inexact(x) for x in tree_leaves((args, kwargs, outputs))):
        return _judge_move(func, args, kwargs, outputs)
    worst = _by_contract(func, sample_output(func, args, kwargs, outputs), seed, unit, FLOORS)
    off = distance(outputs, theirs) if worst.right else None
    if off is None:
        return worst
    return _by_contract(func, sample_output(func, args, kwargs, outputs, off), seed, unit, ("beyond",))


def _by_contract(func: Any, parts: Parts, seed: int, unit: Unit, statistics: Iterable[str]) -> Verdict:
    args, kwargs, outputs = parts
    worst = RIGHT
    for output, right in zip(outputs, expect(func, args, kwargs, outputs, seed, unit), strict=False):
        if isinstance(output, Tensor) and right is not None:
            worst = worse(worst, measure(level(output, right), right, statistics))
    return worst


def expect(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Sequence[Any], seed: int = 0, unit: Unit = PLAIN
) -> list[Expected | Tensor | None]:
    """What each output may be; integers and the like as they must be. `outputs` tell the formats alone."""
    wide_args, wide_kwargs = tree_map(widen_value, args), tree_map(widen_value, kwargs)
    program = contract_of(func)
    form = next((x.dtype for x in outputs if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    sources = [None, *(torch.Generator().manual_seed(seed + k) for k in range(DRAWS))]
    try:
        exact, *draws = (
            program(Draw(source=source, format=form, number=k, unit=unit), func, _fresh(wide_args), _fresh(wide_kwargs))
            for k, source in enumerate(sources)
        )
    except (NotImplementedError, RuntimeError) as error:
        raise NoContractError(str(func)) from error
    expectations: list[Expected | Tensor | None] = []
    for index, output in enumerate(outputs):
        right = exact[index] if index < len(exact) else None
        if not isinstance(output, Tensor) or not isinstance(right, Tensor):
            expectations.append(None)
        elif output.is_complex():
            parts = [torch.view_as_real(draw[index].resolve_conj()) for draw in (exact, *draws)]
            expectations.append(expected_spread(output.real.dtype, parts[0], parts[1:]))
        elif not output.is_floating_point():
            expectations.append(right)
        else:
            expectations.append(expected_spread(output.dtype, right, [draw[index] for draw in draws]))
    return expectations


def widen_value(value: Any) -> Any:
    """Floating tensors, and formats asked for, as fp64."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.float64)
    if isinstance(value, Tensor) and value.is_complex():
        return value.to(torch.complex128)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _inexact(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()))


def _fresh(value: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def level(output: Tensor, right: Expected | Tensor) -> Tensor:
    """Log-sums one column wide, as a contract without the column has them."""
    exact = right.exact if isinstance(right, Expected) else right
    if output.is_complex():
        return torch.view_as_real(output.resolve_conj())
    wide = output.numel() == exact.numel() and output.dim() == exact.dim() + 1 and output.shape[-1] == 1
    return output.squeeze(-1) if wide else output


def _judge_move(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> Verdict:
    """Against the host's own move of the same numbers."""
    own_args, own_kwargs = _fresh(args), _fresh(kwargs)
    try:
        expected_outputs = outputs_of(func, own_args, own_kwargs, func(*own_args, **own_kwargs))
    except (NotImplementedError, RuntimeError) as error:
        raise NoContractError(str(func)) from error
    worst = RIGHT
    for output, right in zip(outputs, expected_outputs, strict=False):
        if isinstance(output, Tensor) and isinstance(right, Tensor):
            worst = worse(worst, unequal(output, right))
        elif isinstance(output, bool | int | float) and output != right and output == output:  # a NaN is one
            worst = worse(worst, wrong("unequal", 1.0))
    return worst


def unequal(got: Tensor, right: Tensor) -> Verdict:
    """Whether two tensors hold the same numbers: denormals may be flushed, what overflows may saturate."""
    if tuple(got.shape) != tuple(right.shape):
        return wrong("shape", float(got.numel()), float(right.numel()))
    if got.dtype != right.dtype:
        return wrong("format", float(got.element_size()), float(right.element_size()))
    if torch.equal(got, right) or got.dtype.is_complex:
        return RIGHT
    if not got.is_floating_point():
        return wrong("unequal", float((got != right).sum()))
    ours, theirs = got.to(torch.float64), right.to(torch.float64)
    kind = torch.finfo(got.dtype)
    over = (~theirs.isfinite() | (theirs.abs() == kind.max)) & (~ours.isfinite() | (ours.abs() == kind.max))
    narrow = got.element_size() == 1  # formats of 8 bits end in a NaN, an infinity or their largest number
    same = (ours == theirs) | (ours.isnan() & theirs.isnan()) | ((ours.abs() + theirs.abs()) <= 2 * kind.tiny)
    same |= over & ((ours.isnan() == theirs.isnan()) | narrow) & ((ours.sign() == theirs.sign()) | narrow)
    return RIGHT if bool(same.all()) else wrong("unequal", float((~same).sum()))


def judge_output(got: Tensor, exact: Tensor, draws: list[Tensor]) -> Verdict:
    """One tensor against the exact one and the contract's draws."""
    return measure(got, expected_spread(got.dtype, exact, draws) if got.is_floating_point() else exact)


def expected_spread(dtype: torch.dtype, exact: Tensor, draws: list[Tensor]) -> Expected:
    """What a result of a format may be, from the exact one and the contract's draws."""
    settled_value = nearest(exact, dtype)
    sane = settled_value.isfinite() & (exact.abs() <= torch.finfo(dtype).max * (1 - 4 * UNIT[dtype]))
    for draw in draws:
        sane &= draw.isfinite()
    ulp, floor = spacing(exact, dtype), spacing(exact, torch.float32) * 0.05 + FLUSHED
    squares = torch.stack([(draw - exact).square() for draw in draws])
    total = squares.sum(0)

    def sigma(among: Tensor, count: int) -> Tensor:
        return torch.where(sane, torch.maximum((among / count).sqrt(), floor), torch.ones_like(among))

    limits = dict(FLOORS)
    if bool(sane.any()):
        for k, draw in enumerate(draws):  # held against the others: the spread of few is itself uncertain
            among = sigma(total - squares[k], len(draws) - 1)
            for name, value in _statistics(nearest(draw, dtype), exact, settled_value, among, ulp, sane).items():
                limits[name] = max(limits[name], MARGINS.get(name, MARGIN) * value)
    return Expected(
        exact=exact, settled=settled_value, sigma=sigma(total, len(draws)), ulp=ulp, sane=sane, limits=limits
    )  # fmt: skip


def measure(got: Tensor, right: Expected | Tensor, statistics: Iterable[str] = FLOORS) -> Verdict:
    """One tensor against what it may be."""
    exact = right if isinstance(right, Tensor) else right.exact
    if tuple(got.shape) != tuple(exact.shape):
        return wrong("shape", float(got.numel()), float(exact.numel()))
    if isinstance(right, Tensor):
        differ = int((got != right).sum())
        return wrong("unequal", float(differ)) if differ else RIGHT
    dtype, y = got.dtype, got.to(torch.float64)
    top = torch.finfo(dtype).max
    huge = exact.abs() > top * (1 - 4 * UNIT[dtype])  # may be the largest number, or infinite
    odd = ~right.settled.isfinite() | ~y.isfinite() | huge
    same = (y == right.settled) | (y.isnan() & right.settled.isnan())
    same |= huge & (y.abs() >= top * (1 - 8 * UNIT[dtype]))
    if bool((odd & ~same).any()):
        return wrong("nonfinite", float((odd & ~same).sum()))
    if not bool(right.sane.any()):
        return RIGHT
    worst = RIGHT
    for name, value in _statistics(y, exact, right.settled, right.sigma, right.ulp, right.sane).items():
        if name in statistics and value > right.limits[name]:
            worst = worse(worst, wrong(name, value, right.limits[name]))
    return worst


def _statistics(
    y: Tensor, exact: Tensor, settled: Tensor, sigma: Tensor, ulp: Tensor, sane: Tensor
) -> dict[str, float]:
    zero = torch.zeros((), dtype=torch.float64)
    d = torch.where(sane, y - settled, zero)
    if not bool(d.any()):
        return dict.fromkeys(FLOORS, 0.0)
    beyond = torch.where(sane, ((y - exact).abs() - 0.5 * ulp).clamp(min=0), zero) / sigma
    z = d / (ulp * sigma + sigma.square()).sqrt()
    n = max(1, int(sane.sum()))
    signed_errors, squares = z * exact.sign(), z.square()
    misses = torch.where(sane, (sigma / ulp).clamp(max=1.0), zero)  # how many elements may be expected to miss
    among = misses.sum()
    statistics = {
        "beyond": float(beyond.max()),
        "power": float(squares.sum() / n / _chance(among, FLOORS["power"])),
        "bias": abs(float(signed_errors.sum() * _rare(among))) / n**0.5,
        "shift": abs(float(z.sum() * _rare(among))) / n**0.5,
        "row": 0.0,
        "column": 0.0,
        "slope": _slope(signed_errors, exact, sane, float(among)),
        "block": 0.0,
    }
    if y.dim() >= 2 and y.shape[-1] > 1:
        flat, few = signed_errors.flatten(0, -2), misses.flatten(0, -2)
        for name, dim in (("row", 1), ("column", 0)):
            statistics[name] = float((flat.sum(dim).abs() / flat.shape[dim] ** 0.5 * _rare(few.sum(dim))).max())
        statistics["block"] = _blocks(squares.flatten(0, -2), few)
    return statistics


def _rare(among: Tensor) -> Tensor:
    """What a sum of misses is worth: three of them are chance, however few were to be expected."""
    return 8 / (8 + 3 / among.clamp(min=1e-9).sqrt())


def _chance(among: Tensor, floor: float) -> Tensor:
    """By how much a mean square may pass its floor by chance: misses are a Poisson number, each worth 1 / its mean."""
    among = among.clamp(min=1e-9)
    return ((1 + 6 / among.sqrt() + 4 / among) / floor).clamp(min=1.0)


def _slope(signed: Tensor, exact: Tensor, sane: Tensor, among: float) -> float:
    """The share of the error that grows with log |y|."""
    zero = torch.zeros((), dtype=torch.float64)
    inside = sane & (exact != 0)
    n = max(1, int(inside.sum()))
    size = torch.where(inside, exact.abs().clamp(min=1e-300).log(), zero)
    size = torch.where(inside, size - size.sum() / n, zero)
    norm = max(float(size.square().sum()), 1e-300) ** 0.5
    lever = max(1.0, float(size.abs().max()) * n**0.5 / norm)
    return float(abs(float((signed * size).sum())) / norm * 12 / (12 + 3 * lever / max(among, 1e-9) ** 0.5))


def _blocks(squares: Tensor, misses: Tensor) -> float:
    """The largest mean of a tile; tiles that stand over the edge are moved inside."""
    rows, columns = squares.shape
    if rows < BLOCK or columns < BLOCK:
        return 0.0
    worst = 0.0
    for top, first_column in ((0, 0), (rows % BLOCK, columns % BLOCK)):
        mean, share = (
            torch.nn.functional.avg_pool2d(x[None, None, top:, first_column:], BLOCK) for x in (squares, misses)
        )
        worst = max(worst, float((mean / _chance(share * BLOCK * BLOCK, FLOORS["block"])).max()))
    return worst
