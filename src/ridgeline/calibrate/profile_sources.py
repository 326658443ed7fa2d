"""Turn what an option names into profiles: a file, `none`, or `aiconfigurator:CHIP`.

Turn the measured tables of `aiconfigurator-core` into Profiles: kernels that serving libraries ran, and NCCL.

    gemm_perf                 matrix products of TensorRT-LLM, SGLang and vLLM by format
    context_attention_perf    attention forward, causal
    generation_attention_perf attention of one new token against a cache of step + 1
    nccl_perf                 collectives of one node; sizes in elements

Latencies are in ms and taken over few repetitions: large products run before clocks fall, and reach 10 to 15 % more
than a step sustains (see `docs/profile.md`). The package is the extra `ridgeline[kernels]`; its figures are Apache-2.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.truth.rows import WORDS
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem, near
from ridgeline.core.units import DECIMAL
from ridgeline.cost import Choice, Profile, read_profile, shipped_profiles
from ridgeline.cost.fitting import Measurement
from ridgeline.hardware.chip import Chip
from ridgeline.ir.kernel import Kernel

PACKAGE = "aiconfigurator_core"
SYSTEMS: Mapping[str, str] = WORDS["aiconfigurator"]  # folder by chip
"""Folder of every chip that has one."""
LIBRARIES = ("trtllm", "sglang", "vllm")  # whose figures are asked for first; vLLM's 16-bit products look unsustained
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "half": "fp16"}
COLLECTIVES = {name: name for name in ("all_gather", "all_reduce", "reduce_scatter")} | {"alltoall": "all_to_all"}
Columns = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """One table: which library measured it, in which version, and its columns."""

    library: str
    version: str
    columns: Columns

    def number(self, name: str) -> Array:
        """A column as numbers."""
        return np.asarray(self.columns[name], dtype=np.float64)

    @property
    def seconds(self) -> Array:
        """Latency; tables hold ms."""
        return self.number("latency") * DECIMAL["m"]


def data_folder() -> Path:
    """Where the installed package keeps its tables; `InputError` where it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        todo = "`pip install 'ridgeline[kernels]'`"
        raise InputError(
            Problem(path="aiconfigurator", given="not installed", expected="aiconfigurator-core", todo=todo)
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"


def folder_of(chip: str) -> Path:
    """The tables of a chip of the catalog."""
    if chip not in SYSTEMS:
        expected_text = " or ".join(near(chip, list(SYSTEMS))) or ", ".join(SYSTEMS)
        raise InputError(Problem(path="--chip", given=repr(chip[:40]), expected=expected_text))
    return data_folder() / SYSTEMS[chip]


def sources(chip: str, kind: str, table: str) -> Iterator[KernelSource]:
    """Tables of one kind, the newest version of each library, in the order of `LIBRARIES`."""
    folder = folder_of(chip) / kind
    libraries = ("nccl",) if kind == "comm" else LIBRARIES
    for library in libraries:
        versions = sorted(
            folder.glob(f"{library}/*/{table}.parquet"),
            key=lambda path: tuple(int(part) for part in re.findall(r"\d+", path.parent.name)),
        )
        if versions:
            yield KernelSource(library=library, version=versions[-1].parent.name, columns=_read(versions[-1]))


def _read(path: Path) -> Columns:
    try:
        parquet = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        todo = "`pip install 'ridgeline[kernels]'`"
        lack = Problem(path="aiconfigurator", given="no module pyarrow", expected="pyarrow", todo=todo)
        raise InputError(lack) from None
    table = parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def products(chip: str) -> Iterator[Measurement]:
    """Matrix products of every library."""
    for source in sources(chip, "gemm", "gemm_perf"):
        formats, seconds = source.columns["gemm_dtype"], source.seconds
        sizes = [np.asarray(source.columns[side], dtype=np.int64) for side in "mnk"]
        for dtype, m, n, k, latency_s in zip(formats, *sizes, seconds, strict=True):
            if dtype in FORMATS:
                dims = MappingProxyType({"m": int(m), "n": int(n), "k": int(k)})
                kernel = Kernel(op="gemm", impl=source.library, dtype=FORMATS[dtype], dims=dims)
                yield Measurement(kernel=kernel, seconds=float(latency_s))


def attention(chip: str) -> Iterator[Measurement]:
    """Attention of a prompt and of one new token, 16 bits, without a window."""
    for table, op in (("context", "attention_forward"), ("generation", "attention_decode")):
        for source in sources(chip, "attention", f"{table}_attention_perf"):
            yield from _attention(source, op)


def _attention(source: KernelSource, op: str) -> Iterator[Measurement]:
    columns = source.columns
    plain = (columns["attn_dtype"] == "bfloat16") & (columns["kv_cache_dtype"] == "bfloat16")
    if "window_size" in columns:
        plain = plain & (columns["window_size"] == 0)
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "step", "head_dim")
    kernels, seconds = columns["kernel_source"], source.seconds
    for row in np.flatnonzero(plain):
        batch, heads, kv, length, step, width = (int(columns[name][row]) for name in names)
        decode = op == "attention_decode"
        dims = {"batch": batch, "heads": heads, "kv_heads": kv, "query": 1 if decode else length}
        dims |= {"key": step + 1 if decode else length, "head_dim": width, "causal": int(not decode)}
        impl = "triton" if kernels[row] == "triton" else source.library
        kernel = Kernel(op=op, impl=impl, dtype="bf16", dims=MappingProxyType(dims))
        yield Measurement(kernel=kernel, seconds=float(seconds[row]))


def collectives(chip: str) -> Iterator[Measurement]:
    """Collectives of one node; bytes of the whole tensor, as nccl-tests counts them."""
    for source in sources(chip, "comm", "nccl_perf"):
        rows = zip(
            source.columns["op_name"],
            source.columns["nccl_dtype"],
            *(np.asarray(source.columns[name], dtype=np.int64) for name in ("num_gpus", "message_size")),
            source.seconds,
            strict=True,
        )
        for op, dtype, ranks, elements, latency_s in rows:
            if op in COLLECTIVES and dtype == "half":
                dims = MappingProxyType({"bytes": int(elements) * 2, "ranks": int(ranks), "nodes": 1})
                words = MappingProxyType({"backend": "nccl"})
                kernel = Kernel(op=COLLECTIVES[op], impl="nccl", dtype="fp16", dims=dims, words=words)
                yield Measurement(kernel=kernel, seconds=float(latency_s))


# sizes that are kept of tables with ten thousand shapes each: enough for efficiencies to be read between
ROWS = frozenset({1, 16, 64, 128, 256, 512, 1024, 4096, 8192, 16384})
SIDES = frozenset({1024, 2048, 4096, 8192, 16384})
# whose products are kept of each format
PRODUCTS = {"bf16": "trtllm", "fp8": "trtllm", "fp8_block": "sglang", "nvfp4": "trtllm"}
PROMPTS = frozenset({512, 1024, 2048, 4096, 8192, 16384})
BATCHES = frozenset({1, 4, 32, 128})
HEADS = frozenset({(32, 8), (32, 32), (64, 8)})
CACHES = frozenset({512, 2048, 8192, 32768, 131072})
PROMPT_LIBRARIES = ("trtllm", "vllm")


def is_kept(row: Measurement) -> bool:
    """Whether a row stands on the coarse grid that a profile keeps.

    >>> odd = Kernel(op="gemm", impl="trtllm", dtype="bf16", dims={"m": 4097, "n": 4096, "k": 4096})
    >>> is_kept(Measurement(kernel=odd, seconds=1))
    False
    """
    size = row.dims
    match row.op:
        case "gemm":
            return PRODUCTS[row.dtype] == row.impl and size["m"] in ROWS and {size["n"], size["k"]} <= SIDES
        case "attention_forward" | "attention_decode":
            lengths = PROMPTS if row.op == "attention_forward" else CACHES
            heads = (size["heads"], size["kv_heads"])
            plain = row.impl in PROMPT_LIBRARIES and heads in HEADS
            return plain and size["key"] in lengths and size["batch"] in BATCHES
        case _:
            return size["ranks"] in (4, 8) and size["bytes"] % 4**6 == 0


def import_profile(chip: str) -> Profile:
    """What a chip's tables hold on a coarse grid, and its collectives."""
    from importlib.metadata import version

    rows = tuple(row for row in (*products(chip), *attention(chip), *collectives(chip)) if is_kept(row))
    return Profile(
        rows=rows,
        chip=chip,
        device=MappingProxyType({"type": "cuda", "name": chip, "count": 1}),
        software=MappingProxyType({"aiconfigurator-core": version("aiconfigurator-core"), "license": "Apache-2.0"}),
        source="aiconfigurator-core",
    )


TABLES = "aiconfigurator:"


def open_profile(name: str | Path | Profile) -> Profile:
    """One profile: a value, a file, or a chip's tables of the installed `aiconfigurator-core`."""
    if isinstance(name, Profile):
        return name
    text = str(name)
    return import_profile(text.removeprefix(TABLES)) if text.startswith(TABLES) else read_profile(text)


def profiles_of(choice: Choice) -> Mapping[str, Profile]:
    """The profiles that an option means, by chip; one that names no chip is of every chip.

    >>> dict(profiles_of("none"))
    {}
    """
    if choice is None:
        return shipped_profiles()
    if isinstance(choice, str) and choice.strip().lower() == "none":
        return MappingProxyType({})
    profile = open_profile(choice)
    return MappingProxyType({**shipped_profiles(), profile.chip: profile})


def own_profile(choice: Choice) -> Profile | None:
    """The profile that an option gives; None where it gives none, or asks for none."""
    is_none = choice is None or str(choice).strip().lower() == "none"
    return None if is_none or choice is None else open_profile(choice)


def refuse_other_chip(choice: Choice, chips: Sequence[Chip]) -> None:
    """Say that a profile is of a chip that nothing here runs on, instead of leaving it out in silence."""
    profile = own_profile(choice)
    if profile is not None and profile.chip and profile.chip not in {chip.fitted_id for chip in chips}:
        chip_ids = " or ".join(dict.fromkeys(chip.fitted_id for chip in chips))
        todo = "take a profile of that chip, or --profile none"
        given_text = f"a profile of {profile.chip[:40]}"
        raise InputError(Problem(path="--profile", given=given_text, expected=chip_ids, todo=todo))
