"""Turn low-rank adapters into the parameters they add to the layers of a virtual stage."""

from __future__ import annotations

from ridgeline.models.spec import Attention, Block, LatentAttention, Mlp, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Lora, Train


def adapter_params(scenario: Scenario, stage: int) -> float:
    """Parameters of the adapters of one virtual stage on one rank.

        r (in + out) for each adapted matrix                     r = adapter rank

    The side of a split matrix that tensor parallelism cuts is split with it; the other side is whole on every rank.
    """
    work = scenario.workload
    lora = (work.lora if isinstance(work, Train) else None) or Lora()
    first = sum(scenario.placement[:stage])
    layers = scenario.model.order[first : first + scenario.placement[stage]]
    return sum(_block(scenario, scenario.model.blocks[index], lora) for index in layers)


def _block(scenario: Scenario, block: Block, lora: Lora) -> float:
    hidden, tp = scenario.model.hidden, scenario.plan.mesh.tp
    sides: list[tuple[float, float]] = []
    if isinstance(block.mixer, Attention):
        mixer = block.mixer
        kv = mixer.kv_heads * (mixer.head_dim + mixer.value_dim)
        sides += [(hidden, (mixer.heads * mixer.head_dim + kv) / tp)] if "qkv" in lora.targets else []
        sides += [(hidden, mixer.heads * mixer.value_dim / tp)] if "out" in lora.targets else []
    elif isinstance(block.mixer, LatentAttention):
        wide = block.mixer.heads * (block.mixer.nope_dim + block.mixer.rope_dim)
        sides += [(hidden, wide / tp)] if "qkv" in lora.targets else []
        sides += [(hidden, block.mixer.heads * block.mixer.v_dim / tp)] if "out" in lora.targets else []
    width = block.ffn.hidden if isinstance(block.ffn, (Mlp, Moe)) else 0
    sides += [(hidden, width / tp) for target in ("up", "gate", "down") if width and target in lora.targets]
    return lora.rank * sum(into + out for into, out in sides)
