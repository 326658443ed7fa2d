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

Of what is large a part is judged: rows and columns of a product, elements of what works element by element. Products
keep all of the dim they sum over. The first and last rows and columns are always among those taken. Those that are
furthest from the host's own result are a part of their own: one element decides there, and no mean. What has many right
results, choices among equal values and random numbers, has a check of its own in CHOICES.
"""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import (
    PLAIN,
    RIGHT,
    UNIT,
    Args,
    Draw,
    HostCall,
    Kwargs,
    OpVerdict,
    Outputs,
    Unit,
    clone_tensors,
    nearest,
    spacing,
    worse,
    wrong,
)
from ridgeline.runtime.bringup.contracts import contract_of, moves, name_of, named_arguments, outputs_of

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
    func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs, seed: int = 0, unit: Unit = PLAIN,
    theirs: Outputs | None = None,
) -> OpVerdict:  # fmt: skip
    """The worst verdict over an op's outputs; arguments and outputs lie on the host, as the device had them.

    theirs    the host's own results, where they are known: they tell which part of a large output to look at
    """
    check = CHOICES.get(name_of(func))
    if check is not None:
        verdict = check(func, args, kwargs, outputs)
        if verdict is not None:
            return verdict
    leaves = tree_leaves((args, kwargs, outputs))
    inexact = any(
        isinstance(x, float) or (isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())) for x in leaves
    )
    if moves(func) or not inexact:
        return _judge_move(func, args, kwargs, outputs)
    worst = _by_contract(func, sample_output(func, args, kwargs, outputs), seed, unit, FLOORS)
    off = distance(outputs, theirs) if worst.right else None
    if off is None:
        return worst
    return _by_contract(func, sample_output(func, args, kwargs, outputs, off), seed, unit, ("beyond",))


def _by_contract(func: OpOverload, parts: Parts, seed: int, unit: Unit, statistics: Iterable[str]) -> OpVerdict:
    args, kwargs, outputs = parts
    worst = RIGHT
    for output, right in zip(outputs, expect(func, args, kwargs, outputs, seed, unit), strict=False):
        if isinstance(output, Tensor) and right is not None:
            worst = worse(worst, measure(level(output, right), right, statistics))
    return worst


def expect(
    func: OpOverload, args: Args, kwargs: Kwargs, outputs: Sequence[object], seed: int = 0, unit: Unit = PLAIN
) -> list[Expected | Tensor | None]:
    """What each output may be; integers and the like as they must be. `outputs` tell the formats alone."""
    wide_call: HostCall = tree_map(widen_value, (args, kwargs))
    program = contract_of(func)
    form = next((x.dtype for x in outputs if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    sources = [None, *(torch.Generator().manual_seed(seed + k) for k in range(DRAWS))]
    try:
        exact, *draws = (
            program(Draw(source=source, format=form, number=k, unit=unit), func, *clone_tensors(wide_call))
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


def widen_value(value: object) -> object:
    """Floating tensors, and formats asked for, as fp64."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.float64)
    if isinstance(value, Tensor) and value.is_complex():
        return value.to(torch.complex128)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def level(output: Tensor, right: Expected | Tensor) -> Tensor:
    """Log-sums one column wide, as a contract without the column has them."""
    exact = right.exact if isinstance(right, Expected) else right
    if output.is_complex():
        return torch.view_as_real(output.resolve_conj())
    wide = output.numel() == exact.numel() and output.dim() == exact.dim() + 1 and output.shape[-1] == 1
    return output.squeeze(-1) if wide else output


def _judge_move(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict:
    """Against the host's own move of the same numbers."""
    own_args, own_kwargs = clone_tensors((args, kwargs))
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


def unequal(got: Tensor, right: Tensor) -> OpVerdict:
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


def judge_output(got: Tensor, exact: Tensor, draws: list[Tensor]) -> OpVerdict:
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


def measure(got: Tensor, right: Expected | Tensor, statistics: Iterable[str] = FLOORS) -> OpVerdict:
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


ROWS, COLUMNS, ELEMENTS = 64, 256, 1 << 15
SUSPECTS = 8  # places that are furthest from the host's result
PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)}

Parts = tuple[Args, Kwargs, Outputs]


def sample_output(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs, off: Tensor | None = None) -> Parts:
    """The arguments and outputs of a part of an op's work; all of it where it is small or not known to be separable.

    off    how far each element of the first output lies from the host's: the furthest are the part
    """
    name = func._schema.name
    if not outputs or not isinstance(outputs[0], Tensor) or outputs[0].numel() <= ELEMENTS:
        return args, kwargs, outputs
    if name in PRODUCTS:
        at = PRODUCTS[name]
        a, b, y = args[at[0]], args[at[1]], outputs[0]
        rows, columns = _with(places(y.shape[-2], ROWS), off, -2), _with(places(y.shape[-1], COLUMNS), off, -1)
        arguments = list(args)
        arguments[at[0]], arguments[at[1]] = a[..., rows, :], b[..., columns]
        if at[0]:
            arguments[0] = args[0].expand_as(y)[..., rows, :][..., columns]
        return tuple(arguments), kwargs, [y[..., rows, :][..., columns]]
    if name == "aten::embedding_dense_backward":
        width = _with(places(args[0].shape[-1], COLUMNS // 4), off, -1)
        return (args[0][..., width], *args[1:]), kwargs, [outputs[0][:, width]]
    tensors = [x for x in tree_leaves((args, kwargs, outputs)) if isinstance(x, Tensor) and x.numel() > 1]
    if all(x.shape == outputs[0].shape for x in tensors) and not _spans_dims(func):
        where = _with(places(outputs[0].numel(), ELEMENTS), None if off is None else off.flatten(), -1)
        pick = lambda x: x.flatten()[where] if isinstance(x, Tensor) and x.numel() > 1 else x  # noqa: E731
        return tree_map(pick, (args, kwargs, outputs))  # type: ignore[no-any-return]
    return args, kwargs, outputs


def places(size: int, count: int) -> Tensor:
    """Distinct places spread over a dim, the first and the last among them."""
    if size <= count:
        return torch.arange(size)
    source = torch.Generator().manual_seed(size)
    inner = torch.randint(1, size - 1, (count,), generator=source)
    return torch.cat((torch.tensor([0, size - 1]), inner)).unique()


def distance(outputs: Outputs, theirs: Outputs | None) -> Tensor | None:
    """How far every element lies from the host's result, relative; infinite where one of them is no number."""
    host, output = theirs[0] if theirs else None, outputs[0] if outputs else None
    if not isinstance(host, Tensor) or not isinstance(output, Tensor) or output.numel() <= ELEMENTS:
        return None
    if host.shape != output.shape or not output.is_floating_point():
        return None
    if torch.equal(output, host):
        return None
    ours, other = output.float(), host.float()
    far = (ours - other).abs() / (other.abs() + other.abs().mean().nan_to_num() * 1e-3 + 1e-30)
    return torch.where(ours.isfinite() == other.isfinite(), far.nan_to_num(0.0), torch.inf)


def _with(taken: Tensor, off: Tensor | None, dim: int) -> Tensor:
    """Places of a dim, or those that are furthest off."""
    if off is None:
        return taken
    other_dims = tuple(d for d in range(off.dim()) if d != dim % off.dim())
    worst = off.amax(other_dims) if other_dims else off
    return worst.topk(min(SUSPECTS, len(worst))).indices.unique()


def _spans_dims(func: OpOverload) -> bool:
    """Whether an op names dims: then its elements are not each their own."""
    names = {a.name for a in func._schema.arguments}
    return bool(names & {"dim", "dims", "normalized_shape", "size", "diagonal", "shifts", "repeats"})


ChoiceCheck = Callable[[OpOverload, Args, Kwargs, Outputs], OpVerdict | None]
SIGMAS = 7.0


def check_choice(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Values and where they stood (topk, sort, max): of equal values any may be named, each once."""
    arguments = named_arguments(func, args, kwargs)
    if len(outputs) != 2 or arguments.get("dim", -1) is None or arguments.get("stable"):
        return None
    x, dim, (values, places) = args[0], arguments.get("dim", -1), outputs
    if x.dim() == 0:
        return None
    right = func(*args, **kwargs)[0]
    if tuple(values.shape) != tuple(right.shape) or values.dtype != right.dtype:
        return wrong("shape", float(values.numel()), float(right.numel()))
    if tuple(places.shape) != tuple(values.shape):
        return wrong("shape", float(places.numel()), float(values.numel()))
    if arguments.get("sorted") is False:
        values, right = values.sort(dim).values, right.sort(dim).values
    differ = ~((values == right) | (values.isnan() & right.isnan()))
    if bool(differ.any()):
        return wrong("unequal", float(differ.sum()))
    keep = places.unsqueeze(dim) if places.dim() < x.dim() else places
    if keep.numel() and (int(keep.max()) >= x.shape[dim] or int(keep.min()) < 0):
        return wrong("index", float(((keep >= x.shape[dim]) | (keep < 0)).sum()))
    output = outputs[0].unsqueeze(dim) if places.dim() < x.dim() else outputs[0]
    chosen_values = x.gather(dim, keep)
    stray = ~((chosen_values == output) | (chosen_values.isnan() & output.isnan()))
    twice = keep.sort(dim).values.diff(dim=dim) == 0
    bad = float(stray.sum() + twice.sum())
    return wrong("index", bad) if bad else RIGHT


def largest(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """argmax and argmin: any place that holds the extreme value."""
    arguments = named_arguments(func, args, kwargs)
    x, dim = args[0], arguments.get("dim")
    right, got = func(*args, **kwargs), outputs[0]
    if tuple(right.shape) != tuple(got.shape):
        return wrong("shape", float(got.numel()), float(right.numel()))
    flat, dim = (x.flatten(), 0) if dim is None else (x, dim)
    if flat.numel() == 0 or flat.dim() == 0 or bool(flat.isnan().any()):
        return None
    ours, theirs = (places.unsqueeze(dim) if places.dim() < flat.dim() else places for places in (got, right))
    outside = (ours < 0) | (ours >= flat.shape[dim])
    if bool(outside.any()):
        return wrong("index", float(outside.sum()))
    bad = float((flat.gather(dim, ours) != flat.gather(dim, theirs)).sum())
    return wrong("index", bad) if bad else RIGHT


def dropout(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Dropout: the mask keeps its share, what it keeps is scaled by 1 / (1 - p)."""
    arguments = named_arguments(func, args, kwargs)
    x, p, (y, mask) = args[0], float(arguments["p"]), outputs
    if arguments.get("train") is False or mask.dtype != torch.bool:
        return None
    keep = 1 - p
    off = abs(float(mask.sum()) - keep * x.numel()) / max((keep * p * x.numel()) ** 0.5, 1e-9)
    if off > SIGMAS:
        return wrong("share", off, SIGMAS)
    exact = torch.where(mask, x.double() / max(keep, 1e-300), torch.zeros((), dtype=torch.float64))
    near = 4 * torch.finfo(y.dtype).eps * exact.abs()
    bad = float(((y.double() - exact).abs() > near).sum())
    return wrong("unequal", bad) if bad else RIGHT


def bernoulli(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Zeros and ones in their share."""
    arguments, y = named_arguments(func, args, kwargs), outputs[0].double()
    p = arguments.get("p")
    p = (args[0].double() if func._schema.name == "aten::bernoulli" else 0.5) if p is None else p
    p = p.double() if isinstance(p, Tensor) else torch.full_like(y, float(p))
    if bool(((y != 0) & (y != 1)).any()):
        return wrong("unequal", float(((y != 0) & (y != 1)).sum()))
    return _moments(y, float(p.mean()), float((p * (1 - p)).mean()))


def gaussian(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Normal numbers: mean and variance."""
    arguments = named_arguments(func, args, kwargs)
    mean, std = arguments.get("mean", 0.0), arguments.get("std", 1.0)
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        return RIGHT
    return _moments(outputs[0].double(), float(mean), float(std) ** 2)


def uniform(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Uniform numbers: range, mean and variance."""
    arguments = named_arguments(func, args, kwargs)
    low, high = float(arguments.get("from", 0.0)), float(arguments.get("to", 1.0))
    y = outputs[0].double()
    outside = (y < low) | (y > high) | ~y.isfinite()
    if bool(outside.any()):
        return wrong("range", float(outside.sum()))
    return _moments(y, (low + high) / 2, (high - low) ** 2 / 12)


def integers(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Integers below an end, each as likely."""
    arguments, y = named_arguments(func, args, kwargs), outputs[0]
    low, high = int(arguments.get("low", arguments.get("from", 0)) or 0), arguments.get("high", arguments.get("to"))
    if high is None or not y.numel():
        return RIGHT
    outside = (y < low) | (y >= high)
    if bool(outside.any()):
        return wrong("range", float(outside.sum()))
    count = float(high) - low
    return _moments(y.double(), low + (count - 1) / 2, (count * count - 1) / 12)


def permutation(func: OpOverload, args: Args, kwargs: Kwargs, outputs: Outputs) -> OpVerdict | None:
    """Every integer once."""
    y = outputs[0].flatten().sort().values
    bad = float((y != torch.arange(y.numel(), dtype=y.dtype)).sum())
    return wrong("unequal", bad) if bad else RIGHT


def _moments(y: Tensor, mean: float, variance: float) -> OpVerdict:
    n = y.numel()
    if not n:
        return RIGHT
    if not bool(y.isfinite().all()):
        return wrong("nonfinite", float((~y.isfinite()).sum()))
    if variance <= 0:
        bad = float((y != mean).sum())
        return wrong("unequal", bad) if bad else RIGHT
    shift = abs(float(y.mean()) - mean) / (variance / n) ** 0.5
    if shift > SIGMAS:
        return wrong("shift", shift, SIGMAS)
    wide = abs(float((y - mean).square().mean()) / variance - 1) * (n / 3) ** 0.5
    return wrong("power", wide, SIGMAS) if n >= 64 and wide > SIGMAS else RIGHT


CHOICES: Mapping[str, ChoiceCheck] = MappingProxyType({
    "topk": check_choice, "sort": check_choice, "max": check_choice, "min": check_choice, "argmax": largest,
    "argmin": largest,
    "native_dropout": dropout, "bernoulli": bernoulli, "bernoulli_": bernoulli, "normal_": gaussian,
    "randn": gaussian, "randn_like": gaussian, "uniform_": uniform, "rand": uniform, "rand_like": uniform,
    "randint": integers, "random_": integers, "randperm": permutation,
})  # fmt: skip
_FIRM = frozenset(("topk", "sort", "max", "min", "argmax", "argmin"))


def is_random(func: OpOverload) -> bool:
    """Whether an op draws numbers: the host's own would be others."""
    name = str(func._schema.name).removeprefix("aten::")
    return name in CHOICES and name not in _FIRM
