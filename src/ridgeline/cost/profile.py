"""Turn a profile file into a Profile: what kernels, copies and collectives of one machine were measured at.

A profile is JSON with one measurement a line (`docs/profile.md`). Input is hostile: size, rows, words and numbers are
capped, and anything else than version 1 is an `InputError` that says what was expected. Its ceilings are the best rate
of every kind that was measured, beside what the data sheet says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import dtype as dtype_of
from ridgeline.core.dtype import peak_key
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import parse_table, read_text, write_text
from ridgeline.core.records import dataclass
from ridgeline.cost.fingerprint import check_fingerprint, with_fingerprint
from ridgeline.hardware.chip import Chip
from ridgeline.ir.kernel import ADAM_PASSES, DIMS, NECESSARY_DIMS, OPS, WORDS, Kernel

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One rate that was measured: its best value in flops/s, bytes/s or seconds, and the data sheet's; None without.

    joules   of a flop or a byte, where the device told its power
    where    the kernel that reached it
    """

    name: str
    unit: str
    measured: float
    datasheet: float | None
    where: str
    joules: float | None = None

    JSON = "name unit measured datasheet share joules where"

    @property
    def share(self) -> float | None:
        """Measured over the data sheet."""
        return self.measured / self.datasheet if self.datasheet else None


def _best_rates(profile: Profile, chip: Chip | None) -> Iterator[Ceiling]:
    peaks = {key: rate.value for key, rate in chip.peak.items()} if chip else {}
    for dtype in FORMATS:
        rows = [row for row in profile.of("gemm") if row.dtype == dtype]
        yield from _best(f"product {dtype}", "FLOP/s", rows, peaks.get(peak_key(dtype, peaks)))
    wide = peaks.get("bf16") or peaks.get("fp16")
    for op in ("attention_forward", "attention_backward"):
        for impl in dict.fromkeys(row.impl for row in profile.of(op)):
            rows = [row for row in profile.of(op) if row.impl == impl]
            yield from _best(f"{op.replace('_', ' ')} {impl}", "FLOP/s", rows, wide)
    memory = chip.hbm.bandwidth.value if chip and chip.hbm.bandwidth else None
    for op in ("copy", "read", "write"):
        rows = [row for row in profile.of(op) if row.dims.get("bytes", 0) >= LARGE_COPY]
        yield from _best(op, "B/s", rows, memory)
    host = chip.host.bandwidth.value if chip and chip.host.bandwidth else None
    for op in ("h2d", "d2h"):
        rows = [row for row in profile.of(op) if row.dims.get("pinned", 1)]
        yield from _best(f"{op} pinned", "B/s", rows, host)
    for op in ("launch", "graph"):
        for row in profile.of(op):
            kind = f"{op} {row.kernel.words.get('kind', row.impl)}"
            yield Ceiling(name=kind, unit="s", measured=row.seconds, datasheet=None, where=row.name)


def _best(name: str, unit: str, rows: Sequence[Measurement], sheet: float | None) -> Iterator[Ceiling]:
    """The row with the highest rate, where there is any."""
    if not rows:
        return
    work = [float(row.kernel.flops if unit == "FLOP/s" else row.kernel.bytes) for row in rows]
    place = max(range(len(rows)), key=lambda row: work[row] / rows[row].seconds)
    best, amount = rows[place], work[place]
    power = best.figures.get("power_w")
    energy = best.figures.get("energy_j") or (power * best.seconds if power else None)
    joules = energy / amount if energy else None
    rate = amount / best.seconds
    yield Ceiling(name=name, unit=unit, measured=rate, datasheet=sheet, where=best.name, joules=joules)


VERSION = 1
BIGGEST_PROFILE = 32 * 1024 * 1024  # bytes
MOST_ROWS = 100_000
HEAD_LINES = 10  # of a file, which name the chip
LONGEST_WORD = 200  # characters that are kept of any text
MOST_WORDS = 60  # keys of a row, or of what describes a device
LARGEST_SIZE = 2**53
LARGE_COPY = 64 * 1024 * 1024  # bytes that no cache holds
LONGEST_S = 1e5  # seconds; no kernel takes a day
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "products": OPS[:2],
        "attention": OPS[2:5],
        "rows": OPS[5:14],
        "optimizer": ("adamw",),
        "memory": ("copy", "read", "write"),
        "host": ("h2d", "d2h", "launch", "graph"),
        "interconnect": OPS[21:27],
        "together": ("overlap", "sustained"),
    }
)
FIGURES = ("power_w", "energy_j", "clock_mhz", "slowdown", "beside_slowdown", "cold")
EVERY = ""  # the chip of a profile whose device no catalog knows
SHIPPED_PROFILES = Path(__file__).parent / "profiles"
TODO = "write one with `ridgeline characterize -o FILE`, or name none with --profile none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A kernel, copy or collective and the seconds it took.

    seconds   the median of `runs` runs; 0 where it failed, and `error` says why
    spread    how far runs lie apart, as a share of the median
    figures   power_w, energy_j, clock_mhz, slowdown where the device told
    rank      whose chip it was, where several were measured
    """

    kernel: Kernel
    seconds: float
    spread: float = 0.0
    runs: int = 1
    error: str = ""
    figures: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    rank: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it ran and its result was right."""
        return self.seconds > 0

    @property
    def name(self) -> str:
        """What was measured, as one text: the same for two profiles' rows that can be compared."""
        return str(self.kernel)

    @property
    def op(self) -> str:
        """The op of its kernel."""
        return self.kernel.op

    @property
    def impl(self) -> str:
        """Whose kernel it is."""
        return self.kernel.impl

    @property
    def dtype(self) -> str:
        """The format it computes in."""
        return self.kernel.dtype

    @property
    def dims(self) -> Mapping[str, float]:
        """Sizes of its kernel by name."""
        return self.kernel.dims


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # one is itself: surfaces are kept by it
class Profile:
    """What was measured on one device or system, with the device, host and software it was measured with.

    fingerprint   how its arithmetic unit computes, as `ridgeline bringup --save-fingerprint` found; empty: not known
    """

    rows: tuple[Measurement, ...]
    chip: str = ""
    device: JsonMapping = field(default_factory=lambda: MappingProxyType({}))
    host: JsonMapping = field(default_factory=lambda: MappingProxyType({}))
    software: JsonMapping = field(default_factory=lambda: MappingProxyType({}))
    taken: str = ""
    source: str = ""
    fingerprint: JsonMapping = field(default_factory=lambda: MappingProxyType({}))

    def of(self, *ops: str) -> tuple[Measurement, ...]:
        """The rows of these ops that ran."""
        return tuple(row for row in self.rows if row.ok and row.op in ops)

    @property
    def copy_bytes_per_s(self) -> float | None:
        """Bytes that large copies read and write in a second at best; None where none was measured.

        The best, not the median: copies of 1 GiB and more are another engine's, at two thirds of that on an H200.
        """
        return _copy_bytes_per_s(self)

    def update_bytes_per_s(self, dtype: str) -> float | None:
        """Bytes that the largest fused AdamW with states of that format reads and writes in a second; None where none
        was measured: weight, gradient and both moments read, all but the gradient written."""
        updates = [row for row in self.of("adamw") if row.impl == "fused" and row.dtype == dtype]
        largest = max(updates, key=lambda row: row.dims["parameters"], default=None)
        if largest is None or ADAM_PASSES * largest.dims["parameters"] < LARGE_COPY:
            return None
        width = dtype_of(dtype).bytes_per_element
        return ADAM_PASSES * width * largest.dims["parameters"] / largest.seconds

    @property
    def clocks(self) -> tuple[float, float]:
        """Time of a large 16-bit product from rest, and after seconds of load, each over that of its own row here.

        Rows are timed somewhere between the two, as their protocol has it; both 1 where not all three were measured.
        """
        seconds_of = {
            (row.impl, tuple(row.dims.get(side, 0) for side in "mnk")): row.seconds
            for row in self.of("sustained")
            if row.dtype == "bf16"
        }
        shapes = [shape for word, shape in seconds_of if word == "burst" and ("steady", shape) in seconds_of]
        for shape in sorted(shapes, key=math.prod, reverse=True):
            for row in self.of("gemm"):
                same_product = tuple(row.dims[side] for side in "mnk") == shape and row.dtype == "bf16"
                if same_product and row.figures.get("cold", 1.0):
                    return seconds_of["burst", shape] / row.seconds, seconds_of["steady", shape] / row.seconds
        return 1.0, 1.0

    @property
    def clock_under_load(self) -> float | None:
        """MHz that large 16-bit products settle at after seconds of load; None where no clock was told."""
        steady_rows = [
            row for row in self.of("sustained") if row.impl == "steady" and row.dtype == "bf16" and "m" in row.dims
        ]
        clocked_rows = [row for row in steady_rows if row.figures.get("clock_mhz")]
        largest = max(clocked_rows, key=lambda row: math.prod(row.dims[side] for side in "mnk"), default=None)
        return largest.figures["clock_mhz"] if largest else None

    @property
    def title(self) -> str:
        """A short name for people."""
        device = str(self.device.get("name") or self.chip or "a device")
        return f"{device}, {self.taken}" if self.taken else device

    def text(self) -> str:
        """A profile as its file holds it, one measurement a line."""
        head = {
            "ridgeline_profile": VERSION,
            "chip": self.chip or None,
            "device": dict(self.device),
            "host": dict(self.host),
            "software": dict(self.software),
            "taken": self.taken,
            **({"fingerprint": dict(self.fingerprint)} if self.fingerprint else {}),
        }
        top = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        lines = [json.dumps(_line(row)) for row in in_order(self.rows)]
        return "{\n" + ",\n".join(top) + ',\n  "rows": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"

    def ceilings(self, chip: Chip | None = None) -> tuple[Ceiling, ...]:
        """The best of what it holds, in a fixed order."""
        return tuple(_best_rates(self, chip))


@lru_cache(maxsize=64)
def _copy_bytes_per_s(profile: Profile) -> float | None:
    """Bytes/s of the fastest large copy, looked for once: every priced step asks for it."""
    large = [row for row in profile.of("copy") if row.dims.get("bytes", 0) >= LARGE_COPY]
    return max((2 * row.dims["bytes"] / row.seconds for row in large), default=None)


def read_profile(path: Path | str) -> Profile:
    """A profile from its file; `InputError` for anything that is none."""
    path = Path(path)
    return profile_of(_plain(path), str(path))


def _plain(path: Path) -> JsonObject:
    return parse_table(path.with_suffix(".json"), read_text(path, BIGGEST_PROFILE)).data


def save_fingerprint(path: Path, table: JsonMapping) -> None:
    """Put a fingerprint into a profile's file, which has none, in one step; all else stays as it was."""
    refuse_stored(read_profile(path), path)
    data = _plain(path)
    profile_of({**data, "fingerprint": dict(table)}, str(path))
    write_text(path, with_fingerprint(data, table))


def refuse_stored(profile: Profile, path: Path) -> None:
    """An `InputError` where a profile has a fingerprint: what later judgements go by is not replaced unasked."""
    if profile.fingerprint:
        todo = "leave --save-fingerprint away to judge by it; take `fingerprint` out of the file to store another"
        given_text, expected_text = "a profile that has a fingerprint", "one without"
        raise InputError(
            Problem(path="--save-fingerprint", given=given_text, expected=expected_text, todo=todo, where=str(path))
        )


def is_profile(path: Path) -> bool:
    """Whether a file begins as profiles do."""
    try:
        with open(path, "rb") as stream:
            return b'"ridgeline_profile"' in stream.read(200)
    except OSError:
        return False


def profile_of(data: JsonMapping, where: str) -> Profile:
    """A profile from a plain table."""
    if data.get("ridgeline_profile") != VERSION:
        given_text = f"ridgeline_profile = {str(data.get('ridgeline_profile'))[:20]}"
        raise InputError(
            Problem(path="", given=given_text, expected=f"a profile of version {VERSION}", todo=TODO, where=where)
        )
    rows = data.get("rows")
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        given_text = f"{len(rows)} rows" if isinstance(rows, list) else "no rows"
        raise InputError(Problem(path="rows", given=given_text, expected=f"a list of at most {MOST_ROWS}", where=where))
    chip = data.get("chip")
    problems: list[Problem] = []
    fingerprint = check_fingerprint(data.get("fingerprint"), where, problems)
    read = tuple(_rows(rows, problems, where))
    if problems:
        raise InputError(problems[:10])
    return Profile(
        rows=read,
        chip=chip[:LONGEST_WORD] if isinstance(chip, str) else "",
        device=_facts(data.get("device")),
        host=_facts(data.get("host")),
        software=_facts(data.get("software")),
        taken=_word(data.get("taken")),
        source=where,
        fingerprint=fingerprint,
    )


def _rows(rows: Sequence[object], problems: list[Problem], where: str) -> Iterator[Measurement]:
    for place, row in enumerate(rows):
        wrong = _wrong(row)
        if wrong:
            path, given_text, expected_text = wrong
            problems.append(Problem(path=f"rows[{place}]{path}", given=given_text, expected=expected_text, where=where))
            continue
        assert isinstance(row, dict)
        yield _measurement(row)


def _wrong(row: object) -> tuple[str, str, str] | None:
    """What is wrong with a row: where, what was given, what was expected."""
    if not isinstance(row, dict) or len(row) > MOST_WORDS or not isinstance(row.get("op"), str):
        return "", repr(row)[:40], "a measurement with its `op`"
    for key in DIMS:
        value = row.get(key, 1)
        if not isinstance(value, int) or not 0 <= value <= LARGEST_SIZE:
            return f".{key}", repr(value)[:40], "a whole number from 0"
    for key in NECESSARY_DIMS.get(row["op"], ()):
        if key not in row:
            return f".{key}", f"{row['op'][:LONGEST_WORD]} without it", "a size that its rate is computed from"
    for key in ("s", "spread", "runs", *FIGURES):
        value = row.get(key)
        if value is not None and (not isinstance(value, (int, float)) or not 0 <= value < math.inf):
            return f".{key}", repr(value)[:40], "a number from 0"
    if (row.get("s") or 0) > LONGEST_S:
        return ".s", repr(row["s"])[:40], f"seconds up to {LONGEST_S:g}"
    rank = row.get("rank")
    if rank is not None and (not isinstance(rank, int) or not 0 <= rank <= LARGEST_SIZE):
        return ".rank", repr(rank)[:40], "a whole number from 0"
    return None


def _measurement(row: JsonMapping) -> Measurement:
    is_failure = row.get("ok") is False or not row.get("s")
    error = _word(row.get("why")) or _word(row.get("error")) if is_failure else ""
    return Measurement(
        kernel=Kernel(
            op=_word(row["op"]),
            impl=_word(row.get("impl")),
            dtype=_word(row.get("dtype")),
            dims=MappingProxyType({key: int(row[key]) for key in DIMS if key in row}),
            words=MappingProxyType({key: _word(row[key]) for key in WORDS if isinstance(row.get(key), str)}),
        ),
        seconds=0.0 if is_failure else float(row["s"]),
        spread=float(row.get("spread") or 0.0),
        runs=int(row.get("runs") or 1),
        error=error or ("not measured" if is_failure else ""),
        figures=MappingProxyType({key: float(row[key]) for key in FIGURES if isinstance(row.get(key), (int, float))}),
        rank=row.get("rank"),
    )


def _word(value: object) -> str:
    return value[:LONGEST_WORD] if isinstance(value, str) else ""


def _facts(value: object) -> JsonMapping:
    """What describes a device, as far as it is words and numbers."""
    if not isinstance(value, dict):
        return MappingProxyType({})
    entries = list(value.items())[:MOST_WORDS]
    plain = {str(key)[:LONGEST_WORD]: item for key, item in entries if isinstance(item, (str, int, float, bool))}
    return MappingProxyType(
        {key: item[:LONGEST_WORD] if isinstance(item, str) else item for key, item in plain.items()}
    )


def in_order(rows: Iterable[Measurement]) -> list[Measurement]:
    """Rows in the order of `OPS`, then by implementation, format and size."""
    place = {op: index for index, op in enumerate(OPS)}
    return sorted(rows, key=lambda row: (place.get(row.op, len(OPS)), row.impl, row.dtype, tuple(row.dims.values())))


def _line(row: Measurement) -> JsonObject:
    line: JsonObject = {"op": row.op, "impl": row.impl, "dtype": row.dtype, **row.dims, **row.kernel.words}
    if row.ok:
        line |= {"s": float(f"{row.seconds:.5g}")}
        line |= {"spread": float(f"{row.spread:.3g}"), "runs": row.runs, "ok": True} if row.runs > 1 else {}
    else:
        line |= {"ok": False, "error": row.error}
    line |= row.figures
    return line if row.rank is None else line | {"rank": row.rank}


Choice = Profile | Path | str | None
"""A profile, its file, `none`, or nothing said: those that ship with Ridgeline."""


def profile_for(profiles: Mapping[str, Profile], chip: str) -> Profile | None:
    """The profile that prices a chip; None without any."""
    return profiles.get(EVERY) or profiles.get(chip)


class _OnDemand(Mapping[str, Profile]):
    """Profiles by chip, each read when it is first asked for: most commands are about a chip without one."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths, self._read = paths, dict[str, Profile]()

    def __getitem__(self, chip: str) -> Profile:
        if chip not in self._read:
            self._read[chip] = read_profile(self._paths[chip])
        return self._read[chip]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


@cache
def shipped_profiles() -> Mapping[str, Profile]:
    """The profiles that come with Ridgeline, by chip: each is the default for its chip. A file has its chip's name."""
    return _OnDemand({path.stem: path for path in sorted(SHIPPED_PROFILES.glob("*.json")) if _of_a_chip(path)})


def _of_a_chip(path: Path) -> bool:
    """Whether the head of a shipped file names the chip that the file is named after."""
    with path.open(encoding="utf-8") as file:
        return any(f'"chip": "{path.stem}"' in line for line in islice(file, HEAD_LINES))
