"""Right implementations of what spans rows: softmax online and by blocks, norms in two passes, fused attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.fake_device import Alter, on
from ridgeline.runtime.bringup.faults.matrix_faults import ATTENTION, ATTENTION_BACKWARD, scores_of

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Named = Iterator[tuple[str, Alter]]
LOG2E = 1.4426950408889634


def row_variants() -> Named:
    """All of them, by name."""
    yield from _softmaxes()
    yield from _sums()
    yield from _norms()
    yield from _attentions()


def _softmaxes() -> Named:
    for block in (8, 16, 32, 64, 128, 512):
        for op in ("_softmax", "_safe_softmax"):
            yield f"{op}: online, {block}", on(op)(partial(_online, block=block))
    ways: dict[str, Callable[[Tensor, int], Tensor]] = {
        "in 64 bits": lambda x, d: x.double().softmax(d),
        "by its logarithm": lambda x, d: (x.float() - torch.logsumexp(x.float(), d, keepdim=True)).exp(),
        "base two": lambda x, d: _base_two(x.float(), d),
        "by the reciprocal": lambda x, d: _reciprocal(x.float(), d),
    }
    for name, way in ways.items():
        for op in ("_softmax", "_safe_softmax"):
            yield f"{op}: {name}", on(op)(partial(_softmax, way=way))
    logs: dict[str, Callable[[Tensor, int], Tensor]] = {
        "in 64 bits": lambda x, d: x.double() - torch.logsumexp(x.double(), d, keepdim=True),
        "by logsumexp": lambda x, d: x.float() - torch.logsumexp(x.float(), d, keepdim=True),
        "shifted": lambda x, d: _shift_rows(x.float(), d),
    }
    for name, log in logs.items():
        yield f"_log_softmax: {name}", on("_log_softmax")(partial(_softmax, way=log))
    yield "_softmax_backward_data: product stored", on("_softmax_backward_data")(partial(_softmax_back, stored=True))
    yield "_softmax_backward_data: in 32 bits", on("_softmax_backward_data")(partial(_softmax_back, stored=False))
    yield "_log_softmax_backward_data: in 64 bits", on("_log_softmax_backward_data")(_log_softmax_back)


def _keep(result: Tensor, y: Tensor) -> Tensor:
    return torch.where(result.isfinite() & y.isfinite() & (result != 0), y, result)


def _softmax(args: Args, kwargs: Kwargs, result: Tensor, way: Callable[[Tensor, int], Tensor]) -> Tensor:
    return _keep(result, way(args[0], args[1]).to(result.dtype))


def _base_two(x: Tensor, dim: int) -> Tensor:
    e = torch.exp2((x - x.amax(dim, keepdim=True)) * LOG2E)
    return e / e.sum(dim, keepdim=True)


def _reciprocal(x: Tensor, dim: int) -> Tensor:
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e * e.sum(dim, keepdim=True).reciprocal()


def _shift_rows(x: Tensor, dim: int) -> Tensor:
    centred_rows = x - x.amax(dim, keepdim=True)
    return centred_rows - centred_rows.exp().sum(dim, keepdim=True).log()


def _online(args: Args, kwargs: Kwargs, result: Tensor, block: int) -> Tensor:
    x, dim = args[0].float(), args[1]
    top = torch.full_like(x.amax(dim, keepdim=True), -torch.inf)
    total = torch.zeros_like(top)
    for part in x.split(block, dim):
        new = torch.maximum(top, part.amax(dim, keepdim=True))
        shift = torch.where(new.isneginf(), torch.zeros_like(new), new)
        total = total * (top - shift).exp() + (part - shift).exp().sum(dim, keepdim=True)
        top = new
    return _keep(result, ((x - top).exp() / total).to(result.dtype))


def _softmax_back(args: Args, kwargs: Kwargs, result: Tensor, stored: bool) -> Tensor:
    g, p, dim = args[0].float(), args[1].float(), args[2]
    shares = (g * p).to(result.dtype).float() if stored else g * p
    return (shares - p * shares.sum(dim, keepdim=True)).to(result.dtype)


def _log_softmax_back(args: Args, kwargs: Kwargs, result: Tensor) -> Tensor:
    g, y, dim = args[0].double(), args[1].double(), args[2]
    return (g - y.exp() * g.sum(dim, keepdim=True)).to(result.dtype)


def _sums() -> Named:
    for op in ("sum", "mean"):
        for block in (4, 8, 32, 100):
            yield f"{op}: blocks of {block}", on(op)(partial(_norm_in_blocks, block=block, mean=op == "mean"))
        yield f"{op}: one after another", on(op)(partial(_norm_in_blocks, block=1, mean=op == "mean"))
        yield f"{op}: in 64 bits", on(op)(partial(_wide_sum, mean=op == "mean"))


def _norm_in_blocks(args: Args, kwargs: Kwargs, result: Tensor, block: int, mean: bool) -> Any:
    x = args[0]
    if len(args) < 2 or not x.is_floating_point() or x.dim() == 0 or len(args[1] or ()) != 1 or kwargs.get("dtype"):
        return None
    dim = args[1][0]
    parts = x.float().split(block, dim)
    if len(parts) > 600:
        return None
    total = torch.zeros(())
    for part in parts:
        total = total + part.sum(dim, keepdim=True)
    y = total * (1 / x.shape[dim]) if mean else total
    return y.reshape(result.shape).to(result.dtype)


def _wide_sum(args: Args, kwargs: Kwargs, result: Tensor, mean: bool) -> Any:
    if not args[0].is_floating_point() or kwargs.get("dtype"):
        return None
    total = (torch.mean if mean else torch.sum)(args[0].double(), *args[1:])
    return total.to(result.dtype)


def _norms() -> Named:
    for name in ("two passes", "in 64 bits", "by blocks", "root and divide"):
        yield f"native_layer_norm: {name}", on("native_layer_norm")(partial(_layer_norm, how=name))
        yield f"_fused_rms_norm: {name}", on("_fused_rms_norm")(partial(_rms_norm, how=name))
    yield "native_layer_norm_backward: in 64 bits", on("native_layer_norm_backward")(_layer_norm_back)
    yield "_fused_rms_norm_backward: in 32 bits", on("_fused_rms_norm_backward")(_rms_norm_back)


def _mean(x: Tensor, how: str) -> Tensor:
    if how != "by blocks":
        return x.mean(-1, keepdim=True)
    total = torch.zeros(())
    for part in x.split(32, -1):
        total = total + part.sum(-1, keepdim=True)
    return total / x.shape[-1]


def _root(x: Tensor, how: str) -> Tensor:
    return 1 / x.sqrt() if how == "root and divide" else x.rsqrt()


def _layer_norm(args: Args, kwargs: Kwargs, result: Any, how: str) -> Any:
    x, shape, w, b, eps = args[:5]
    if len(shape) != 1:
        return None
    wide = x.double() if how == "in 64 bits" else x.float()
    mean = _mean(wide, how)
    rstd = _root(_mean((wide - mean).square(), how) + eps, how)
    y = (wide - mean) * rstd
    y = y if w is None else y * w.to(y.dtype)
    y = y if b is None else y + b.to(y.dtype)
    return y.to(result[0].dtype), mean.to(result[1].dtype), rstd.to(result[2].dtype)


def _rms_norm(args: Args, kwargs: Kwargs, result: Any, how: str) -> Any:
    x, shape, w, eps = args[:4]
    if len(shape) != 1:
        return None
    wide = x.double() if how == "in 64 bits" else x.float()
    rstd = _root(_mean(wide.square(), how) + eps, how)
    y = wide * rstd
    return (y if w is None else y * w.to(y.dtype)).to(result[0].dtype), rstd.to(result[1].dtype)


def _layer_norm_back(args: Args, kwargs: Kwargs, result: Any) -> Any:
    wide = [x.double() if isinstance(x, Tensor) else x for x in args]
    gradients = torch.ops.aten.native_layer_norm_backward.default(*wide)
    return tuple(None if y is None else y.to(old.dtype) for y, old in zip(gradients, result, strict=True))


def _rms_norm_back(args: Args, kwargs: Kwargs, result: Any) -> Any:
    g, x, shape, rstd, w = (v.float() if isinstance(v, Tensor) else v for v in args[:5])
    if len(shape) != 1:
        return None
    hat, scaled_gradient = x * rstd, g if w is None else g * w
    d_x = rstd * (scaled_gradient - hat * (scaled_gradient * hat).mean(-1, keepdim=True))
    d_w = (g * hat).flatten(0, -2).sum(0)
    return d_x.to(result[0].dtype), None if result[1] is None else d_w.to(result[1].dtype)


def _attentions() -> Named:
    for is_stored in (False, True):
        for is_normalised in (False, True):
            for block in (16, 64, 4096):
                name = f"{'stored' if is_stored else 'kept'}, {'normalised' if is_normalised else 'not'}, {block}"
                way = partial(_attend, stored=is_stored, normalised=is_normalised, block=block)
                yield f"{ATTENTION}: {name}", on(ATTENTION)(way)
    for is_stored in (False, True):
        for by_block in (False, True):
            name = f"{'stored' if is_stored else 'kept'}, {'own row sums' if by_block else 'row sums of the output'}"
            yield (
                f"{ATTENTION_BACKWARD}: {name}",
                on(ATTENTION_BACKWARD)(partial(_attended_back, stored=is_stored, own=by_block)),
            )


def _attend(args: Args, kwargs: Kwargs, result: Any, stored: bool, normalised: bool, block: int) -> Any:
    q, k, v = args[:3]
    scores = scores_of(q, k, bool(args[4] if len(args) > 4 else False), kwargs)
    top = scores.amax(-1, keepdim=True)
    if bool(top.isneginf().any()):
        return None
    e = (scores - top).exp()
    total = torch.zeros(())
    for part in e.split(block, -1):
        total = total + part.sum(-1, keepdim=True)
    p = e / total if normalised else e
    p = p.to(q.dtype).float() if stored else p
    out = torch.zeros(())
    for weights, values in zip(p.split(block, -1), v.float().split(block, -2), strict=True):
        out = out + weights @ values
    return (out if normalised else out / total).to(result[0].dtype), (top + total.log()).squeeze(-1)


def _attended_back(args: Args, kwargs: Kwargs, result: Any, stored: bool, own: bool) -> Any:
    g, q, k, v, out, lse = (x.float() for x in args[:6])
    scale = kwargs.get("scale") or q.shape[-1] ** -0.5
    p = (scores_of(q, k, bool(args[7]), kwargs) - lse[..., None]).exp()
    d_p = g @ v.mT
    delta = (
        (p * d_p).sum(-1, keepdim=True) if own and args[0].dtype == torch.float32 else (g * out).sum(-1, keepdim=True)
    )
    d_s = p * (d_p - delta)
    if stored:
        p, d_s = p.to(args[1].dtype).float(), d_s.to(args[1].dtype).float()
    return tuple(y.to(args[1].dtype) for y in ((d_s @ k) * scale, (d_s.mT @ q) * scale, p.mT @ g))
