"""Turn a Scenario into the reasons why it cannot run: values, one for each thing that would have to change.

Only what is truly required is asked: heads split over tensor ranks must divide, layers over stages need not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NoReturn, assert_never

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import Problem, not_among
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.parts import MixerParts
from ridgeline.models.spec import Mlp, ModelSpec, Moe
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.mesh import DP_LAST, ORDERS
from ridgeline.plan.rl_roles import rl_problems
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES, requirement
from ridgeline.plan.workload import Decode, Prefill, Serve, Train


def check(scenario: Scenario) -> tuple[Problem, ...]:
    """Every reason why the scenario is impossible; empty when it can run."""
    if isinstance(scenario.workload, Rl):
        return tuple(dict.fromkeys(rl_problems(scenario, _rule_problems)))
    return tuple(dict.fromkeys(_rule_problems(scenario)))


def _rule_problems(scenario: Scenario) -> Iterator[Problem]:
    for rule in RULES:
        yield from rule(scenario)


class _Absent:
    """Stands where a part of a scenario could not be read: whoever looks at it has nothing to say."""

    class Looked(Exception):
        """A rule needs the part that is missing."""

    def __getattr__(self, name: str) -> NoReturn:
        raise self.Looked(name)

    @property  # type: ignore[misc]
    def __class__(self) -> type[_Absent]:  # what `isinstance` asks
        raise self.Looked("kind")


def check_known(**parts: object) -> tuple[Problem, ...]:
    """What can be said of a scenario some of whose parts (model, system, workload, engine, plan) are None.

    A rule runs until it asks for a part that is missing, so that the problems of a file come in one round.
    """
    stood_in: JsonObject = {name: _Absent() if part is None else part for name, part in parts.items()}
    partial = Scenario(**stood_in)
    problems: list[Problem] = []
    for rule in () if isinstance(parts["workload"], Rl) else RULES:
        with suppress(_Absent.Looked):
            problems.extend(rule(partial))
    return tuple(dict.fromkeys(problems))


def ranks(scenario: Scenario) -> Iterator[Problem]:
    """pp x dp x cp x tp must be the chips."""
    mesh, chips = scenario.plan.mesh, scenario.system.chips
    if mesh.ranks == chips or (isinstance(scenario.workload, Serve) and scenario.plan.serving.pools):
        return
    other_ranks = mesh.pp * mesh.cp * mesh.tp
    todo = (
        f"use dp = {chips // other_ranks}"
        if chips % other_ranks == 0
        else f"pp x cp x tp = {other_ranks} does not divide {chips}"
    )
    product = f"pp {mesh.pp} x dp {mesh.dp} x cp {mesh.cp} x tp {mesh.tp} = {mesh.ranks}"
    yield Problem(path="plan.dp", given=product, expected=f"the {chips} chips of {scenario.system.name}", todo=todo)


def experts(scenario: Scenario) -> Iterator[Problem]:
    """Expert parallelism is folded over tp x cp x dp and splits the experts evenly."""
    mesh = scenario.plan.mesh
    moes = {block.ffn for block in scenario.model.blocks if isinstance(block.ffn, Moe)}
    if not moes and mesh.ep * mesh.etp > 1:
        path = "plan.ep" if mesh.ep > 1 else "plan.etp"
        yield Problem(path=path, given=str(mesh.ep * mesh.etp), expected=f"1: {scenario.model.id} has no experts")
        return
    inner = mesh.tp * mesh.cp * mesh.dp
    if inner % (mesh.ep * mesh.etp):
        given_text = f"ep {mesh.ep} x etp {mesh.etp} = {mesh.ep * mesh.etp}"
        expectation = f"a divisor of tp x cp x dp ({inner}), over which experts are folded"
        yield Problem(path="plan.ep", given=given_text, expected=expectation)
    for moe in moes:
        yield from divides("plan.ep", mesh.ep, moe.experts, "experts")
        yield from divides("plan.etp", mesh.etp, moe.hidden, "the width of an expert")


def order(scenario: Scenario) -> Iterator[Problem]:
    """With stages before replicas in rank order, experts keep to the tensor and context ranks of a stage."""
    mesh = scenario.plan.mesh
    folds = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    if mesh.order != DP_LAST or mesh.pp == 1 or mesh.dp == 1 or not folds or mesh.ep * mesh.etp == mesh.tp * mesh.cp:
        return
    expectation = f"ep x etp = tp x cp ({mesh.tp * mesh.cp}), so that experts have as many replicas as the rest"
    todo = f'use order = "{ORDERS[0]}"'
    yield Problem(
        path="plan.order", given=f"{mesh.order} with ep x etp = {mesh.ep * mesh.etp}", expected=expectation, todo=todo
    )


def tensor(scenario: Scenario) -> Iterator[Problem]:
    """Heads and feed-forward widths are split over tp; keys may be replicated instead."""
    tp, hidden = scenario.plan.mesh.tp, scenario.model.hidden
    encoder = scenario.model.encoder
    for block in (*scenario.model.blocks, *((encoder.block,) if encoder else ())):
        for mixer in (*block.mixers, *((block.cross,) if block.cross else ())):
            yield from _tensor_heads(mixer_parts(mixer, hidden), tp)
        if tp > 1 and block.captured and block.captured.mixes:
            yield _captured_whole("plan.tp", tp, scenario.model.capture is not None)
        match block.ffn:
            case Mlp():
                yield from divides("plan.tp", tp, block.ffn.hidden, "the feed-forward width")
            case Moe():
                if block.ffn.shared_hidden:
                    yield from divides("plan.tp", tp, block.ffn.shared_hidden, "the shared experts' width")
            case None:
                pass
            case _:
                assert_never(block.ffn)


def context(scenario: Scenario) -> Iterator[Problem]:
    """The sequence is cut evenly; a ring cuts it in 2 x cp so that causal work is balanced."""
    plan, seq = scenario.plan, scenario.workload.seq
    cp, tp = plan.mesh.cp, plan.mesh.tp
    if isinstance(scenario.workload, (Decode, Serve)):
        return
    parts = 2 * cp if cp > 1 and plan.switches.cp_kind == "ring" else cp
    if seq % parts:
        expectation = f"a cut of seq ({seq}) into {parts} equal parts" + (" (two per rank)" if parts > cp else "")
        yield Problem(path="plan.cp", given=str(cp), expected=expectation, todo=f"use a seq that {parts} divides")
    elif isinstance(scenario.workload, Train) and plan.sequence_parallel and (seq // cp) % tp:
        expectation = f"a divisor of the tokens of a context rank ({seq // cp}), for sequence_parallel"
        yield Problem(path="plan.tp", given=str(tp), expected=expectation, todo="set sequence_parallel = false")
    if cp > 1 and any(block.captured and block.captured.mixes for block in scenario.model.blocks):
        yield _captured_whole("plan.cp", cp, scenario.model.capture is not None)
    if cp > 1:
        mixers = [mixer for block in scenario.model.blocks for mixer in block.mixers]
        parts_of_mixers = [mixer_parts(mixer, scenario.model.hidden) for mixer in mixers]
        yield from _context_heads(parts_of_mixers, tp, cp, plan.switches.cp_kind == "all-to-all")


def divides(path: str, value: int, total: int, what: str) -> Iterator[Problem]:
    """A problem unless `value` divides `total`; proposes the nearest values that would."""
    if total % value:
        divisors = [part for part in range(1, min(total, 4 * value) + 1) if total % part == 0]
        below, above = [part for part in divisors if part < value], [part for part in divisors if part > value]
        nearest = [str(part) for part in (*below[-1:], *above[:1])]
        yield Problem(
            path=path, given=str(value), expected=f"a divisor of {what} ({total})", todo=f"use {' or '.join(nearest)}"
        )


def _tensor_heads(mixer: MixerParts, tp: int) -> Iterator[Problem]:
    """What tensor ranks split of a mixer must come out even; keys, groups and key heads may be replicated instead."""
    if mixer.splits.whole and tp > 1:
        yield _unsplit("plan.tp", tp, mixer.splits.whole)
        return
    for heads in mixer.splits.tensor:
        if not heads.shared:
            yield from divides("plan.tp", tp, heads.count, heads.name)
        elif heads.count % tp and tp % heads.count:
            expectation = f"a divisor or a multiple of {heads.name} ({heads.count})"
            yield Problem(path="plan.tp", given=str(tp), expected=expectation)


def _context_heads(mixers: Iterable[MixerParts], tp: int, cp: int, exchanged: bool) -> Iterator[Problem]:
    """Context ranks of state-space and delta-rule layers trade heads for sequence, and those of attention where
    `exchanged` says so (all-to-all); other recurrences have no context ranks."""
    for mixer in mixers:
        splits = mixer.splits
        if splits.recurrence:
            yield _unsplit("plan.cp", cp, splits.recurrence)
            return
        if splits.traded:
            what, todo = "the heads of recurrent layers ({}), which they exchange for sequence", "use less cp"
        else:
            what, todo = "attention heads ({}), which all-to-all exchanges", 'use cp_kind = "ring"'
        if (splits.traded or exchanged) and splits.context % (tp * cp):
            expectation = f"tp x cp to divide {what.format(splits.context)}"
            yield Problem(path="plan.cp", given=f"tp {tp} x cp {cp}", expected=expectation, todo=todo)


def _unsplit(path: str, degree: int, recurrence: str) -> Problem:
    """A recurrence that no framework runs on several ranks."""
    expectation = f"1: no framework splits a {recurrence} recurrence over such ranks"
    return Problem(path=path, given=str(degree), expected=expectation, todo="use dp, sharding, pp or ep")


def _captured_whole(path: str, degree: int, captured: bool) -> Problem:
    """Layers that are known op by op, and whose tokens see each other: there is no form of them that ranks share."""
    why = "the model was captured, and how ranks would share" if captured else "no framework has ranks share"
    unknown = " could not be told" if captured else ""
    expectation = f"1: {why} a mixer of its layers{unknown}"
    return Problem(path=path, given=str(degree), expected=expectation, todo="use dp, sharding, pp or ep")


def batch(scenario: Scenario) -> Iterator[Problem]:
    """Sequences are dealt evenly to data-parallel ranks and microbatches."""
    workload, plan = scenario.workload, scenario.plan
    dp, microbatch = plan.mesh.dp, plan.microbatch
    if isinstance(workload, Train):
        if workload.sequences % (dp * microbatch):
            given_text = f"dp {dp} x microbatch {microbatch} = {dp * microbatch}"
            expectation = f"a divisor of the global batch ({workload.sequences} sequences)"
            down = workload.sequences // (dp * microbatch) * dp * microbatch
            todo = f"use a global batch of {' or '.join(str(size) for size in (down, down + dp * microbatch) if size)}"
            yield Problem(path="plan.microbatch", given=given_text, expected=expectation, todo=todo)
    elif not isinstance(workload, Serve) and workload.sequences % dp:
        expectation = f"a divisor of batch ({workload.sequences} sequences)"
        yield Problem(path="plan.dp", given=str(dp), expected=expectation)


def pipeline(scenario: Scenario) -> Iterator[Problem]:
    """Every virtual stage holds a layer, the embedding or the output, and the schedule accepts the numbers."""
    plan = scenario.plan
    pp, schedule = plan.mesh.pp, plan.schedule
    if schedule.name not in SCHEDULES:
        yield not_among("plan.schedule.name", schedule.name, SCHEDULES)
        return
    layers = scenario.model.layers
    if plan.virtual_stages > layers + 2:
        given_text = f"pp {pp} x chunks {schedule.chunks} = {plan.virtual_stages} stages"
        expectation = f"at most one stage for each of {layers} layers, the embedding and the output"
        yield Problem(path="plan.pp", given=given_text, expected=expectation)
    if plan.placement and (len(plan.placement), sum(plan.placement)) != (plan.virtual_stages, layers):
        given_text = f"{len(plan.placement)} stages with {sum(plan.placement)} layers"
        expectation = f"{plan.virtual_stages} stages with {layers} layers in all"
        yield Problem(path="plan.placement", given=given_text, expected=expectation)
    if isinstance(scenario.workload, Train) and pp > 1:
        sequences = scenario.workload.sequences
        if sequences % (plan.mesh.dp * plan.microbatch):
            return  # already told by `batch`
        counts = {"stages": pp, "microbatches": scenario.microbatches, "chunks": schedule.chunks}
        reason = requirement(schedule.name, **counts)
        if reason:
            given_text = f"{schedule.name} with " + ", ".join(f"{count} {what}" for what, count in counts.items())
            expectation = reason.removeprefix(f"{schedule.name} needs ")
            yield Problem(path="plan.schedule", given=given_text, expected=expectation)
    elif schedule.chunks > 1:
        yield Problem(path="plan.schedule", given=f"{schedule.chunks} chunks", expected="1 chunk without a pipeline")


def sharding(scenario: Scenario) -> Iterator[Problem]:
    """A shard is split over a divisor of the data-parallel ranks, context ranks among them."""
    plan = scenario.plan
    if plan.sharding.shard == "none" and (plan.sharding.shard_degree or 1) > 1:
        given_text, expectation = str(plan.sharding.shard_degree), 'none with shard = "none"'
        yield Problem(path="plan.shard_degree", given=given_text, expected=expectation, todo='set shard = "zero1"')
    yield from divides("plan.shard_degree", plan.shard_degree, plan.mesh.dp * plan.mesh.cp, "dp x cp")


def precision(scenario: Scenario) -> Iterator[Problem]:
    """The chip must publish a peak for the format matrices are multiplied in."""
    compute, chip = scenario.plan.precision.compute, scenario.system.chip
    if compute.peak not in chip.peak:
        formats = ", ".join(chip.peak)
        todo = f'set one with --set chip.peak.{compute.peak}="… TFLOP/s"'
        yield Problem(path="plan.precision", given=compute.id, expected=f"a peak {chip.id} has: {formats}", todo=todo)


def engine(scenario: Scenario) -> Iterator[Problem]:
    """The engine that the plan names must be the one at hand."""
    if scenario.plan.engine != scenario.engine.id:
        yield not_among("plan.engine", scenario.plan.engine, dict.fromkeys((*ENGINES, scenario.engine.id)))


def encoders(scenario: Scenario) -> Iterator[Problem]:
    """An encoder's output is read by every layer: both stand on the same ranks, with whole sequences on each."""
    encoder, mesh, work = scenario.model.encoder, scenario.plan.mesh, scenario.workload
    if encoder is None:
        encoder_seq = None if isinstance(work, (Serve, Rl)) else work.encoder_seq
        if encoder_seq is not None:
            expectation = f"nothing: {scenario.model.id} has no encoder"
            yield Problem(
                path="workload.encoder_seq", given=str(encoder_seq), expected=expectation, todo="leave it out"
            )
        return
    why = f"1: cross attention of {scenario.model.id} reads its encoder's output in every layer"
    for axis, degree in (("pp", mesh.pp), ("cp", mesh.cp)):
        if degree > 1:
            yield Problem(path=f"plan.{axis}", given=str(degree), expected=why, todo="use tp or dp instead")
    if isinstance(work, Serve):
        expectation = "a model without an encoder: requests have no source lengths yet"
        yield Problem(path="workload.kind", given="serve", expected=expectation, todo="predict prefill and decode")


def blocks(scenario: Scenario) -> Iterator[Problem]:
    """Recompute by block names blocks the model has."""
    indices = [str(index) for index in range(len(scenario.model.blocks))]
    for name in scenario.plan.recompute.blocks:
        if name not in indices:
            expectation = f"an index of the model's {len(indices)} distinct blocks: {', '.join(indices)}"
            yield Problem(path=f"plan.recompute.blocks.{name}", given=repr(name), expected=expectation)


def recomputed_layers(scenario: Scenario) -> Iterator[Problem]:
    """Recompute by stage has a number for every virtual stage, none above the layers it holds."""
    plan = scenario.plan
    layers = plan.recompute.layers
    if layers is None or isinstance(layers, int):
        return
    if len(layers) != plan.virtual_stages:
        expectation = f"a number for each of {plan.virtual_stages} virtual stages (pp x chunks), or one for all"
        yield Problem(path="plan.recompute.layers", given=f"{len(layers)} numbers", expected=expectation)
        return
    if len(plan.placement) not in (0, plan.virtual_stages) or plan.virtual_stages > scenario.model.layers + 2:
        return  # already told by `pipeline`
    for stage, (recompute_layers, stage_layers) in enumerate(zip(layers, scenario.placement, strict=True)):
        if recompute_layers > stage_layers:
            expectation = f"at most the {stage_layers} layers of this stage"
            yield Problem(path=f"plan.recompute.layers[{stage}]", given=str(recompute_layers), expected=expectation)


def serving(scenario: Scenario) -> Iterator[Problem]:
    """Replicas of a deployment fit on its chips, and ranks that step together divide the data-parallel ones."""
    if not isinstance(scenario.workload, Serve):
        return
    mesh, serving = scenario.plan.mesh, scenario.plan.serving
    if mesh.cp > 1:
        yield Problem(path="plan.cp", given=str(mesh.cp), expected="1: requests are not split over context ranks")
    if serving.pools:
        yield from _pools(scenario)
        return
    yield from divides("plan.serving.data_parallel_size", serving.data_parallel_size, mesh.dp, "dp")
    replica_limit = mesh.dp // serving.data_parallel_size
    replicas = serving.autoscale.max_replicas if serving.autoscale else serving.replicas
    if replicas is not None and replicas > replica_limit:
        path = "plan.serving.autoscale.max_replicas" if serving.autoscale else "plan.serving.replicas"
        replica_ranks = f"pp {mesh.pp} x tp {mesh.tp} x {serving.data_parallel_size} ranks each"
        expectation = f"at most {replica_limit}: {scenario.system.chips} chips, {replica_ranks}"
        yield Problem(path=path, given=str(replicas), expected=expectation)


def _pools(scenario: Scenario) -> Iterator[Problem]:
    mesh = scenario.plan.mesh
    used = 0
    for pool in scenario.plan.serving.pools:
        if not pool.system:
            used += pool.replicas * (pool.tp or mesh.tp) * (pool.pp or mesh.pp) * pool.dp
    if used > scenario.system.chips:
        expectation = f"at most the {scenario.system.chips} chips of {scenario.system.name}"
        yield Problem(path="plan.serving.pools", given=f"{used} chips", expected=expectation)


MOST_ASPECT = 200  # of an image's sides, as processors have it


def with_length(table: object, model: ModelSpec | None) -> tuple[object, list[str]]:
    """A [workload] table with the `seq` that its height, width and frames mean to a diffusion transformer, where it
    gives none, and what that is; text that stands beside the latents is counted."""
    space = model.latent_space if model else None
    if space is None or not isinstance(table, Mapping) or "seq" in table:
        return table, []
    height = table.get("height")
    sizes = height, table.get("width", height), table.get("frames", 1)
    if not all(type(size) is int and size > 0 for size in sizes):
        return table, []
    latents = space.tokens(*sizes)  # type: ignore[arg-type]
    seq = latents + (space.text if space.joint else 0)
    length_note = f"seq = {seq}: {sizes[0]} x {sizes[1]} pixels, {sizes[2]} frames are {latents} tokens"
    return {**table, "seq": seq}, [length_note + (f", beside {space.text} of text" if space.joint else "")]


def media(scenario: Scenario) -> Iterator[Problem]:
    """Images and sound take tokens of their sequence; their sizes ask for a model that sees, hears or makes some."""
    model, work = scenario.model, scenario.workload
    if isinstance(work, (Serve, Rl)):
        return
    listens = model.audio is not None or (model.encoder is not None and model.encoder.reads == "audio")
    if work.audio_s is not None and not listens:
        yield Problem(path="workload.audio_s", given=f"{work.audio_s:g}", expected=f"nothing: {model.id} hears nothing")
    encoder = model.encoder
    if encoder is not None and encoder.per_second and (work.audio_s or 0) * encoder.per_second > encoder.context:
        expectation = f"at most {encoder.context / encoder.per_second:g}: longer sound is several sequences"
        given_text = f"{work.audio_s:g}"
        yield Problem(path="workload.audio_s", given=given_text, expected=expectation, todo="cut it into windows")
    if not isinstance(work, Decode):
        yield from _sizes(model, work)
        yield from _fits(scenario, work)


def _sizes(model: ModelSpec, work: Train | Prefill) -> Iterator[Problem]:
    """Sizes of images and video that the model can use."""
    makes, sees = model.latent_space is not None, model.vision is not None
    for key in ("height", "width", "image_tokens"):
        value = getattr(work, key)
        if value is not None and not sees and not (makes and key != "image_tokens"):
            yield Problem(path=f"workload.{key}", given=str(value), expected=f"nothing: {model.id} has no images")
    if work.videos and not sees:
        yield Problem(path="workload.videos", given=f"{work.videos:g}", expected=f"0: {model.id} sees no video")
    if work.frames > 1 and not makes and not work.videos:
        expectation = f"1: {model.id} makes no video" if not sees else "1, or videos of so many frames"
        yield Problem(path="workload.frames", given=str(work.frames), expected=expectation, todo="set videos = 1")
    if work.width is not None and work.height is None:
        yield Problem(path="workload.width", given=str(work.width), expected="a height too", todo="set height")
    if work.image_tokens is not None and work.height is not None and not work.videos:
        expectation = "height and width, or image_tokens"
        yield Problem(path="workload.image_tokens", given=str(work.image_tokens), expected=expectation)
    high, wide = work.height or 1, work.width or work.height or 1
    if max(high, wide) > MOST_ASPECT * min(high, wide):
        expectation = f"sides of at most 1 : {MOST_ASPECT}, which processors refuse beyond"
        yield Problem(path="workload.width", given=f"{high} x {wide} pixels", expected=expectation)


def _fits(scenario: Scenario, work: Train | Prefill) -> Iterator[Problem]:
    """What images, videos and sound become stands in the sequence."""
    vision_input, audio_input = scenario.vision_input, scenario.audio_input
    if math.ceil(vision_input.tokens + audio_input.tokens) <= work.seq:
        return
    amounts = {"images": work.images, "videos": work.videos, "audio_s": work.audio_s or 0}
    media_amounts = [(key, value) for key, value in amounts.items() if value]
    given_text = ", ".join(f"{key} = {value:g}" for key, value in media_amounts)
    expectation = f"at most seq ({work.seq}) tokens: they become {vision_input.tokens + audio_input.tokens:,.0f}"
    yield Problem(
        path=f"workload.{media_amounts[0][0]}", given=given_text, expected=expectation, todo="use a longer seq"
    )


Rule = Callable[[Scenario], Iterable[Problem]]
RULES: tuple[Rule, ...] = (
    ranks, order, tensor, experts, context, batch, pipeline, sharding, precision, engine, blocks,
    recomputed_layers, serving, encoders, media,
)  # fmt: skip
