"""Right implementations that differ: other orders, blocks, formulas, and what fused kernels keep. None may alarm.

VARIANTS    name -> what answers for an op, in the form of a fault
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from bringup_corpus.legitimate_rows import row_variants
from ridgeline.runtime.bringup.fake_device import Alter, on, operands, partial_products, product, with_bias

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Named = Iterator[tuple[str, Alter]]


def _variants() -> Named:
    yield from _products()
    yield from _functions()
    yield from row_variants()
    yield from _scatter_variants()
    yield from _optimizer()


def _products() -> Named:
    """Products: split, blocked, backwards, term by term, in 64 bits."""
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "in 32 bits": product,
        "backwards": lambda a, b: product(a.flip(-1), b.flip(-2)),
        "in 64 bits": lambda a, b: (a.double() @ b.double()).float(),
        "terms": _terms,
        "pairwise": lambda a, b: _pairwise(partial_products(a, b, 16)),
        "even and odd": lambda a, b: product(a[..., ::2], b[..., ::2, :]) + product(a[..., 1::2], b[..., 1::2, :]),
        "transposed": lambda a, b: product(b.mT, a.mT).mT,
    }
    for parts in (2, 3, 4, 7, 8, 16, 32, 64):
        ways[f"{parts} parts"] = partial(_split, parts=parts)
    for name, way in ways.items():
        for op in ("mm", "bmm", "addmm", "baddbmm"):
            yield f"{op}: {name}", on(op)(partial(_multiply_by, way=way))
    yield "addmm: product stored first", on("addmm", "baddbmm")(_stored_first)


def _multiply_by(args: Args, kwargs: Kwargs, result: Tensor, way: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    bias, a, b = operands(args)
    return with_bias(way(a, b), bias, kwargs).to(result.dtype)


def _stored_first(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    bias, a, b = operands(args)
    return with_bias(product(a, b).to(result.dtype).float(), bias, kwargs).to(result.dtype)


def _split(a: Tensor, b: Tensor, parts: int) -> Tensor:
    total = torch.zeros(())
    for part in partial_products(a, b, parts):
        total = total + part
    return total if total.dim() else product(a, b)


def _terms(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[-1] > 300 or a.shape[-2] * b.shape[-1] > 20_000:
        return product(a, b)
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for k in range(a.shape[-1]):
        total = torch.addcmul(total, a[..., k : k + 1].float(), b[..., k : k + 1, :].float())
    return total


def _pairwise(parts: list[Tensor]) -> Tensor:
    while len(parts) > 1:
        parts = [parts[k] + parts[k + 1] if k + 1 < len(parts) else parts[k] for k in range(0, len(parts), 2)]
    return parts[0] if parts else torch.zeros(())


def _functions() -> Named:
    """Functions by other formulas, in fp32 or fp64, and off by a unit in the last place."""
    formulas: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "silu": [lambda x: x * x.sigmoid(), lambda x: x / (1 + (-x).exp()), lambda x: x * 0.5 * (1 + (x / 2).tanh())],
        "sigmoid": [lambda x: 1 / (1 + (-x).exp()), lambda x: 0.5 * (1 + (x / 2).tanh())],
        "gelu": [lambda x: 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5))), lambda x: x * torch.special.ndtr(x)],
        "exp": [lambda x: torch.exp2(x * 1.4426950408889634) if x.dtype == torch.float64 else x.exp(), torch.exp],
        "rsqrt": [lambda x: 1 / x.sqrt(), lambda x: (1 / x).sqrt(), lambda x: _newton(x)],
        "sqrt": [lambda x: torch.where(x == 0, x, x * x.rsqrt()), torch.sqrt],
        "tanh": [torch.tanh],
        "cos": [torch.cos],
        "sin": [torch.sin],
        "log": [lambda x: torch.log2(x) * math.log(2.0), torch.log],
        "reciprocal": [torch.reciprocal],
    }
    for name, ways in formulas.items():
        for k, way in enumerate(ways):
            for wide in (torch.float32, torch.float64):
                if k and wide == torch.float32 and name in ("exp", "log"):
                    continue
                label = f"{name}: formula {k + 1} in {'32' if wide == torch.float32 else '64'} bits"
                yield label, on(name)(partial(_formula, way=way, wide=wide))
        yield f"{name}: off by a unit", on(name, dtype=torch.float32)(_off_by_one)
    yield "silu_backward: other form", on("silu_backward")(_silu_backward)
    yield "gelu_backward: in 64 bits", on("gelu_backward")(_gelu_backward)
    yield "div: by the reciprocal", on("div", dtype=torch.float32)(_divide)
    yield "mul: in 64 bits", on("mul")(_mul_wide)
    yield "add: in 64 bits", on("add")(_add_wide)
    yield "pow: by multiplying", on("pow")(_square)


def _newton(x: Tensor) -> Tensor:
    y = x.rsqrt()
    return torch.where(y.isfinite() & (y > 0), y * (1.5 - 0.5 * x * y * y), y)


def _formula(args: Args, kwargs: Kwargs, result: Tensor, way: Callable[[Tensor], Tensor], wide: torch.dtype) -> Any:
    if kwargs.get("approximate", "none") != "none" or not args[0].is_floating_point():
        return None
    y = way(args[0].to(wide)).to(result.dtype)
    odd = ~result.isfinite() | ~y.isfinite() | (args[0].abs() > 80)  # formulas differ where they overflow on the way
    tiny = result.abs() < 1e-30
    return torch.where(odd | tiny, result, y)


def _off_by_one(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    if kwargs.get("approximate", "none") != "none" or not args[0].is_floating_point():
        return None
    up = torch.randint(-1, 2, result.shape, generator=torch.Generator().manual_seed(result.numel()))
    y = result * (1 + up * 2.0**-23)
    return torch.where(result.isfinite() & (result.abs() > 1e-30), y, result)


def _silu_backward(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    g, x = args[0].float(), args[1].float()
    s = 1 / (1 + (-x).exp())
    return (g * (s + x * s * (1 - s))).to(result.dtype)


def _gelu_backward(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    if kwargs.get("approximate", "none") != "none":
        return None
    g, x = args[0].double(), args[1].double()
    cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return (g * (cdf + x * (-0.5 * x * x).exp() / math.sqrt(2 * math.pi))).to(result.dtype)


def _divide(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    if kwargs.get("rounding_mode") or not isinstance(args[1], Tensor):
        return None
    return (args[0].float() * args[1].float().reciprocal()).expand_as(result)


def _mul_wide(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    if not isinstance(args[1], Tensor) or not result.is_floating_point():
        return None
    return (args[0].double() * args[1].double()).to(result.dtype)


def _add_wide(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    if not isinstance(args[1], Tensor) or not result.is_floating_point():
        return None
    return (args[0].double() + kwargs.get("alpha", 1) * args[1].double()).to(result.dtype)


def _square(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    if not isinstance(args[0], Tensor) or isinstance(args[1], Tensor) or args[1] not in (2, 3):
        return None
    x = args[0].float()
    return (x * x if args[1] == 2 else x * x * x).to(result.dtype)


def _scatter_variants() -> Named:
    """Rows that meet, added in other orders and formats."""
    for name in ("backwards", "shuffled", "by a product", "in its own format"):
        yield f"embedding_dense_backward: {name}", on("embedding_dense_backward")(partial(_rows_added, how=name))
    for seed in range(3):
        yield f"index_add: order {seed}", on("index_add", "index_add_")(partial(_index_added, seed=seed))
        yield f"scatter_add: order {seed}", on("scatter_add", "scatter_add_")(partial(_scatter_added, seed=seed))
        yield f"index_put: order {seed}", on("index_put", "index_put_")(partial(_index_put, seed=seed))
    yield (
        "cumsum: in 64 bits",
        on("cumsum")(_scanned_wide),
    )
    yield "cumsum: by blocks", on("cumsum")(_scan_blocks)
    yield "topk: the last of equal ones", on("topk")(_last_of_equal)


def _order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _rows_added(args: Args, kwargs: Kwargs, result: Tensor, how: str) -> Any:
    g, where, rows, padding = args[0].reshape(-1, result.shape[-1]), args[1].flatten(), args[2], args[3]
    keep = where != padding
    g, where = g[keep], where[keep]
    if how == "by a product" and rows * len(where) < 1_000_000:
        return (torch.nn.functional.one_hot(where, rows).float().mT @ g.float()).to(result.dtype)
    turn = torch.arange(len(where)).flip(0) if how == "backwards" else _order(len(where), 1)
    if how == "in its own format":
        return torch.zeros_like(result).index_put((where[turn],), g[turn], accumulate=True)
    return torch.zeros(result.shape).index_add(0, where[turn], g[turn].float()).to(result.dtype)


def _index_added(args: Args, kwargs: Kwargs, result: Tensor, seed: int) -> Any:
    x, dim, where, source = args[:4]
    if not x.is_floating_point() or kwargs.get("alpha", 1) != 1:
        return None
    turn = _order(len(where), seed)
    return x.float().index_add(dim, where[turn], source.float().index_select(dim, turn)).to(result.dtype)


def _scatter_added(args: Args, kwargs: Kwargs, result: Tensor, seed: int) -> Tensor:
    x, dim, where, source = args[:4]
    turn = _order(where.shape[dim], seed)
    moved_rows = source[tuple(slice(n) for n in where.shape)].float()
    return (
        x.float().scatter_add(dim, where.index_select(dim, turn), moved_rows.index_select(dim, turn)).to(result.dtype)
    )


def _index_put(args: Args, kwargs: Kwargs, result: Tensor, seed: int) -> Any:
    if len(args) < 4 or not args[3] or len(args[1]) != 1 or args[1][0].dim() != 1 or args[2].dim() != args[0].dim():
        return None
    turn = _order(len(args[1][0]), seed)
    return args[0].float().index_put((args[1][0][turn],), args[2][turn].float(), accumulate=True).to(result.dtype)


def _scanned_wide(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    return args[0].double().cumsum(args[1]).to(result.dtype)


def _scan_blocks(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    x, dim = args[0], args[1]
    if not x.is_floating_point() or x.dim() == 0:
        return None
    parts, before, outputs = x.float().split(64, dim), torch.zeros(()), []
    for part in parts:
        outputs.append(part.cumsum(dim) + before)
        before = outputs[-1].narrow(dim, part.shape[dim] - 1, 1)
    return torch.cat(outputs, dim).to(result.dtype)


def _last_of_equal(args: Args, kwargs: Kwargs, result: Any) -> Any:
    x, k = args[:2]
    if len(args) > 2 or kwargs:
        return None
    values, where = torch.topk(x.flip(-1), k)
    return values, x.shape[-1] - 1 - where


def _optimizer() -> Named:
    """Updates with other groupings, in 64 bits."""
    wide = lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x  # noqa: E731
    for op in ("addcdiv_", "addcdiv", "addcmul_", "addcmul", "lerp_", "lerp", "mul_", "add_", "sub_", "sqrt_"):
        yield f"{op}: in 64 bits", on(op)(partial(_in_wide, op=op.rstrip("_"), wide=wide))
    yield "lerp_: both shares", on("lerp_", "lerp")(_both_shares)
    yield "addcdiv_: by the reciprocal", on("addcdiv_", "addcdiv", dtype=torch.float32)(_by_reciprocal)
    yield "addcmul_: scaled first", on("addcmul_", "addcmul")(_scaled_first)
    for op in ("_foreach_lerp_", "_foreach_mul_", "_foreach_addcdiv_", "_foreach_addcmul_", "_foreach_sqrt"):
        yield f"{op}: in 64 bits", on(op)(partial(_lists_wide, op=op.removeprefix("_foreach_").rstrip("_")))


def _in_wide(args: Args, kwargs: Kwargs, result: Tensor, op: str, wide: Any) -> Any:
    if not result.is_floating_point():
        return None
    return getattr(torch, op)(*(wide(x) for x in args), **{k: wide(v) for k, v in kwargs.items()}).to(result.dtype)


def _both_shares(args: Args, kwargs: Kwargs, result: Tensor) -> Any:
    a, b, w = args[:3]
    return None if isinstance(w, Tensor) else (a.float() * (1 - w) + b.float() * w).to(result.dtype)


def _by_reciprocal(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    return args[0] + (kwargs.get("value", 1) * args[1]) * args[2].reciprocal()


def _scaled_first(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    return (args[0].float() + (kwargs.get("value", 1) * args[1].float()) * args[2].float()).to(result.dtype)


def _lists_wide(args: Args, kwargs: Kwargs, result: Any, op: str) -> Any:
    columns = [x if isinstance(x, list | tuple) else [x] * len(args[0]) for x in args]
    outputs = []
    for row in zip(*columns, strict=True):
        inputs = [x.double() if isinstance(x, Tensor) else x for x in row]
        options = {"value": inputs.pop()} if op.startswith("addc") else {}
        outputs.append(getattr(torch, op)(*inputs, **options).to(row[0].dtype))
    return outputs


VARIANTS: Mapping[str, Alter] = MappingProxyType(dict(_variants()))
