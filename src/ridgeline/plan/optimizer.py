"""What training updates and with what: an optimizer with the formats of its states, and low-rank adapters."""

from __future__ import annotations

from typing import Annotated, Literal

from ridgeline.core.dtype import DType, dtype
from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Via

# states an optimizer keeps per parameter, apart from the master copy
STATES = {"adamw": 2, "adam": 2, "lion": 1, "muon": 1, "momentum": 1, "sgd": 0, "adafactor": 0}


def optimizer_table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _no_master(value: object) -> object:
    return None if value == "none" else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer and the formats of what it keeps. `master = "none"` updates the weights themselves."""

    name: Literal["adamw", "adam", "lion", "muon", "momentum", "sgd", "adafactor"] = "adamw"
    states: DType = dtype("fp32")
    master: Annotated[DType | None, Via(_no_master)] = dtype("fp32")

    @property
    def bytes_per_param(self) -> float:
        """Bytes of states and master copy for one parameter; adafactor's row and column sums are not counted.

        >>> Optimizer().bytes_per_param
        12.0
        """
        master = self.master.bytes_per_element if self.master else 0.0
        return STATES[self.name] * self.states.bytes_per_element + master


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on the named parts; everything else is frozen."""

    rank: Count = 16
    targets: tuple[Literal["qkv", "out", "up", "gate", "down", "router", "embedding", "head"], ...] = ("qkv", "out")
