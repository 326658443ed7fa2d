"""Take the tables of `concepts/measured-prices.md` again: how kernels are priced, and how sources of figures agree."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ridgeline.calibrate.kernels import (
    LIBRARY_FOLDER,
    PublishedKernel,
    bundled_kernels,
    group_of,
    is_own,
    price_kernels,
)
from ridgeline.cost.profile import Measurement, Profile, read_profile, shipped_profiles
from tools.pages import DOCS, replace_block, write_or_check

PAGE = DOCS / "concepts" / "measured-prices.md"
Test = Callable[[PublishedKernel], bool]


def wide(one: PublishedKernel) -> bool:
    """A 16-bit product with 64 rows or more."""
    return one.kernel.op == "gemm" and one.kernel.dtype == "bf16" and one.kernel.dims["m"] >= 64


SETS: Mapping[str, Test] = {
    "own H200 kernels": lambda one: is_own(one.row),
    "of these, bf16 products of 64 rows and more": lambda one: is_own(one.row) and wide(one),
    "of these, attention": lambda one: is_own(one.row) and group_of(one.kernel) == "attention",
    "other products and attention": lambda one: not is_own(one.row) and group_of(one.kernel) != "memory",
    "of these, products": lambda one: not is_own(one.row) and group_of(one.kernel) == "product",
    "of these, attention of chips but the H200": lambda one: (
        not is_own(one.row) and group_of(one.kernel) == "attention" and one.chip != "h200-sxm"
    ),
}


def accuracy() -> str:
    """How far off prices are, with shipped profiles and without any."""
    kernels = bundled_kernels()
    sides = [price_kernels(kernels, profiles) for profiles in (shipped_profiles(), {})]
    lines = ["| kernels | n | mean | median | without a profile: mean |", "|---|---|---|---|---|"]
    for name, test in SETS.items():
        set_places = [place for place, kernel in enumerate(kernels) if test(kernel)]
        offs = [
            np.array([abs(side[at].seconds / kernels[at].kernel.seconds - 1) for at in set_places]) for side in sides
        ]
        cells = (f"{offs[0].mean():.1%}", f"{np.median(offs[0]):.1%}", f"{offs[1].mean():.1%}")
        lines.append(f"| {name} | {len(set_places)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def agreement() -> str:
    """Ratios of seconds of the same product in two sources, on the H200."""
    tables = read_profile(LIBRARY_FOLDER / "h200-sxm.json")
    own_products = [kernel.kernel for kernel in bundled_kernels() if is_own(kernel.row) and kernel.kernel.op == "gemm"]
    profile = shipped_profiles().get("h200-sxm")
    lines = ["| sources, B over A | products | B / A below 0.3 ms | above |", "|---|---|---|---|"]
    lines += _pairs("own rows, TensorRT-LLM's in aiconfigurator", own_products, _gemms(tables, "trtllm"))
    if profile is not None:
        profile_products = _gemms(profile, "torch", "scaled_mm")
        lines += _pairs("own rows, the profile", own_products, profile_products)
        lines += _pairs("the profile, TensorRT-LLM's in aiconfigurator", profile_products, _gemms(tables, "trtllm"))
    return "\n".join(lines)


def _gemms(profile: Profile, *impls: str) -> list[Measurement]:
    rows = [row for row in profile.of("gemm") if row.impl in impls]
    return [row for row in rows if row.figures.get("cold", 1.0)]


def _pairs(name: str, before: Sequence[Measurement], after: Sequence[Measurement]) -> Iterator[str]:
    """A line for each format that both have shapes of: geometric mean of the ratio, and how far ratios spread."""
    after_seconds = {(row.dtype, *row.dims.values()): row.seconds for row in after}
    for dtype in ("bf16", "fp8"):
        same = [(row.seconds, after_seconds.get((dtype, *row.dims.values()))) for row in before if row.dtype == dtype]
        logs = {True: [], False: []}
        for before_s, two in same:
            if two is not None:
                logs[before_s < 0.3e-3].append(float(np.log(two / before_s)))
        if any(logs.values()):
            cells = [
                f"{np.exp(np.mean(some)):.2f} ± {np.std(some):.2f} ({len(some)})" if some else "–"
                for some in (logs[True], logs[False])
            ]
            yield f"| {name}, {dtype} | {sum(map(len, logs.values()))} | {cells[0]} | {cells[1]} |"


def run(arguments: argparse.Namespace) -> int:
    """Write or check both tables."""
    text = replace_block(PAGE.read_text(encoding="utf-8"), "prices accuracy", accuracy())
    text = replace_block(text, "prices agreement", agreement())
    return write_or_check(PAGE, text, check=arguments.check, command="figures prices")
