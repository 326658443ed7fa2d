"""Derive the anchors of the fit that aiconfigurator's measured tables give: `calibrate/truth/anchors_kernels.toml`.

    product     sides of 4096 to 16384 by format, at 8192^3; nine of ten rates of the best library are under
                `high`, all of them for 8 and 4 bits. There libraries time the cast of their inputs too, which we price
                apart: it is taken off at the memory rate a chip sustains
    attention   causal forward of 8192 tokens by head size, 32 heads and more
    link        all-gather and reduce-scatter of 512 MiB in a node, busbw over the link's rate

The tables are taken over few repetitions, before clocks fall. How much a sustained run loses of that is measured where
both are known: H200 products of our own (`kernels.csv`) against TensorRT-LLM's of the same shapes. `low` is below the
slowest library by that share. Needs `pip install 'ridgeline[kernels]'`; without it the check passes, saying so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ridgeline.calibrate import profile_sources as aiconfigurator
from ridgeline.calibrate.truth.rows import TRUTH, read_table
from ridgeline.core.errors import InputError
from ridgeline.cost.profile import Measurement
from ridgeline.hardware.load import chip as chip_of
from ridgeline.hardware.load import system
from tools.pages import write_or_check

TARGET = TRUTH / "anchors_kernels.toml"
SIDE = 8192
LARGE_SIDES = frozenset({4096, 6144, 7168, 8192, 10240, 12288, 16384})
LARGE = 2.0**35  # multiply-adds beyond which clocks have fallen in a sustained run
BARE = {"bf16": ("bf16",), "fp8": ("fp8", "fp8_block"), "fp4": ("nvfp4",)}
SUSTAINED_MEMORY = 0.85  # of the data sheet's rate, by copies
CAST_BYTES = {"fp8": 3.0, "fp8_block": 3.0, "nvfp4": 2.5}  # read and written for an element of the input
TRUSTED = ("trtllm", "sglang")  # vLLM's 16-bit products reach 99 % of peak and look unsustained
# whose attention library the serving libraries' kernels stand for, by family of chips
# what a training library's attention may reach beyond the best of them: cuDNN 1460 TFLOP/s on B200 (NVIDIA) to 1227
FASTER = {"blackwell": 1.19}
ENGINE = {"ampere": "deepspeed", "hopper": "torch-eager", "blackwell": "megatron-bridge"}
BROKEN_LINKS = ("l40s",)  # 1.3 GB/s over PCIe: peer copies were off
BELOW_LINK, ABOVE_LINK = 0.9, 1.1  # 16 GiB reach 7 % more than 512 MiB among eight H200s

HEADER = """# Rates derived from aiconfigurator-core's tables (Apache-2.0) by `python -m tools figures anchors`.
# low, high   TFLOP/s for products and attention, share of the link for links; columns as in anchors.toml
# sustained   {share:.3f} of these short runs, from {shapes} H200 products of both kinds
"""


def sustained_share() -> tuple[float, int]:
    """What sustained products reach of the tables' rate, and from how many shapes."""
    table = {(row.dims["m"], row.dims["n"], row.dims["k"]): row.seconds for row in _bf16("h200-sxm")}
    shares = []
    for row in read_table(TRUTH / "kernels.csv", ("kernels",))[1]:
        if row["kernel"] == "gemm" and row["precision"] == "bf16":
            m, n, k = (int(side) for side in row["shape"].split("x"))
            if (m, n, k) in table and float(m) * n * k > LARGE:
                shares.append(table[m, n, k] / (float(row["value"]) * 1e-6))
    return float(np.median(shares)), len(shares)


def _bf16(chip: str) -> Iterator[Measurement]:
    return (row for row in aiconfigurator.products(chip) if row.impl == "trtllm" and row.dtype == "bf16")


Rates = dict[str, tuple[float, float]]  # by library: the median, and what hardly any exceeds


def by_library(rows: Iterable[Measurement], rate: Callable[[Measurement], float], top: float) -> Rates:
    """The median rate of each library, and the quantile that counts as its ceiling."""
    rates_by_library: dict[str, list[float]] = {}
    for row in rows:
        rates_by_library.setdefault(row.impl, []).append(rate(row))
    return {
        library: (float(np.median(rates)), float(np.quantile(rates, top)))
        for library, rates in rates_by_library.items()
    }


def products(chip: str, share: float) -> Iterator[dict[str, object]]:
    """Anchors of a chip's large products."""
    rows = [row for row in aiconfigurator.products(chip) if LARGE_SIDES.issuperset(row.dims.values())]
    for peak, formats in BARE.items():
        best: Rates = {}
        for dtype in formats:
            dtype_rows = [row for row in rows if row.dtype == dtype and row.impl in TRUSTED]
            for library, rates in by_library(dtype_rows, _product_rate(chip), 0.9 if peak == "bf16" else 1.0).items():
                best[library] = max(rates, best.get(library, (0.0, 0.0)))
        if best and peak in chip_of(chip).peak:
            yield entry("product", chip, best, share, precision=peak, shape=[SIDE, SIDE, SIDE])


def _product_rate(chip: str) -> Callable[[Measurement], float]:
    """TFLOP/s of a product of a chip alone, without the cast of its 16-bit input where it has a narrower one."""
    memory_rate = SUSTAINED_MEMORY * chip_of(chip).need("hbm.bandwidth").value

    def rate(row: Measurement) -> float:
        m, n, k = (row.dims[side] for side in "mnk")
        cast_s = m * k * CAST_BYTES.get(row.dtype, 0.0) / memory_rate
        return 2.0 * m * n * k / (row.seconds - cast_s) / 1e12

    return rate


def attention(chip: str, share: float) -> Iterator[dict[str, object]]:
    """Anchors of a chip's attention by head size."""
    family = chip_of(chip).family
    if family not in ENGINE:
        return
    rows = [row for row in aiconfigurator.attention(chip) if row.op == "attention_forward" and row.impl != "triton"]
    rows = [row for row in rows if row.dims["query"] == SIDE and row.dims["heads"] * row.dims["batch"] >= 32]
    for width in (64, 128, 256):
        width_rows = [row for row in rows if row.dims["head_dim"] == width]
        best = by_library(width_rows, lambda row: _pairs(row) / row.seconds / 1e12, 0.9)
        if best:
            anchor = entry("attention", chip, best, share, engine=ENGINE[family], head_dim=width)
            yield anchor | {"high": round(float(str(anchor["high"])) * FASTER.get(family, 1.0), 1)}


def _pairs(row: Measurement) -> float:
    """Flops of causal attention, half the pairs."""
    dims = row.dims
    return 2.0 * dims["batch"] * dims["heads"] * dims["query"] * dims["key"] * dims["head_dim"]


def links(chip: str) -> Iterator[dict[str, object]]:
    """The anchor of a chip's links inside a node."""
    if chip in BROKEN_LINKS:
        return
    rate = system(f"8x{chip}").tiers[0].need_bandwidth().value
    rows = [row for row in aiconfigurator.collectives(chip) if row.op in ("all_gather", "reduce_scatter")]
    ranks, size = (max(row.dims[key] for row in rows) for key in ("ranks", "bytes"))
    largest_rows = [row for row in rows if row.dims["ranks"] == ranks and row.dims["bytes"] == size]
    shares = [size * (ranks - 1) / ranks / row.seconds / rate for row in largest_rows]
    description = f"all-gather and reduce-scatter of {size >> 20} MiB among {ranks}, aiconfigurator-core"
    low, high = round(min(shares) * BELOW_LINK, 3), round(min(max(shares) * ABOVE_LINK, 1.0), 3)
    yield {"kind": "link", "chip": chip, "low": low, "high": high, "rows": description}


def entry(kind: str, chip: str, best: Rates, share: float, **more: object) -> dict[str, object]:
    """One anchor as a table."""
    description = ", ".join(f"{library} {median:.0f} to {top:.0f}" for library, (median, top) in best.items())
    low = round(min(median for median, _ in best.values()) * share, 1)
    high = round(max(top for _, top in best.values()), 1)
    return {"kind": kind, "chip": chip, **more, "low": low, "high": high, "rows": f"aiconfigurator-core, {description}"}


def text() -> str:
    """The file."""
    share, shapes = sustained_share()
    entries = [
        anchor
        for chip in aiconfigurator.SYSTEMS
        for part in (products(chip, share), attention(chip, share), links(chip))
        for anchor in part
    ]
    lines = [HEADER.format(share=share, shapes=shapes)]
    for anchor in entries:
        lines += ["[[anchor]]", *(f"{key} = {_value(value)}" for key, value in anchor.items()), ""]
    return "\n".join(lines)


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def run(arguments: argparse.Namespace) -> int:
    """Write or check the file; nothing where the package is not installed."""
    try:
        aiconfigurator.data_folder()
    except InputError:
        print("aiconfigurator-core is not installed; the anchors stay as they are")
        return 0
    return write_or_check(TARGET, text(), check=arguments.check, command="figures anchors")
