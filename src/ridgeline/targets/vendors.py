"""Turn a chip's vendor into what those who start jobs on it have to know, by the tables of `vendors.toml`.

A vendor without a table is asked for as most are: by GPUs of a node, under PyTorch's usual name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_table
from ridgeline.core.table import decode
from ridgeline.hardware.system import System
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Lose
from ridgeline.targets.registry import POST_TRAIN, SERVE, TRAIN

FILE = Path(__file__).parent / "vendors.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """How schedulers are asked for chips of a node, what a framework calls one, and the targets that run on them."""

    slurm: str = "--gpus-per-node={}"
    kubernetes: str = "nvidia.com/gpu"
    ray: str = "GPU"
    device: str = "cuda"
    targets: tuple[str, ...] = ()


@cache
def vendors() -> Mapping[str, Vendor]:
    """Every vendor that has a table, by name."""
    return MappingProxyType({name: decode(Vendor, table, name) for name, table in read_table(FILE).data.items()})


def vendor_of(system: System) -> Vendor:
    """What is known of the vendor of the system's chips."""
    return vendors().get(system.chip.vendor, Vendor())


def growing_segments(system: System, word: str = "PYTORCH_ALLOC_CONF") -> dict[str, str]:
    """The variable that lets PyTorch's allocator grow segments, which plans that leave little memory free need.

    `word` is what the target's PyTorch calls it on GPUs; chips whose allocator has no such word get none.

    >>> from ridgeline.hardware.load import system
    >>> growing_segments(system("8xh100-sxm")), growing_segments(system("8xgaudi2"))
    ({'PYTORCH_ALLOC_CONF': 'expandable_segments:True'}, {})
    >>> growing_segments(system("8xascend-910b2"))
    {'PYTORCH_NPU_ALLOC_CONF': 'expandable_segments:True'}
    """
    name = {"cuda": word, "npu": "PYTORCH_NPU_ALLOC_CONF"}.get(vendor_of(system).device)
    return {name: "expandable_segments:True"} if name else {}


def runs_on(scenario: Scenario, target: str) -> Iterator[Lose]:
    """A loss where the target does not run on the scenario's chips; nothing where it does, or makes no claim.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "tpu-v5p:2x2x2",
    ...     "workload": {"seq": 4096, "global_batch": 8}, "plan": {}})
    >>> [lost.why for lost in runs_on(made, "verl")]
    ['it runs on chips of NVIDIA, AMD and Huawei, not of Google']
    """
    return _on_other_chips(scenario.system, target)


def _on_other_chips(system: System, target: str) -> Iterator[Lose]:
    able = [name for name, vendor in vendors().items() if target in vendor.targets]
    vendor = system.chip.vendor
    if able and vendor not in able:
        *largest, last = able
        names = f"{', '.join(largest)} and {last}" if largest else last
        yield Lose("system.chips", f"it runs on chips of {names}, not of {vendor}")


def refuse_other_chips(system: System, target: str) -> None:
    """An `InputError` where the target is known not to run on a system's chips, with targets that do."""
    vendor = system.chip.vendor
    if vendor not in vendors():
        return
    for lost in _on_other_chips(system, target):
        kinds = (SERVE, POST_TRAIN, TRAIN)
        similar_targets = next(kind for kind in kinds if target in kind)
        able = [target_id for target_id in vendors()[vendor].targets if target_id in similar_targets]
        other_items = ", ".join(able)
        todo = f"use --to {able[0]}" if able else "no target of Ridgeline's of the kind runs on them"
        given_text = f"{target} for {system.name}"
        expected_text = f"one of {other_items}" if other_items else lost.why
        raise InputError(Problem(path="--to", given=f"{given_text}: {lost.why}", expected=expected_text, todo=todo))
