"""The few numbers that library times are made of: what is believed of each beforehand, and what the fit found.

`ridgeline fit --collectives` writes `parameters.json`: the fit of all bundled rows, and one without each system, with
which that system's rows are validated. A family that was never measured takes the number of all families together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.records import dataclass

SHIPPED = Path(__file__).parent / "parameters.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPrior:
    """What is believed of a number before any row: its value, and by which factor (as a logarithm) it may be off."""

    value: float
    spread: float
    unit: str
    what: str


def _prior(value: float, spread: float, unit: str, what: str) -> LibraryPrior:
    return LibraryPrior(value=value, spread=spread, unit=unit, what=what)


# one number for all families, and one for each that was measured, drawn to it by the spread
BY_FAMILY: Mapping[str, LibraryPrior] = MappingProxyType(
    {
        "start": _prior(6.0, 0.15, "us", "until a collective moves its first byte"),
        "rate": _prior(0.9, 0.15, "of the link", "what a stream of bytes reaches"),
        "copy": _prior(4.0, 0.4, "of the link", "rate at which a rank moves its own bytes on the way"),
    }
)
PRIORS: Mapping[str, LibraryPrior] = MappingProxyType(
    {
        "hop": _prior(1.0, 0.5, "us", "one rank of a ring hands on to the next inside a domain"),
        "slices": _prior(1.0, 0.5, "", "of 2 sqrt(W L), the price of cutting a payload into slices"),
        "simple_start": _prior(2.0, 0.5, "times start", "a ring by protocol Simple begins"),
        "peer_start": _prior(1.5, 0.3, "times start", "an all-to-all by protocol Simple begins"),
        "exchange": _prior(3.5, 0.5, "us", "an all-to-all begins later than a ring"),
        "peer": _prior(400.0, 0.4, "GB/s", "most that the channels to one peer carry"),
        "switch_rate": _prior(0.7, 0.2, "of a ring's rate", "sums in switches (NVLS)"),
        "switch_start": _prior(25.0, 0.3, "us", "NVLS begins later than a ring"),
        "old": _prior(1.5, 0.4, "times start", "libraries before NCCL 2.23"),
        "launch": _prior(4.0, 0.4, "us a chip", "one process launches for all chips"),
        "profiler": _prior(40.0, 0.4, "us", "least time that a host-driven profiler sees"),
        "out_rate": _prior(0.92, 0.2, "of the port", "what a stream between domains reaches"),
        "out_hop": _prior(9.0, 0.3, "us", "one hop between domains"),
        "tree_hop": _prior(4.0, 0.3, "us", "one rank of a tree hands on to the next; NCCL's tuner says 4.0"),
        "efa_hop": _prior(
            35.0, 0.4, "us", "more than that over EFA: the latency that aws-ofi-nccl tells NCCL of P6-B200"
        ),
        "efa_rate": _prior(0.92, 0.2, "of the port", "what EFA reaches; that of others until measured"),
        "pcie_rate": _prior(0.6, 0.2, "of the slot", "between two PCIe slots, in place of `rate`"),
        "many": _prior(0.75, 0.3, "of that", "more than two slots of a host that was never measured"),
        "many.l40s-server": _prior(0.75, 0.3, "of that", "more than two slots of this host"),
        "many.rtxpro6000-server": _prior(0.75, 0.3, "of that", "more than two slots of this host"),
        "path.l40s-server": _prior(25.0, 3.0, "GB/s", "all that this host passes between its slots"),
        "plan_start": _prior(6.0, 0.5, "us", "an MSCCL++ plan begins"),
        "one_shot": _prior(0.7, 0.2, "of the link", "all ranks write to all (TensorRT-LLM)"),
        "one_shot_start": _prior(0.7, 0.3, "times start", "until that begins"),
        "expert_rate": _prior(0.7, 0.2, "of the link", "DeepEP inside a domain"),
        "expert_out": _prior(0.92, 0.1, "of the port", "DeepEP between domains"),
        "expert_core": _prior(10.0, 0.3, "GB/s a core", "what DeepEP's cores forward between domains"),
        "expert_start": _prior(50.0, 0.5, "us", "DeepEP's normal kernels begin: counts are exchanged first"),
        "expert_wide": _prior(1.0, 0.3, "times the way out", "more than four domains without a limit on nodes"),
        "quick_rate": _prior(0.55, 0.3, "of the link", "DeepEP's low-latency kernels inside a domain"),
        "quick_start": _prior(12.0, 0.3, "us", "until those begin"),
        "quick_hop": _prior(15.0, 0.3, "us", "more than that between domains"),
    }
)
MEASURED_FAMILIES = ("ampere", "hopper", "blackwell", "pcie")


def names() -> tuple[str, ...]:
    """Every number that is fitted: those of all families, of each family, and the rest."""
    families = [f"{name}.{family}" for name in BY_FAMILY for family in MEASURED_FAMILIES]
    return (*BY_FAMILY, *families, *PRIORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryParameters:
    """The numbers by name, in the units of their priors; and those fitted without one system each."""

    values: Mapping[str, float]
    folds: Mapping[str, Mapping[str, float]]

    def without(self, system: str) -> Mapping[str, float] | None:
        """The numbers of a fit that has not seen a system; None where no such fit was made."""
        return self.folds.get(system)


def prior_values() -> dict[str, float]:
    """Every number as it is believed before any row."""
    values = {name: BY_FAMILY[name.partition(".")[0]].value for name in names() if name.partition(".")[0] in BY_FAMILY}
    return {**values, **{name: prior.value for name, prior in PRIORS.items()}}


@cache
def shipped_parameters() -> LibraryParameters:
    """What comes with Ridgeline."""
    data = json.loads(SHIPPED.read_text(encoding="utf-8"))
    folds = {system: MappingProxyType(values) for system, values in data["without"].items()}
    return LibraryParameters(values=MappingProxyType(data["all"]), folds=MappingProxyType(folds))
