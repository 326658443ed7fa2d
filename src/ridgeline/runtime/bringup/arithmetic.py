"""Rounding, in 64-bit arithmetic: spacings, round to nearest, noise where a format would round; verdicts on results.

An op's contract is a small program over fp64 tensors. It marks the points at which an implementation may round; a
`Draw` puts noise of the rounding's size there, so that many draws show how far right results may lie apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpVerdict:
    """What was seen of one output: a statistic, what it measured and its limit; right where it stays below."""

    right: bool
    statistic: str = ""
    measured: float = 0.0
    limit: float = 0.0


RIGHT = OpVerdict(right=True)


def wrong(statistic: str, measured: float, limit: float = 0.5) -> OpVerdict:
    """A broken contract; what is counted breaks it from one on."""
    return OpVerdict(right=False, statistic=statistic, measured=measured, limit=limit)


def worse(one: OpVerdict, other: OpVerdict) -> OpVerdict:
    """The one that is further over its limit."""
    if other.right or one.right:
        return one if other.right else other
    return one if one.measured / one.limit >= other.measured / other.limit else other


Args = tuple[Any, ...]  # of an op, in their order, as its schema names them
Kwargs = dict[str, Any]
Outputs = list[Any]  # of an op: tensors, and numbers or None among them
Tensors = tuple[Tensor, ...]  # results of an op that has several
HostCall = tuple[Args, Kwargs]  # arguments of a call, copied to the host


def tensors_in(values: object) -> list[Tensor]:
    """The tensors in any nest of values, in their order."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def clone_tensors(values: T) -> T:
    """The same nest of values with tensors of its own."""
    return cast(T, tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, values))


def written_names(func: OpOverload) -> list[str]:
    """Arguments that an op writes, in the order of its schema."""
    return [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def dtype_name(x: Tensor) -> str:
    """`bfloat16` of a tensor of torch.bfloat16."""
    return str(x.dtype).removeprefix("torch.")


def error_text(error: BaseException) -> str:
    """The type and first line of an error."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


# unit roundoff of round to nearest: half the spacing of numbers at 1
UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
    torch.float8_e4m3fnuz: 2.0**-4,
    torch.float8_e5m2fnuz: 2.0**-3,
}


END = 0.1  # share of the noise of a constant that is near its end


def spacing(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance of neighbouring numbers of a format at y (one ulp), never below that of its smallest normal number."""
    tiny = torch.finfo(dtype).tiny
    exponent = torch.frexp(y.abs().clamp(tiny, torch.finfo(dtype).max).nan_to_num(tiny)).exponent - 1
    return torch.ldexp(torch.full_like(y, 2 * UNIT[dtype]), exponent)


def nearest(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y rounded to a format, as fp64."""
    return y.to(dtype).to(torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a device is known, or allowed, to do to products, beyond rounding sums to nearest in 32 bits.

    factor_bits    significant bits of fp32 factors: 11 for TF32, 24 for all of them
    cuts_off       the accumulator rounds toward zero at every step
    step           terms that one step of the accumulator adds
    """

    factor_bits: int = 24
    cuts_off: bool = False
    step: int = 16


PLAIN = Unit()


@dataclass(slots=True, kw_only=True)
class Draw:
    """One right implementation among many: noise at the points where a program says that it may round.

    source    where the noise comes from; None: nothing is rounded, the exact result
    format    of the op's own tensors, in which parts of a fused op may be stored
    number    which of the draws: implementations that differ in where they store alternate
    unit      what products may do besides
    """

    source: torch.Generator | None = None
    format: torch.dtype = torch.float32
    number: int = 0
    unit: Unit = PLAIN

    def uniform(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Noise between -1 and 1."""
        return torch.rand(shape, generator=self.source, dtype=torch.float64) * 2 - 1

    def round_value(self, x: Tensor, *, units: float = 1.0) -> Tensor:
        """x computed in 32 bits, off by up to so many units."""
        return self.off(x, x.abs(), units=units)

    def store_value(self, x: Tensor) -> Tensor:
        """x as the op's own format keeps it."""
        return x if self.source is None else x * (1 + UNIT[self.format] * self.uniform(x.shape))

    def off(self, x: Tensor, scale: Tensor, *, units: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """x off by up to so many units of a scale, whatever its own size: a difference of large numbers."""
        if self.source is None:
            return x
        noise = self.uniform(x.shape)
        if x.is_complex():
            noise = torch.complex(noise, self.uniform(x.shape))
        return x + UNIT[dtype] * units * scale.nan_to_num(posinf=0.0, neginf=0.0) * noise

    def round_sum(self, y: Tensor, scale: Tensor, terms: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A sum of so many terms, accumulated in a format in any order.

            error ~ u sqrt(terms) scale / 2        scale = the larger of sqrt(sum of squares) and |sum|

        which is the growth of one running sum; blocked and pairwise sums stay below it.
        """
        return self.off(y, torch.maximum(scale, y.abs()), units=1 + 0.5 * max(terms, 1) ** 0.5, dtype=dtype)

    def common(self, x: Tensor, units: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """x by a factor that is the same for all elements: a rounded constant, a biased approximation."""
        return x if self.source is None else x * (1 + UNIT[dtype] * units * self.one_for_all())

    def tilt_towards(self, x: Tensor, scale: Tensor, units: float = 1.0) -> Tensor:
        """x off by the same share of a scale in all elements: an argument of an exponential that is scaled."""
        if self.source is None:
            return x
        return x + UNIT[torch.float32] * units * scale.nan_to_num(posinf=0.0, neginf=0.0) * self.one_for_all()

    def one_for_all(self) -> Tensor:
        """Noise that does not average out; every fourth draw is near an end of it, as a right device may be."""
        noise = self.uniform(())
        return noise.sign() * (1 - END * (1 - noise.abs())) if self.number % 4 == 0 else noise

    def sometimes_store(self, x: Tensor) -> Tensor:
        """x as the op's own format keeps it in every other implementation, in 32 bits in the rest."""
        return self.store_value(x) if self.number % 2 else x

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a b accumulated in 32 bits, as the arithmetic unit does it.

        TF32:       every factor off by up to 2^-11
        cuts off:   each of K / step sums loses half an ulp of what it is by then, always toward zero: as a sum grows
                    like the root of its terms, two thirds of a unit a step of what it becomes
        """
        if self.source is not None and self.unit.factor_bits < 24 and self.format == torch.float32:
            off = 2.0**-self.unit.factor_bits
            a, b = (x * (1 + off * self.uniform(x.shape)) for x in (a, b))
        y = a @ b
        if self.source is None:
            return y
        scale = (a.square() @ b.square()).sqrt()
        noisy = self.round_sum(y, scale, a.shape[-1])
        if self.unit.cuts_off:
            steps = max(1.0, a.shape[-1] / self.unit.step)
            lost = UNIT[torch.float32] * max(steps * 2 / 3, 2 * steps**0.5) * torch.maximum(scale, y.abs())
            noisy = noisy - y.sign() * lost * self.one_for_all().abs()
        return noisy
