"""Where NxD Training keeps what, what it calls modules and formats, and how many of its ranks a chip holds.

Its ranks are NeuronCores. A plan's rank is a chip, whose cores hold tensor shards of what the plan gives the chip: a
tensor degree in the file is the plan's times the cores of a chip.
"""

from __future__ import annotations

from ridgeline.hardware.system import System
from ridgeline.targets.tables import values

ID = "nxd-training"
ENGINE = "nxd"
VENDOR = "AWS"

MESH = "distributed_strategy"
TP = f"{MESH}.tensor_model_parallel_size"
PP = f"{MESH}.pipeline_model_parallel_size"
CHUNKS = f"{MESH}.virtual_pipeline_model_parallel_size"
CP = f"{MESH}.context_parallel_size"
EP = f"{MESH}.expert_model_parallel_size"
PEFT = "model_alignment_strategy.peft"
# parts of a layer -> the modules that selective recompute names, of Llama and of Mixtral
MODULES = values("nxd-training", "modules")
ADAPTERS = {"qkv": "qkv_proj", "out": "o_proj", "up": "gate_up_proj", "gate": "gate_up_proj", "down": "down_proj"}
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor")
WIDE = "adamw_fp32OptState"  # AdamW whose states are fp32 whatever the weights are


def cores_of(system: System) -> tuple[int, int]:
    """Ranks of one chip, and the physical NeuronCores that are one of them (lnc).

    >>> import ridgeline
    >>> cores_of(ridgeline.system("16xtrn1")), cores_of(ridgeline.system("16xtrn2"))
    ((2, 1), (4, 2))
    """
    if system.chip.vendor != VENDOR or system.chip.cores is None:
        return 1, 1
    cores = int(system.chip.cores.value)
    lnc = 2 if cores >= 8 else 1
    return cores // lnc, lnc
