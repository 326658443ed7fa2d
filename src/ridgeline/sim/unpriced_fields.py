"""Turn a scenario into what its prediction leaves out, simplifies, or prices on a slow path: a sentence each.

Every field of a model, a plan or a workload changes the predicted time or memory, or a test holds it as irrelevant with
its reason, or a prediction names it here, among its assumptions. Slow paths are what libraries have no fast kernels
for: rows of products that are not aligned to 16 bytes, heads between two sizes that attention kernels have, experts
that are launched one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import log2

from ridgeline.core.units import DECIMAL
from ridgeline.cost.pricing import load_rate
from ridgeline.ir.ops import ALIGNED, MatMul
from ridgeline.ir.program import Program
from ridgeline.lowering.plan_columns import ring_is_hidden
from ridgeline.lowering.softmax_core import kernel_head_dim
from ridgeline.models.params import tower_params
from ridgeline.models.spec import Attention, Block, LatentAttention, Moe
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Decode, Prefill, Serve, Train

STREAMED = frozenset({"hyper-connection", "stream router"})  # products of layers with several residual streams
UNCOUNTED_OPTIMIZERS = {
    "muon": "the products that make an update orthogonal are not counted",
    "adafactor": "sums by row and column are not counted",
}


def unpriced_fields(scenario: Scenario[Train]) -> Iterator[str]:
    """What a scenario asks that its prediction leaves out or takes in a simplified way, a sentence each."""
    yield from _of_workload(scenario.workload, scenario)
    yield from unused_networks(scenario)
    yield from _of_model(scenario)
    if scenario.plan.switches.overlap.get("cp") and scenario.plan.mesh.cp > 1 and not ring_is_hidden(scenario):
        yield "overlap.cp has no effect: attention waits for heads that are exchanged, and for keys to pick from"


def _of_workload(work: Train, scenario: Scenario) -> Iterator[str]:
    if work.document is None and not work.packed:
        yield "packed = false has no effect: how long documents are (document) is not given, so nothing is padding"
    if work.packed and work.document_tokens < work.seq:
        yield f"every document of {work.document_tokens} tokens: of longer and shorter ones attention would see more"
    if work.optimizer.name in UNCOUNTED_OPTIMIZERS:
        yield f"optimizer {work.optimizer.name}: {UNCOUNTED_OPTIMIZERS[work.optimizer.name]}"
    if work.towers == "frozen" and not (scenario.vision_input.views or scenario.audio_input.views):
        yield "towers = frozen has no effect: no encoder of images or sound runs"
    if work.lora and {"up", "gate", "down"} & set(work.lora.targets) and any(_experts(scenario)):
        yield "lora: routed experts have no adapters, whatever its targets say"


def unused_networks(scenario: Scenario) -> Iterator[str]:
    """Encoders that nothing is given to, what is given to none, and networks beside the model."""
    model, work = scenario.model, scenario.workload
    if isinstance(work, (Train, Prefill)) and work.images and model.vision is None:
        yield "images have no effect: the model has no image encoder"
    if model.vision is not None and not scenario.vision_input.views and not isinstance(work, Decode):
        told = "requests of text alone" if isinstance(work, Serve) else "images = 0"
        yield f"{told}: the image encoder and its {tower_params(model.vision):,} parameters take no part"
    if model.audio is not None and not scenario.audio_input.views and not isinstance(work, Decode):
        told = "requests of text alone" if isinstance(work, Serve) else "audio_s = 0"
        yield f"{told}: the audio encoder and its {tower_params(model.audio):,} parameters take no part"
    for one in model.companions:
        yield f"companions: the {one.name} and its {one.params:,} parameters take no part"
    yield from _split_heads(scenario)


def _split_heads(scenario: Scenario) -> Iterator[str]:
    """Encoders whose heads tensor ranks do not share evenly."""
    tp, model = scenario.plan.mesh.tp, scenario.model
    sees, hears = (
        model.vision if scenario.vision_input.views else None,
        model.audio if scenario.audio_input.views else None,
    )
    for name, tower in (("image", sees), ("audio", hears)):
        mixer = tower.block.mixer if tower else None
        if isinstance(mixer, Attention) and mixer.heads % tp:
            yield f"the {name} encoder's {mixer.heads} heads do not divide by tp ({tp}): priced as if they did"


def _of_model(scenario: Scenario) -> Iterator[str]:
    record = scenario.model.capture
    if record is not None:
        yield f"the model was captured by {record.by}: its layers are what one forward did"
        yield from (f"captured: {one}" for one in record.untold)
    limited = any(moe.group_topk < moe.groups for moe in _experts(scenario))
    if limited and scenario.plan.mesh.ep > 1 and resolve(scenario).token_dispatch_once:
        yield "groups of experts: a token's experts may be in all domains, not in group_topk groups alone"
    if scenario.model.embedding.tied and scenario.plan.mesh.pp > 1:
        yield "tied: the sum of the embedding's gradients over first and last stage is not counted"
    products = {one.label for block in _blocks(scenario) if block.captured for one in block.captured.products}
    if products & STREAMED and scenario.plan.mesh.pp > 1:
        yield "several residual streams: pipeline ranks send one of them, where all would travel"
    if any(isinstance(block.mixer, LatentAttention) and block.mixer.indexer for block in _blocks(scenario)):
        stored = scenario.plan.precision.activations.peak
        yield f"indexer: scores every visible token at the rate of {stored} and learns from those it picked"


def _blocks(scenario: Scenario) -> Iterator[Block]:
    model = scenario.model
    return chain(model.blocks, (model.mtp.block,) if model.mtp else ())


def _experts(scenario: Scenario) -> Iterator[Moe]:
    return (block.ffn for block in _blocks(scenario) if isinstance(block.ffn, Moe))


def slow_paths(scenario: Scenario, program: Program, cores: float) -> Iterator[str]:
    """What of a step takes a slow path, a line each; nothing for most. `cores` as products are priced with."""
    if cores > 1:
        yield from _unaligned_products(program)
    resolved = resolve(scenario)
    blocks = scenario.model.blocks
    if resolved.attention == "flash":
        library = scenario.engine.kernel
        sizes = {block.mixer.head_dim for block in blocks if isinstance(block.mixer, Attention)}
        for size in sorted(size for size in sizes if kernel_head_dim(library, size) != size):
            wide = kernel_head_dim(library, size)
            yield f"heads of {size} run as heads of {wide}: attention kernels have no size between"
    if resolved.expert_launch == "sequential" and any(isinstance(block.ffn, Moe) for block in blocks):
        yield f"experts are launched one by one: engine {scenario.engine.id} names no grouped product"


def _unaligned_products(program: Program) -> Iterator[str]:
    """Products whose rows are not whole multiples of 16 bytes, by label."""
    found: dict[str, MatMul] = {}
    for section in program.sections:
        for op in section.forward:
            if isinstance(op, MatMul) and load_rate(float(op.alignment)) is not None:
                found.setdefault(op.label, op)
    for label, op in found.items():
        rate = load_rate(float(op.alignment)) or 0.0
        whole = 2 ** round(log2(ALIGNED / op.in_bytes))  # scales of a block format are not counted
        yield (
            f"{label}: rows of {op.n:g} and {op.k:g} elements are not aligned to 16 bytes and miss the matrix unit: "
            f"{rate / DECIMAL['T']:g} TFLOP/s a core, as measured on an H200; pad to a multiple of {whole}"
        )
