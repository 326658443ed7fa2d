"""One thing to study: a model, on a system, doing a workload, by a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeGuard

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.hardware.system import System
from ridgeline.models.media_tokens import audio_input, image_input, tokens_input, video_input
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.engine import Engine
from ridgeline.plan.plan import Plan
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.unread import UnreadOptions
from ridgeline.plan.workload import Decode, Serve, Train, Workload

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    W = TypeVar("W", bound=Workload, default=Workload, covariant=True)
else:
    from typing import TypeVar

    W = TypeVar("W", bound=Workload)


def balance_layers(layers: int, stages: int, ahead: int = 0) -> tuple[int, ...]:
    """Layers of each stage when the embedding and the output count as one slot each, at opposite ends.

        slots = layers + 2;  no stage holds more than ceil(slots / stages)

    An even split is kept where it is as good. Stages that hold one slot less stand at the ends first, the output's end
    before the embedding's, because those two carry work of their own.

    A model that predicts `ahead` further tokens has that many blocks and outputs more at its end, each a slot. Then the
    stages are filled from the front, as Megatron's layouts for such models do, and the last one holds what is left.

    >>> balance_layers(61, 16, ahead=1)
    (4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1)
    >>> balance_layers(126, 16)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    >>> balance_layers(96, 8), balance_layers(61, 4), balance_layers(5, 1)
    ((12, 12, 12, 12, 12, 12, 12, 12), (15, 16, 16, 14), (5,))
    """
    if ahead and stages > 1:
        return _fill_stages(layers, stages, -(-(layers + 1 + 2 * ahead) // stages))
    slots = layers + 2
    slot_limit = -(-slots // stages)
    if layers % stages == 0 and (stages == 1 or layers // stages + 1 <= slot_limit):
        return (layers // stages,) * stages
    layers_of_stages = [slot_limit] * stages
    layers_of_stages[0] -= 1
    layers_of_stages[-1] -= 1
    ends = [stage // 2 if stage % 2 else stages - 1 - stage // 2 for stage in range(stages)]
    short = sum(layers_of_stages) - layers
    while short:
        for stage in ends:
            if short and layers_of_stages[stage] > 0:
                layers_of_stages[stage] -= 1
                short -= 1
    return tuple(layers_of_stages)


def _fill_stages(layers: int, stages: int, most: int) -> tuple[int, ...]:
    """Stages filled with `most` layers from the front."""
    layers_of_stages: list[int] = []
    for _ in range(stages):
        layers_of_stages.append(min(most, layers - sum(layers_of_stages)))
    return tuple(layers_of_stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Generic[W]):
    """model x system x workload x plan, with what had to be assumed to complete it.

    `Scenario[Train]` is one of a training step, `Scenario[Serve]` one of requests under load, `Scenario[Rl]` one of
    post-training; `Scenario` is any: `training`, `serving`, `post_training` and `is_training` tell them apart.

    engine   the software that `plan.engine` names, as a value: nobody looks it up again
    unread   options of the files it was read from that nobody understood: they widen its prediction

    A scenario may be impossible: `ridgeline.check` says why, as values.
    """

    model: ModelSpec
    system: System
    workload: W
    engine: Engine
    plan: Plan = Plan()
    assumptions: tuple[str, ...] = ()
    name: str = ""
    unread: UnreadOptions = ()

    def with_engine(self, engine: Engine) -> Scenario[W]:
        """The same under other software."""
        return replace(self, engine=engine, plan=replace(self.plan, engine=engine.id))

    @property
    def microbatches(self) -> int:
        """Microbatches each data-parallel rank runs in one step."""
        if isinstance(self.workload, Train):
            return max(1, self.workload.sequences // (self.plan.mesh.dp * self.plan.microbatch))
        return 1

    @property
    def encoder_tokens(self) -> int:
        """Positions that the encoder reads for one sequence: the workload's, those it was made for where it reads
        audio (shorter clips are filled up with silence), as many as the sequence has where it reads tokens; text that a
        diffusion transformer reads in cross attention; 0 without either."""
        encoder, space = self.model.encoder, self.model.latent_space
        if space is not None and not space.joint:
            return space.text
        if encoder is None or isinstance(self.workload, (Serve, Rl)):
            return 0
        usual_tokens = self.workload.seq if encoder.reads == "tokens" else encoder.context
        return self.workload.encoder_seq or usual_tokens

    @property
    def vision_input(self) -> EncoderInput:
        """What the image encoder reads for one sequence: nothing without one, or without images and videos."""
        vision, work = self.model.vision, self.workload
        if vision is None or isinstance(work, (Serve, Decode, Rl)):
            return EncoderInput()
        encoder_input = EncoderInput()
        if work.images:
            sized_input = tokens_input(vision, work.image_tokens) if work.image_tokens else None
            encoder_input = (sized_input or image_input(vision, work.height, work.width)).times(work.images)
        if work.videos:
            encoder_input = encoder_input + video_input(vision, work.frames, work.height, work.width).times(work.videos)
        return encoder_input

    @property
    def audio_input(self) -> EncoderInput:
        """What the audio encoder reads for one sequence: nothing without one, or without sound."""
        audio, work = self.model.audio, self.workload
        if audio is None or isinstance(work, (Serve, Decode, Rl)) or not work.audio_s:
            return EncoderInput()
        return audio_input(audio.clip, work.audio_s)

    @property
    def placement(self) -> tuple[int, ...]:
        """Layers of each virtual stage: the plan's own, or the balanced default."""
        return self.plan.placement or default_placement(self.model, self.plan.virtual_stages)


def default_placement(model: ModelSpec, stages: int) -> tuple[int, ...]:
    """Layers of each virtual stage where no plan says."""
    return balance_layers(model.layers, stages, model.mtp.depth if model.mtp else 0)


def is_training(scenario: Scenario) -> TypeGuard[Scenario[Train]]:
    """Whether its workload is a training step."""
    return scenario.workload.kind == "train"


def is_serving(scenario: Scenario) -> TypeGuard[Scenario[Serve]]:
    """Whether its workload is requests under load."""
    return scenario.workload.kind == "serve"


def training(scenario: Scenario) -> Scenario[Train]:
    """The scenario as one of a training step; an `InputError` where it is another."""
    if not is_training(scenario):
        raise _other_workload(scenario, "train")
    return scenario


def serving(scenario: Scenario) -> Scenario[Serve]:
    """The scenario as one of requests under load; an `InputError` where it is another."""
    if not is_serving(scenario):
        raise _other_workload(scenario, "serve")
    return scenario


def is_post_training(scenario: Scenario) -> TypeGuard[Scenario[Rl]]:
    """Whether its workload is a step of post-training."""
    return scenario.workload.kind == "rl"


def post_training(scenario: Scenario) -> Scenario[Rl]:
    """The scenario as one of post-training; an `InputError` where it is another."""
    if not is_post_training(scenario):
        raise _other_workload(scenario, "rl")
    return scenario


def _other_workload(scenario: Scenario, expected: str) -> InputError:
    return InputError(Problem(path="workload.kind", given=scenario.workload.kind, expected=expected))
