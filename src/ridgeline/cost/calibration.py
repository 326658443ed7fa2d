"""The fitted numbers: what each is physically, its unit, its plausible range, and how a calibration sets it.

A parameter has one value for everything, moved for a family of chips, a chip, or an engine where runs say so. It is
held as an offset x from its default, on a scale that cannot leave its plausible range where it has one:

    value = low * (high / low) ** sigmoid(x0 + x)          x0 puts the default at x = 0
    value = default * exp(x)                               without a range

so a chip or an engine nobody measured gets the common value, and no fit can leave physics.

PARAMETERS are those of kernels and links, and of a training step. SERVING_PARAMETERS are what differs when a model
serves: memory-bound products of a few rows, flash decoding, custom all-reduces of small messages, the host between two
steps, and work that grows with requests rather than tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cache
from math import exp, inf, log
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_table
from ridgeline.core.records import dataclass
from ridgeline.cost.anchored import Anchored, Components, anchored_from, components_from
from ridgeline.cost.profile import Profile, shipped_profiles
from ridgeline.hardware.chip import Chip
from ridgeline.ir.ops import Num
from ridgeline.plan.engine import Engine

Owner = Literal["family", "die", "chip", "kernel", "engine", "runtime", "link"]
# how far, in units of x, the members of each may differ: chips by family first
APART: Mapping[Owner, float] = MappingProxyType(
    {"family": 1.4, "die": 0.35, "chip": 0.35, "kernel": 0.3, "engine": 0.4, "runtime": 0.4}
)
# a library's attention against the best one of a family of chips, before runs move it: FlashAttention-2 has no Hopper
# instructions (half of cuDNN on an H200, 0.63 of it on an H100); Triton kernels of 2023 on an A100 reach 0.6 of it
KERNELS: Mapping[str, float] = MappingProxyType(
    {"flash-2@hopper": 0.55, "flash-2@blackwell": 0.4, "triton@ampere": 0.6, "triton@hopper": 0.35}
)
# the best matrix product a family of chips was seen to reach, as a share of its peak, against an H100's 0.80 and beyond
# what rated power explains: peaks are quoted at a boost clock that full load does not hold. MI300X 668 and MI325X 785
# of 1307 TFLOP/s in bf16, tuned (ml-engineering, maximum achievable matmul flops): 0.68 and 0.73. MI355X was not tuned
# A TPU's peak is its array times the clock that it runs at, whatever the load: no boost is quoted that power takes
# back, and no rated power is published. 0.95 of it, what a matrix unit reaches at best, is 1.2 of H100's (assumed)
PRODUCTS: Mapping[str, float] = MappingProxyType({"cdna3*": 0.7, "tpu*": 1.2})
# engines that are a bare loop of forward, backward and update: nothing is loaded, logged or saved beside them
BARE_LOOPS = ("torch-compile", "torch-eager")
# of what other software loses: of the seconds that a step costs whatever it does (a launch or two, a synchronisation),
# and of a step to what no op explains (kernels of five traced steps on an H200 fill 97 to 100 % of them)
BARE_SHARES: Mapping[str, float] = MappingProxyType({"fixed": 0.1, "slack": 0.25})
COMMON = 1 / 3  # how far a common value moves for one user, against what is a chip's or an engine's own
SHIPPED_CALIBRATION = Path(__file__).parent / "calibration.json"
SHIPPED_SERVING = Path(__file__).parent / "serving_calibration.json"
FURTHEST = 100.0  # no offset that keeps a value off the ends of its range is anywhere near


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One fitted number.

    low, high   ends of its plausible range; 0 and infinity where it has none
    per         what it may differ by: chip (and its family), engine, links, or nothing
    spread      how far the common value may move, in units of x
    group       what an ablation switches off together
    """

    name: str
    unit: str
    default: float
    meaning: str
    low: float = 0.0
    high: float = inf
    group: str = "serving"
    per: tuple[Owner, ...] = ()
    spread: float = 1.0

    @property
    def common_spread(self) -> float:
        """How far the common value moves for one user, in units of x."""
        return self.spread * COMMON

    @overload
    def value(self, offset: float) -> float: ...
    @overload
    def value(self, offset: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def value(self, offset: Num) -> Num:
        """The number at an offset, or at each of many.

        >>> round(PARAMETERS["memory"].value(0.0), 3)
        0.82
        """
        e = np.exp if isinstance(offset, np.ndarray) else exp
        if not self.low:
            return self.default * e(offset)
        at = log(self.default / self.low) / log(self.high / self.low)
        number: Num = self.low * e(log(self.high / self.low) / (1 + e(-(log(at / (1 - at)) + offset))))
        return number


def _parameters(kind: str) -> Mapping[str, Parameter]:
    """The parameters of `parameters.json`; a `note` there says where a range or default comes from."""
    rows = json.loads((Path(__file__).parent / "parameters.json").read_text(encoding="utf-8"))[kind]
    fields = {name: {key: value for key, value in row.items() if key != "note"} for name, row in rows.items()}
    return MappingProxyType(
        {name: Parameter(name=name, **row | {"per": tuple(row.get("per", ()))}) for name, row in fields.items()}
    )


PARAMETERS, SERVING_PARAMETERS = _parameters("training"), _parameters("serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Offsets by `name` and by `name/chip` or `name/engine`; what is absent is zero.

    profiles   measured kernels by chip; what they reach is priced by them, the rest by the parameters
    components   how far a source that no fit has seen is off, and how alike its runs are
    anchored     the user's own runs that moved the offsets, and what they leave beside them; None without
    """

    offsets: Mapping[str, float]
    source: str = "defaults"
    profiles: Mapping[str, Profile] = field(default_factory=lambda: MappingProxyType({}))
    components: Components = Components()
    anchored: Anchored | None = None

    def value(self, name: str, chip: Chip, engine: Engine) -> float:
        """The parameter's value for one chip under one engine."""
        return self.owner_value(name, owners(chip, engine))

    def owner_value(self, name: str, own: Owners) -> float:
        """The parameter's value for what a scenario's chip and engine are known by."""
        return _owned_value(PARAMETERS[name], self.offsets, own) * own.known_share(name)

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """A calibration from a file that `ridgeline fit --with` wrote; `InputError` for anything else."""
        table = read_table(path).data
        offsets, source, where = table.get("offsets"), table.get("source"), str(path)
        if not isinstance(offsets, Mapping) or not isinstance(source, str):
            expected_text = "a calibration with `source` and `offsets`"
            todo = "write one with `ridgeline fit --with FILE.csv -o FILE.json`"
            raise InputError(Problem(path="", given="another table", expected=expected_text, todo=todo, where=where))
        problems = [
            Problem(
                path=f"offsets.{name}",
                given=repr(value)[:40],
                expected="a number of a known parameter",
                where=where,
            )
            for name, value in offsets.items()
            if name.partition("/")[0] not in PARAMETERS
            or isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not abs(value) < FURTHEST
        ]
        if problems:
            raise InputError(problems)
        components = table.get("components")
        return cls(
            offsets=MappingProxyType({name: float(x) for name, x in offsets.items()}),
            source=source,
            profiles=shipped_profiles(),
            components=default_calibration().components if components is None else components_from(components, where),
            anchored=None if table.get("anchored") is None else anchored_from(table["anchored"], where),
        )

    def before_anchors(self) -> Calibration:
        """The calibration as it was before runs anchored it."""
        if self.anchored is None:
            return self
        offsets = dict(self.offsets)
        for name, by in self.anchored.moved.items():
            offsets[name] = offsets.get(name, 0.0) - by
        source = self.source.partition(", anchored on ")[0]
        return replace(self, offsets=MappingProxyType(offsets), source=source, anchored=None)

    def knows(self, chip: Chip, engine: Engine) -> tuple[bool, bool]:
        """Whether runs on this chip, and of this engine, took part in the fit."""
        ends = f"/{chip.fitted_id}", f"/{engine.fitted_id}"
        return any(key.endswith(ends[0]) for key in self.offsets), any(key.endswith(ends[1]) for key in self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCalibration:
    """Offsets of serving parameters by `name`, `name/family`, `name/link` and `name/engine`; what is absent is zero."""

    offsets: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    source: str = "defaults"

    def owner_value(self, name: str, own: Owners) -> float:
        """The parameter's value for what a scenario's chip and engine are known by."""
        return _owned_value(SERVING_PARAMETERS[name], self.offsets, own)

    def knows(self, engine: Engine) -> bool:
        """Whether rows of this engine took part in the fit."""
        return any(key.endswith(f"/{engine.fitted_id}") for key in self.offsets)


def _owned_value(item: Parameter, offsets: Mapping[str, float], own: Owners) -> float:
    """A parameter's value at its common offset and those of its owners."""
    shift = sum(offsets.get(f"{item.name}/{of}", 0.0) for owner in item.per if (of := own.of(owner)))
    return item.value(offsets.get(item.name, 0.0) + shift)


class Owners(NamedTuple):
    """What a scenario's parameters may differ by, as calibrations name it; empty where nothing is known.

    family, chip     of chips
    die              of chips that differ in memory or links alone, the one that lends its name to the cores of all
    kernel           the engine's attention library on that family
    engine           the software
    runtime          what it is built on and shares with relatives: Megatron-Core, FSDP, XLA, plain PyTorch
    link             kind of links between chips of that family
    """

    family: str
    die: str
    chip: str
    kernel: str
    engine: str
    runtime: str = ""
    link: str = ""

    def of(self, owner: Owner) -> str:
        """By the word of `APART`, or `link`."""
        return str(getattr(self, owner))

    @property
    def of_training(self) -> tuple[str, ...]:
        """What parameters of training may differ by, in the order of `APART`."""
        return tuple(self[: len(APART)])

    def known_share(self, name: str) -> float:
        """What a parameter is multiplied with for reasons that kernels alone have shown; 1 for most.

        >>> from ridgeline.hardware.load import chip
        >>> from ridgeline.plan.engine import engine
        >>> h100, titan, nemo = chip("h100-sxm"), engine("torchtitan"), engine("nemo")
        >>> owners(h100, titan).known_share("attention"), owners(h100, nemo).known_share("attention")
        (0.55, 1.0)
        >>> owners(chip("mi325x"), engine("rocm-mlperf")).known_share("matmul_8")
        0.7
        >>> owners(h100, engine("torch-compile")).known_share("fixed")
        0.1
        """
        if name in BARE_SHARES and self.engine in BARE_LOOPS:
            return BARE_SHARES[name]
        if name.startswith("matmul"):
            return PRODUCTS.get(self.family, 1.0)
        return KERNELS.get(self.kernel, 1.0) if name == "attention" else 1.0


def owners(chip: Chip, engine: Engine) -> Owners:
    """What a chip and an engine are known by: values of theirs, so that a copy in a user's file is priced alike.

    >>> from ridgeline.hardware.load import chip
    >>> from ridgeline.plan.engine import engine
    >>> tuple(owners(chip("h200-sxm"), engine("nemo")))
    ('hopper*', 'h200-sxm', 'h200-sxm', 'cudnn@hopper', 'nemo', 'megatron-core~', 'hopper-links')
    """
    family, kernel = chip.family, engine.kernel
    pcie = "pcie" in chip.scaleup.kind.lower()
    return Owners(
        family=family and f"{family}*",
        die=chip.fitted_die,
        chip=chip.fitted_id,
        kernel=kernel and family and f"{kernel}@{family}",
        engine=engine.fitted_id,
        runtime=engine.family and f"{engine.family}~",
        link=f"{family}-pcie" if pcie else f"{family}-links",
    )


@cache
def default_calibration() -> Calibration:
    """The calibration that comes with Ridgeline, fitted on the bundled rows; the defaults before there is one."""
    if not SHIPPED_CALIBRATION.exists():
        return Calibration(offsets=MappingProxyType({}))
    table = json.loads(SHIPPED_CALIBRATION.read_text(encoding="utf-8"))
    components = table.get("components")
    return Calibration(
        offsets=MappingProxyType(table["offsets"]),
        source=table["source"],
        profiles=shipped_profiles(),
        components=Components() if components is None else components_from(components, str(SHIPPED_CALIBRATION)),
    )


def read_serving_calibration(path: Path = SHIPPED_SERVING) -> ServingCalibration:
    """The calibration in a file, or an `InputError`."""
    try:
        data = json.loads(path.read_text())
        offsets = {str(key): float(value) for key, value in data["offsets"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise InputError(f"{path.name}: expected a serving calibration with offsets ({wrong})") from None
    return ServingCalibration(offsets=MappingProxyType(offsets), source=str(data.get("source", path.name)))


def serving_spread(engine: Engine, asked: str) -> tuple[float, float, int]:
    """Around a prediction of 1 s, where nine of ten measurements are expected, and from how many rows: those of static
    batches and phases; twice as wide in logarithms for an engine that none was measured of."""
    data = json.loads(SHIPPED_SERVING.read_text()) if SHIPPED_SERVING.exists() else {}
    kinds = ("static/tpot", "static/throughput") if asked == "step" else ("static/ttft",)
    ranges = [data["spread"][kind] for kind in kinds if kind in data.get("spread", {})]
    if not ranges:
        return 0.5, 2.0, 0
    low, high = min(ends[0] for ends in ranges), max(ends[1] for ends in ranges)
    rows = sum(data["errors"][kind]["n"] for kind in kinds if kind in data["errors"])
    wider = 1.0 if shipped_serving().knows(engine) else 2.0
    return low**wider, high**wider, rows


@cache
def shipped_serving() -> ServingCalibration:
    """The calibration that ships, or the defaults before there is one."""
    return read_serving_calibration() if SHIPPED_SERVING.exists() else ServingCalibration()
