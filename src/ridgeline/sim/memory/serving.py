"""Turn a serving scenario into the memory of its chips: weights, activations of the largest step, graphs, KV cache.

    cache = utilization x memory - weights - activations - graphs - runtime        (vLLM, SGLang)
    cache = utilization x (memory - weights - activations - graphs - runtime)      (TensorRT-LLM)

By pipeline stage; an instance holds as many tokens as its fullest stage. Not counted: fragmentation, images.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import forward_steps
from ridgeline.ir.program import SectionRole
from ridgeline.lowering.program import ForwardProgram, lower_forward
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import block_params
from ridgeline.models.parts import CacheRow, ffn_parts
from ridgeline.models.spec import Block
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import GIB, ServingLimits, serving_limits
from ridgeline.sim.memory.peak import capacity_of

# assumed: what a CUDA context with its libraries holds, communication buffers of several ranks, and graphs of a layer
CONTEXT, BUFFERS, GRAPH_OF_LAYER = 0.6 * GIB, 0.9 * GIB, 0.012 * GIB
STATE_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """Bytes of the fullest chip of a serving instance, and what its KV cache holds.

    kv_bytes_per_token   of one cached token on that chip
    state_bytes          of one request, whatever its length: states, and windows of attention that slides
    kv_bytes             what the cache may take, negative where so much is missing before any of it
    tokens               cached tokens of one attention-data-parallel rank, whose chips hold them together
    blocks               the same in blocks of `block_size`
    """

    capacity: float
    weights: float
    activations: float
    graphs: float
    runtime: float
    kv_bytes: float
    kv_bytes_per_token: float
    state_bytes: float
    tokens: int
    blocks: int
    block_size: int

    JSON = """
        capacity_bytes=capacity weights_bytes=weights activations_bytes=activations graphs_bytes=graphs
        runtime_bytes=runtime cache_bytes=kv_bytes kv_bytes_per_token state_bytes tokens blocks block_size
    """

    @property
    def fits(self) -> bool:
        """Whether anything is left for a cache."""
        return self.kv_bytes > 0 and (self.tokens > 0 or self.kv_bytes_per_token == 0)

    def requests(self, tokens: float) -> float:
        """Requests of so many tokens each that fit at once."""
        each = self.kv_bytes_per_token * tokens + self.state_bytes
        return self.kv_bytes / each if each else float("inf")


def limits_of(scenario: Scenario) -> ServingLimits:
    """The serving settings of a scenario with nothing left open."""
    chip = scenario.system.chip
    return serving_limits(scenario.engine.serves, chip.id, capacity_of(scenario))


def serving_memory(scenario: Scenario, limits: ServingLimits | None = None) -> ServingMemory:
    """What the fullest chip of a serving instance holds, and how many tokens its cache has room for.

    limits   of the instance, where they differ from its engine's habit (`limits_of`)

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "1xh100-sxm",
    ...     "workload": {"kind": "decode", "context": 1024}, "plan": {"engine": "vllm"}})
    >>> found = serving_memory(made)
    >>> found.kv_bytes_per_token, 380_000 < found.tokens < 460_000
    (131072.0, True)
    """
    limits = limits or limits_of(scenario)
    largest = forward_steps(prefill_tokens=float(limits.max_num_batched_tokens))
    program = lower_forward(scenario, largest)
    idle = _idle_towers(scenario, program)
    stages = [
        _stage(scenario, program, limits, counts, 0.0 if place else idle) for place, counts in enumerate(program.stages)
    ]
    return min(stages, key=lambda one: (one.tokens, one.kv_bytes))


def _stage(
    scenario: Scenario, program: ForwardProgram, limits: ServingLimits, counts: tuple[int, ...], idle: float
) -> ServingMemory:
    capacity = capacity_of(scenario)
    held = np.array(counts, dtype=np.float64)
    weights = idle + float(sum(many * _weights(scenario, program, place) for place, many in enumerate(held) if many))
    ranks = scenario.plan.mesh.ranks
    activations = activation_bytes(scenario, limits)
    layers = sum(many for section, many in zip(program.sections, held, strict=True) if section.key.block >= 0)
    graphs = 0.0 if scenario.plan.switches.graph == "none" else GRAPH_OF_LAYER * float(layers)
    runtime = CONTEXT + (BUFFERS if ranks > 1 else 0.0)
    used = weights + activations + graphs + runtime
    share = limits.gpu_memory_utilization
    left = share * capacity - used if limits.memory_of == "all" else share * (capacity - used)
    places = [(section.key.block, many) for section, many in zip(program.sections, held, strict=True) if many]
    blocks = [(scenario.model.blocks[block], many) for block, many in places if block >= 0]
    each = sum(many * cached_bytes(scenario, block) for block, many in blocks)
    state = sum(many * request_bytes(scenario, block) for block, many in blocks)
    seqs = limits.max_num_seqs
    room = max(left - state * min(seqs, left / (2 * state)) if state else left, 0.0)
    whole = floor(room / (each * limits.block_size)) if each else 0
    return ServingMemory(
        capacity=capacity,
        weights=weights,
        activations=activations,
        graphs=graphs,
        runtime=runtime,
        kv_bytes=left,
        kv_bytes_per_token=float(each),
        state_bytes=float(state),
        tokens=whole * limits.block_size,
        blocks=whole,
        block_size=limits.block_size,
    )


def _weights(scenario: Scenario, program: ForwardProgram, place: int) -> float:
    """Bytes of a section's weights on one chip; the two ends stay as wide as activations."""
    section, precision = program.sections[place], scenario.plan.precision
    ends = section.role in (SectionRole.EMBEDDING, SectionRole.HEAD)
    stored = precision.weights.bytes_per_element
    each = max(precision.activations.bytes_per_element, stored) if ends else stored
    return float(np.max(section.params)) * each + float(np.max(section.expert_params)) * stored


def _idle_towers(scenario: Scenario, program: ForwardProgram) -> float:
    """Bytes of encoders of images and sound that engines load although nothing is given to them: layers split over
    tensor ranks, ends whole, all as wide as activations."""
    model, roles = scenario.model, {section.role for section in program.sections}
    precision, tp = scenario.plan.precision, scenario.plan.mesh.tp
    towers = ((model.vision, SectionRole.VISION), (model.audio, SectionRole.AUDIO))
    idle = [tower for tower, role in towers if tower and role not in roles]
    params = sum(
        one.layers * block_params(one.block, one.hidden) / tp + one.projector_params + one.other_params for one in idle
    )
    return params * max(precision.activations.bytes_per_element, precision.weights.bytes_per_element)


def activation_bytes(scenario: Scenario, limits: ServingLimits) -> float:
    """The largest step's activations: residual, normed input, and the widest pair of what a layer makes; logits.

    T (3 h + w / tp) b + 4 R V        T = max_num_batched_tokens, w = widest part, R = min(T, max_num_seqs) rows
    """
    model, tp = scenario.model, scenario.plan.mesh.tp
    size = scenario.plan.precision.activations.bytes_per_element
    widest = max((_width(block, model.hidden) for block in model.blocks), default=model.hidden)
    tokens = limits.max_num_batched_tokens
    rows = min(tokens, limits.max_num_seqs)
    return tokens * (3 * model.hidden + widest / tp) * size + rows * model.outputs * (STATE_BYTES + size)


def _width(block: Block, hidden: int) -> float:
    """Elements that the widest part of a layer makes of a token before they are reduced."""
    ffn = ffn_parts(block.ffn, hidden).widest if block.ffn else 0
    mixer = mixer_parts(block.mixer, hidden).widest if block.mixer else 0
    return float(max(ffn, mixer or 4 * hidden))


def cached_bytes(scenario: Scenario, block: Block) -> float:
    """Bytes of one cached token of a layer on one tensor rank; 0 where a window or a state bounds them."""
    size = scenario.plan.precision.kv.bytes_per_element
    growing = [row for row in _cache_rows(scenario, block) if not _is_windowed(scenario, row)]
    recorded = block.captured.cached * size if block.captured else 0.0
    return sum(_row_bytes(scenario, row) for row in growing) + recorded


def _cache_rows(scenario: Scenario, block: Block) -> list[CacheRow]:
    rows = (row for mixer in block.mixers for row in mixer_parts(mixer, scenario.model.hidden).cache)
    return [row for row in rows if row.written]


def _is_windowed(scenario: Scenario, row: CacheRow) -> bool:
    """Whether the cache forgets what lies behind the window of a row."""
    return row.window > 0 and (row.rolling or drops_windows(scenario))


def _row_bytes(scenario: Scenario, row: CacheRow) -> float:
    """Bytes of a row on one tensor rank for one token: its share of the heads, a whole one at least, or all of it."""
    heads = max(row.heads / scenario.plan.mesh.tp, 1.0) / row.heads if row.heads else 1.0
    size = 1.0 if row.narrow else scenario.plan.precision.kv.bytes_per_element
    return row.elements * heads / row.rate * size


def drops_windows(scenario: Scenario) -> bool:
    """Whether the engine's cache forgets tokens that a layer's window has passed."""
    return scenario.engine.serves is None or scenario.engine.serves.windowed_cache


def request_bytes(scenario: Scenario, block: Block) -> float:
    """Bytes of a layer that a request holds whatever its length: the window of sliding attention, or a state, and what
    cross attention made of its source."""
    windowed = [row for row in _cache_rows(scenario, block) if _is_windowed(scenario, row)]
    bounded = sum(row.window * _row_bytes(scenario, row) for row in windowed)
    parts = [mixer_parts(mixer, scenario.model.hidden).recurrent for mixer in block.mixers]
    state = sum(part.state / scenario.plan.mesh.tp * STATE_BYTES for part in parts if part)
    if block.cross is None:
        return bounded + state
    (row,) = mixer_parts(replace(block.cross, causal=True), scenario.model.hidden).cache
    return scenario.encoder_tokens * _row_bytes(scenario, row) + bounded + state
