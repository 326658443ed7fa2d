"""Turn a section into the bytes real software keeps of it between forward and backward.

Lowering says what the ops of a section need, all at the stored width. Software keeps more where it does not fuse, and
less where it keeps the inputs of narrow products narrow, or where frozen weights need no gradient and so no input.
"""

from __future__ import annotations

from types import MappingProxyType

from ridgeline.ir.ops import MatMul
from ridgeline.ir.program import Program, Section
from ridgeline.models.spec import Attention, Block, LatentAttention, Mlp, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Lora, Train

# The next three were inferred from the peaks of seven runs on one H200 (truth rows h200-*), which therefore cannot
# judge them. torch's attention hands its output on in another layout than it saves: both stay
TWO_LAYOUTS = frozenset({"torch-eager", "torch-compile", "torchtitan", "fms-fsdp"})
# software that casts the inputs of narrow products again in the backward, and keeps them wide
KEEPS_WIDE = TWO_LAYOUTS | {"maxtext", "paxml", "levanter"}
# bytes a value of the logits takes at the worst moment, where it is not as Megatron does it: an eager loss casts to 32
# bits and holds log-probabilities and two gradients; a compiled one holds the logits and their gradient as stored
LOSS_BYTES = MappingProxyType({"torch-eager": 12.0, "torch-compile": 4.0, "maxtext": 4.0, "paxml": 4.0})


def kept_bytes(scenario: Scenario, section: Section) -> float:
    """Bytes of one microbatch that a section keeps on the chip or hands to the host, logits apart."""
    block = block_of(scenario, section)
    kept = section.kept
    if block is None:
        return float(kept.total - kept.logits) + _final_norm(scenario, section)
    sizes = _Sizes(scenario, block)
    attention, mlp, norms = float(kept.attention), float(kept.mlp), float(kept.norms)
    lora = adapters(scenario)
    if lora is not None:
        norms -= min(norms, sizes.norm * (sizes.parts - ("qkv" in lora.targets)))
        mlp -= min(mlp / 2, 0.0 if "down" in lora.targets else sizes.activation)
    share = _narrow_share(scenario)
    if share < 1:
        attention -= (1 - share) * min(attention / 2, sizes.attention_out)
        mlp -= (1 - share) * (mlp if lora is not None else min(mlp / 2, sizes.activation + sizes.copies))
        norms -= (1 - share) * min(norms, sizes.norm * (1 if lora is not None else sizes.parts))
    if attention > 0 and scenario.engine.id in TWO_LAYOUTS:
        attention += sizes.attention_out
    if mlp > 0 and sizes.gated and not {"bias-activation", "elementwise"} & set(scenario.engine.fuses):
        mlp += sizes.activation
    return float(kept.inputs) + attention + mlp + norms


def loss_bytes(scenario: Scenario, program: Program) -> float:
    """Bytes of the loss at work: logits, their log-probabilities and gradients, as far as the software makes them."""
    head, each = program.sections[1], LOSS_BYTES.get(scenario.engine.id)
    product = next((op for op in head.forward if isinstance(op, MatMul) and op.label == "logits"), None)
    if each is None or product is None or not float(head.kept.logits):
        return float(head.kept.logits)
    return float(product.m * product.n) * each


def block_of(scenario: Scenario, section: Section) -> Block | None:
    """The model's block a section was made from; None for the two ends."""
    words = section.name.replace(",", " ").split()
    if words[:1] == ["block"] and len(words) > 1:
        return scenario.model.blocks[int(words[1])]
    return scenario.model.mtp.block if words[:1] == ["prediction"] and scenario.model.mtp else None


def adapters(scenario: Scenario) -> Lora | None:
    """The adapters that are trained instead of the weights, if any."""
    work = scenario.workload
    return (work.lora or Lora()) if isinstance(work, Train) and work.task == "lora" else None


class _Sizes:
    """Bytes of the tensors of one block that software treats in its own way."""

    __slots__ = ("activation", "attention_out", "copies", "gated", "norm", "parts")

    def __init__(self, scenario: Scenario, block: Block) -> None:
        plan = scenario.plan
        tp, size = plan.mesh.tp, plan.precision.activations.bytes_per_element
        tokens = plan.microbatch * scenario.workload.seq / plan.mesh.cp * size
        self.parts = (block.mixer is not None) + (block.ffn is not None)
        self.norm = tokens * scenario.model.hidden / (tp if plan.sequence_parallel else 1)
        mixer, ffn = block.mixer, block.ffn
        wide = mixer.heads * mixer.value_dim if isinstance(mixer, Attention) else scenario.model.hidden
        wide = mixer.heads * mixer.v_dim if isinstance(mixer, LatentAttention) else wide
        self.attention_out = tokens * wide / tp
        self.activation = self.copies = 0.0
        self.gated = isinstance(ffn, (Mlp, Moe)) and ffn.gated
        if isinstance(ffn, Mlp):
            self.activation = tokens * ffn.hidden / tp
        elif isinstance(ffn, Moe):
            self.activation = tokens * (ffn.topk * ffn.hidden + ffn.shared_hidden) / tp
            self.copies = tokens * ffn.topk * (ffn.latent or scenario.model.hidden) / tp


def _narrow_share(scenario: Scenario) -> float:
    """Bytes of a kept input of a narrow product over those of a wide one."""
    precision = scenario.plan.precision
    if precision.compute.bits >= precision.activations.bits or scenario.engine.id in KEEPS_WIDE:
        return 1.0
    return precision.compute.bytes_per_element / precision.activations.bytes_per_element


def _final_norm(scenario: Scenario, section: Section) -> float:
    """The head keeps the last layer's output beside the norm of it."""
    return float(section.kept.inputs) if section.name == "head" and scenario.engine.id in TWO_LAYOUTS else 0.0
