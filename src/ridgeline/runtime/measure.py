"""Turn a device into a profile, with the input checked; or write the measuring part as one file without Ridgeline."""

from __future__ import annotations

import importlib.util
import io
import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import parse_table, read_text, refuse_unwritable
from ridgeline.core.units import format_quantity
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.hardware.device_names import packed_names
from ridgeline.hardware.load import CHIPS
from ridgeline.runtime.probe.case import GROUPS, KernelCase
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.probe.session import VERSION, Outcome, measure_ranks, merge_files, replace_file
from ridgeline.runtime.probe.supervisor import Refused, Settings
from ridgeline.version import __version__

ROOT = Path(__file__).parents[1]
CORE = ("core/documents.py", "core/records.py", "core/errors.py", "core/dtype.py")
PARTS = (*CORE, "ir/kernel.py", "hardware/device_names.py")  # what the probe imports beside itself
START = "import sys\n\nfrom ridgeline.runtime.probe.__main__ import main\n\nsys.exit(main())\n"
SHEBANG = b"#!/usr/bin/env python3\n"
FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of zip files: the same sources give the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneFile:
    """The measuring part of Ridgeline as one file."""

    output: Path
    bytes: int

    JSON = "kind='standalone' *"


def write_standalone(path: Path) -> StandaloneFile:
    """Write the measuring part as one file, a zipapp: it needs Python 3.10, torch and numpy, and no Ridgeline."""
    archive_bytes = io.BytesIO()
    with zipfile.ZipFile(archive_bytes, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in _members():
            entry = zipfile.ZipInfo(name, FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, text)
    content = SHEBANG + archive_bytes.getvalue()
    replace_file(path, content)
    return StandaloneFile(output=path, bytes=len(content))


def _members() -> list[tuple[str, str]]:
    """Names and texts of what the file holds; the packages above its modules are empty ones."""
    probe = sorted(path for path in (ROOT / "runtime" / "probe").iterdir() if path.suffix == ".py")
    stub = f'"""The measuring part of Ridgeline {__version__}."""\n'
    packages = [(f"ridgeline/{name}__init__.py", stub) for name in ("", "core/", "hardware/", "ir/", "runtime/")]
    sources = [*(ROOT / part for part in PARTS), *probe]
    texts = [(f"ridgeline/{path.relative_to(ROOT).as_posix()}", path.read_text(encoding="utf-8")) for path in sources]
    return [("__main__.py", START), *packages, packed_names(Path("ridgeline/hardware")), *texts]


LONGEST_MINUTES = 24 * 60
BIGGEST_PROFILE = 64 << 20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMeasured:
    """The best figure of one kind, and the sizes at which it was reached."""

    what: str
    dtype: str
    value: float
    unit: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Rows of one kind that failed for one reason."""

    op: str
    impl: str
    dtype: str
    why: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterization(Outcome):
    """What a run brought.

    path       the profile it wrote
    head       what was measured on: chip, device, host, software
    rows       one table a measurement, as the file holds them
    left       cases that the time box, or whoever stopped it, left out
    stopped    whether it was stopped: `--resume` goes on
    """

    path: Path

    JSON = """
        kind='characterization' output=path chip device software minutes rows=counts ceilings
        failures=failure_counts left waited stopped=is_stopped
    """

    @property
    def chip(self) -> str | None:
        """Catalog id of the chip."""
        return self.head.get("chip")

    @property
    def device(self) -> JsonObject:
        return dict(self.head.get("device", {}))

    @property
    def software(self) -> JsonObject:
        return dict(self.head.get("software", {}))

    @property
    def minutes(self) -> float:
        return float(self.head.get("minutes", 0.0))

    @property
    def good(self) -> list[JsonObject]:
        """Rows that ran and are right."""
        return [row for row in self.rows if row.get("ok")]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by op."""
        return dict(Counter(row["op"] for row in self.good))

    @property
    def waited(self) -> int:
        """Rows during which threads waited for a core in every run."""
        return sum(bool(row.get("waited")) for row in self.good)

    @property
    def ceilings(self) -> tuple[BestMeasured, ...]:
        """The best product per format, the best bandwidths, the shortest launches, and energy where it was told."""
        return best_measured(self.good)

    @property
    def failure_counts(self) -> tuple[FailureCount, ...]:
        """Failing rows, those of one kind and reason together."""
        counts = Counter(
            (row["op"], row.get("impl", ""), row.get("dtype", ""), str(row.get("why", ""))) for row in self.failures
        )
        return tuple(
            FailureCount(op=op, impl=impl, dtype=dtype, why=why, rows=count)
            for (op, impl, dtype, why), count in counts.items()
        )


def characterize(
    device: str = "cuda",
    *,
    minutes: float = 5.0,
    output: Path | str = "profile.json",
    resume: bool = False,
    only: Sequence[str] = (),
    chip: str | None = None,
    imports: Sequence[str] = (),
    backend: str = "",
    seed: int = 0,
    progress: ProgressCallback = ignore_progress,
) -> Characterization:
    """Measure compute, memory, host and links of a torch device, and write the profile.

    device     any torch device string: cuda, cuda:1, cpu, npu, xpu, mps
    minutes    the time box; the most informative shapes come first
    output     the profile; rows are kept in OUTPUT.journal while it runs
    resume     go on with the journal of a run that broke off
    only       some of the groups gemm, grouped, attention, rows, optimizer, memory, host, overlap, sustained and
               interconnect
    chip       catalog id, where the device's name does not tell
    imports    packages that register a device or further ops
    backend    of torch.distributed, under torchrun; the device's own if empty
    progress   hears of every case; where it answers False the profile has the rows until then, and `resume` goes on
    """
    path = Path(output)
    _check(minutes, only, chip, path, imports)
    need_torch("characterize")
    settings = Settings(device=device, minutes=minutes, imports=tuple(imports), seed=seed)
    world = find_world()

    def watch(count: int, total: int, case: KernelCase, rows: Sequence[JsonObject]) -> bool | None:
        what = f"{case.kernel.op} {case.kernel.impl} {case.kernel.dtype}".strip()
        return progress(count, total, what, best_product(rows))

    try:
        outcome = measure_ranks(
            settings, path, world, resume=resume, only=only, chip=chip, group_backend=backend, watch=watch
        )
    except Refused as wrong:
        todo = "name a torch device that is here (cpu always is), or its package with --import"
        raise InputError(
            Problem(path="--device", given=f"{device!r}: {wrong}", expected="a device torch can use", todo=todo)
        ) from None
    return Characterization(
        path=path, head=outcome.head, rows=outcome.rows, left=outcome.left, is_stopped=outcome.is_stopped
    )


def merge_profiles(paths: Iterable[Path | str], output: Path | str) -> Characterization:
    """Profiles of several ranks or nodes as one: every row with the rank it was measured on, in the order given."""
    path = Path(output)
    refuse_unwritable(path)
    files = [Path(path) for path in paths]
    if not files:
        raise InputError(Problem(path="--merge", given="no files", expected="profiles of ranks, one a file"))
    outcome = merge_files(files, path, read_profile_table)
    return Characterization(path=path, head=outcome.head, rows=outcome.rows, left=outcome.left)


def read_profile_table(path: Path) -> JsonObject:
    """A profile as a plain table; `InputError` for anything that is none."""
    table = parse_table(path.with_suffix(".json"), read_text(path, BIGGEST_PROFILE)).data
    rows = table.get("rows")
    right = isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("op"), str) for row in rows)
    if table.get("ridgeline_profile") != VERSION or not right:
        given_text = f"ridgeline_profile = {str(table.get('ridgeline_profile'))[:20]}"
        todo = "write one with `ridgeline characterize -o FILE`"
        raise InputError(
            Problem(path="", given=given_text, expected=f"a profile of version {VERSION}", todo=todo, where=path.name)
        )
    return table


def need_torch(verb: str) -> None:
    """Refuse with advice where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        todo = "`pip install ridgeline[torch]`, in the build of your accelerator"
        raise InputError(Problem(path=verb, given="no module torch", expected="torch", todo=todo))


def _check(minutes: float, only: Sequence[str], chip: str | None, path: Path, imports: Sequence[str]) -> None:
    problems = [not_among("--only", word, GROUPS) for word in only if word not in GROUPS]
    if not (math.isfinite(minutes) and 0 < minutes <= LONGEST_MINUTES):
        expected_text = f"a number above 0 and up to {LONGEST_MINUTES}"
        problems.append(Problem(path="--minutes", given=f"{minutes:g}", expected=expected_text))
    wrong = [name for name in imports if not all(part.isidentifier() for part in name.split("."))]
    problems += [Problem(path="--import", given=repr(name), expected="the name of a Python package") for name in wrong]
    if problems:
        raise InputError(problems)
    if chip is not None:
        CHIPS[chip]
    refuse_unwritable(path)


def best_product(rows: Iterable[JsonMapping]) -> str:
    """The fastest product of a run so far, in words; empty before there is one."""
    products = (row for row in rows if row["op"] == "gemm" and row.get("ok"))
    best = max(best_measured(products), key=lambda ceiling: ceiling.value, default=None)
    return f"{format_quantity(best.value, best.unit)} in {best.dtype}" if best else ""


DIMS = ("m", "n", "k", "bytes", "kind", "cold", "pinned", "impl")
TRAFFIC = {"copy": 2, "read": 1, "write": 1, "h2d": 1, "d2h": 1}
NAMES = {"h2d": "host to device", "d2h": "device to host"}


def best_measured(rows: Iterable[JsonMapping]) -> tuple[BestMeasured, ...]:
    """The best product per format, the best bandwidths, the shortest launches, and energy where it was told."""
    best: dict[tuple[str, str], BestMeasured] = {}

    def offer(what: str, dtype: str, value: float, unit: str, row: JsonMapping, lower: bool = False) -> None:
        present = best.get((what, dtype))
        if present is None or (value < present.value if lower else value > present.value):
            at = " ".join(f"{name}={row[name]}" for name in DIMS if name in row)
            best[what, dtype] = BestMeasured(what=what, dtype=dtype, value=value, unit=unit, at=at)

    for row in rows:
        op, seconds = row["op"], row["s"]
        if op == "gemm":
            offer("product", row["dtype"], 2.0 * row["m"] * row["n"] * row["k"] / seconds, "FLOP/s", row)
        elif op in TRAFFIC and row.get("cold", True):
            offer(str(NAMES.get(op, op)), "", TRAFFIC[op] * row["bytes"] / seconds, "B/s", row)
        elif (op, row.get("kind")) in (("launch", "kernel"), ("graph", "node")):
            offer(f"{op} {row['kind']}", "", seconds, "s", row, lower=True)
        elif op == "sustained" and row.get("energy_j"):
            if "m" in row:
                flops = 2.0 * row["m"] * row["n"] * row["k"]
                offer("energy a flop", row["dtype"], row["energy_j"] / flops, "J", row, lower=True)
            else:
                offer("energy a byte", "", row["energy_j"] / (2 * row["bytes"]), "J", row, lower=True)
    return tuple(best.values())
