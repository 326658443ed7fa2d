"""The fitted numbers of serving: what a serving engine's step takes beyond what its ops do, and how it sustains them.

Kernels and links are priced as in training. What differs when a model serves is small, physical and few: memory-bound
products of a few rows, flash decoding, custom all-reduces of small messages, the host between two steps, and work that
grows with requests rather than tokens. Each has one value, moved for a family of chips or an engine where rows say so:

    value = default * exp(common + family + engine)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from math import exp
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.records import dataclass
from ridgeline.hardware.chip import Chip
from ridgeline.plan.engine import Engine

SHIPPED_SERVING = Path(__file__).parent / "serving_calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingParameter:
    """One fitted number: what it is, its unit, its value before any fit, and what it may differ by."""

    name: str
    unit: str
    default: float
    per: tuple[str, ...]
    meaning: str


_LIST = (
    ServingParameter(
        name="product_memory", unit="x", default=1.0, per=("family", "engine"),
        meaning="products that memory bounds, against the same at the rate of large copies",
    ),
    ServingParameter(
        name="product_compute", unit="x", default=1.0, per=("family", "engine"),
        meaning="products that the matrix unit bounds, against training's",
    ),
    ServingParameter(
        name="expert_product", unit="x", default=1.2, per=("family", "engine"),
        meaning="products of routed experts, against a single one: small groups, and experts that get more than others",
    ),
    ServingParameter(
        name="expert_memory", unit="x", default=1.0, per=("family", "engine"),
        meaning="products of routed experts that memory bounds, against reading their weights at the rate of copies",
    ),
    ServingParameter(
        name="weight_only", unit="x", default=1.2, per=("family",),
        meaning="products whose weights are stored narrower than they are multiplied",
    ),
    ServingParameter(
        name="prefill_attention", unit="x", default=1.0, per=("family",),
        meaning="flash attention of prompts, against training's",
    ),
    ServingParameter(
        name="decode_attention", unit="x", default=1.0, per=("family", "engine"),
        meaning="reading the KV cache, against the rate of large copies",
    ),
    ServingParameter(
        name="decode_vector", unit="x", default=1.0, per=("family",),
        meaning="attention of decodes on vector units, against an exponential for every cached number and query head",
    ),
    ServingParameter(
        name="kernel", unit="s", default=1e-6, per=("engine",), meaning="chip idles around a kernel of a graph",
    ),
    ServingParameter(
        name="all_reduce", unit="s", default=4e-6, per=("link", "engine"),
        meaning="latency of a collective inside a step, per doubling of ranks",
    ),
    ServingParameter(
        name="wire", unit="x", default=1.0, per=("link",), meaning="collectives' bytes, against training's links",
    ),
    ServingParameter(
        name="step", unit="s", default=5e-4, per=("engine",),
        meaning="between two steps: scheduling, inputs, sampling and outputs that nothing hides",
    ),
    ServingParameter(
        name="request", unit="s", default=2e-6, per=("engine",), meaning="the same for every request of the step",
    ),
    ServingParameter(
        name="first_token", unit="s", default=5e-3, per=("engine",),
        meaning="a request under load waits for beside steps before its first token: client, server, tokenizer",
    ),
    ServingParameter(
        name="arrival", unit="s", default=2e-3, per=("engine",),
        meaning="the same for every other request in flight: a front end that takes them one at a time",
    ),
    ServingParameter(
        name="issue", unit="s", default=1e-5, per=("engine",),
        meaning="host issues one kernel of a step that no graph holds",
    ),
)  # fmt: skip
SERVING_PARAMETERS: Mapping[str, ServingParameter] = MappingProxyType({item.name: item for item in _LIST})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCalibration:
    """Logarithms by `name`, `name/family` and `name/engine`; what is absent is zero."""

    offsets: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    source: str = "defaults"

    def value(self, name: str, chip: Chip, engine: Engine) -> float:
        """The number for one family of chips under one engine."""
        return self.owned(name, serving_owners(chip, engine))

    def owned(self, name: str, owner: Mapping[str, str]) -> float:
        """The same for what a chip and an engine are known by."""
        item = SERVING_PARAMETERS[name]
        moved = sum(self.offsets.get(f"{name}/{owner[per]}", 0.0) for per in item.per)
        return item.default * exp(self.offsets.get(name, 0.0) + moved)

    def knows(self, engine: Engine) -> bool:
        """Whether rows of this engine took part in the fit."""
        return any(key.endswith(f"/{engine.fitted_id}") for key in self.offsets)


def serving_owners(chip: Chip, engine: Engine) -> dict[str, str]:
    """What a parameter may differ by: the family of chips, the kind of links between them, and the engine."""
    pcie = chip.scaleup is not None and "pcie" in (chip.scaleup.kind or "").lower()
    link = f"{chip.family}-pcie" if pcie else f"{chip.family}-links"
    return {"family": chip.family, "link": link, "engine": engine.fitted_id}


def read_serving_calibration(path: Path = SHIPPED_SERVING) -> ServingCalibration:
    """The calibration in a file, or an `InputError`."""
    try:
        data: Any = json.loads(path.read_text())
        offsets = {str(key): float(value) for key, value in data["offsets"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise InputError(f"{path.name}: expected a serving calibration with offsets ({wrong})") from None
    return ServingCalibration(offsets=MappingProxyType(offsets), source=str(data.get("source", path.name)))


def serving_spread(engine: Engine, asked: str) -> tuple[float, float, int]:
    """Around a prediction of 1 s, where nine of ten measurements are expected, and from how many rows: those of static
    batches and phases; twice as wide in logarithms for an engine that none was measured of."""
    data: Any = json.loads(SHIPPED_SERVING.read_text()) if SHIPPED_SERVING.exists() else {}
    kinds = ("static/tpot", "static/throughput") if asked == "step" else ("static/ttft",)
    known = [data["spread"][kind] for kind in kinds if kind in data.get("spread", {})]
    if not known:
        return 0.5, 2.0, 0
    low, high = min(one[0] for one in known), max(one[1] for one in known)
    rows = sum(data["errors"][kind]["n"] for kind in kinds if kind in data["errors"])
    wider = 1.0 if shipped_serving().knows(engine) else 2.0
    return low**wider, high**wider, rows


@cache
def shipped_serving() -> ServingCalibration:
    """The calibration that ships, or the defaults before there is one."""
    return read_serving_calibration() if SHIPPED_SERVING.exists() else ServingCalibration()
