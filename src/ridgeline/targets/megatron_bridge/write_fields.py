"""Turn one of Megatron's options into the fields of Megatron-Bridge's ConfigContainer that say the same: one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.megatron.layout import flags_of
from ridgeline.targets.megatron.write_numerics import scaled_by_yarn
from ridgeline.targets.megatron_bridge.names import ACTIVATIONS, DTYPES, FIELDS, OPPOSITE

VIRTUAL = "model.virtual_pipeline_model_parallel_size"


@dataclass(frozen=True, slots=True)
class Code:
    """A Python expression, written as it is."""

    text: str

    def __str__(self) -> str:
        return self.text


Transform = Callable[[Any, Scenario], Any]  # an option's value -> the field's; None where the field is left alone


def _same(value: Any, _: Scenario) -> Any:
    return value


def _always(value: Any) -> Transform:
    return lambda _value, _scenario: value


def _code(form: str) -> Transform:
    return lambda value, _: Code(form.format(value))


def _dtype(value: Any, _: Scenario) -> Code:
    return Code(DTYPES.get(str(value), str(value)))


def _window(value: Any, _: Scenario) -> Code:
    """Tokens seen to the left, and none to the right."""
    return Code(f"({int(str(value).split(',')[0])}, 0)")


def _flags(value: Any, scenario: Scenario) -> Any:
    """A pattern spelt layer by layer; a plain frequency as it is."""
    if "[" not in str(value):
        return value
    return Code(str([int(flag) for flag in flags_of(str(value), scenario.model.layers)]))


def _frequency(value: Any, scenario: Scenario) -> Any:
    found = _flags(value, scenario)
    return found if isinstance(found, Code) else int(found)


def _chunks(_: Any, scenario: Scenario) -> int:
    return scenario.plan.schedule.chunks


def _chunks_if_several(_: Any, scenario: Scenario) -> int | None:
    return scenario.plan.schedule.chunks if scenario.plan.schedule.chunks > 1 else None


def _activation(option: str, *, gated: bool, code: str) -> dict[str, dict[str, Transform]]:
    return {option: {"model.gated_linear_unit": _always(gated), "model.activation_func": _always(Code(code))}}


def _wide_gradients(wide: bool) -> dict[str, Transform]:
    return {f"{owner}.grad_reduce_in_fp32": _always(wide) for owner in ("mixed_precision", "ddp")}


def _of_latents(value: Any, scenario: Scenario) -> Any:
    return None if scaled_by_yarn(scenario.model) else value


def _of_softmax(value: Any, scenario: Scenario) -> Any:
    return value if scaled_by_yarn(scenario.model) else None


FLAGS = ("window-attn-skip-freq", "no-rope-freq", "linear-attention-freq")
# option without dashes -> field -> how its value is made of the option's; later rows stand above earlier ones
WRITTEN: Mapping[str, Mapping[str, Transform]] = MappingProxyType(
    {
        **{option: {field: _same} for option, field in FIELDS.items()},
        **{option: {field: _always(False)} for option, field in OPPOSITE.items()},
        **{option: {field: _dtype} for option, field in FIELDS.items() if option.endswith("-dtype")},
        **{option: {FIELDS[option]: _flags} for option in FLAGS},
        **{word: {"mixed_precision": _always(Code(f"{word}_mixed()"))} for word in ("bf16", "fp16")},
        **_activation("swiglu", gated=True, code="F.silu"),
        **_activation("quick-geglu", gated=True, code=ACTIVATIONS["quick-geglu"]),
        **_activation("squared-relu", gated=False, code=ACTIVATIONS["squared-relu"]),
        "moe-layer-freq": {FIELDS["moe-layer-freq"]: _frequency},
        "window-size": {FIELDS["window-size"]: _window},
        "attention-backend": {FIELDS["attention-backend"]: _code("AttnBackend.{}")},
        "cuda-graph-modules": {FIELDS["cuda-graph-modules"]: lambda value, _: (value,)},
        "grad-reduce-in-bf16": _wide_gradients(False),
        "accumulate-allreduce-grads-in-fp32": _wide_gradients(True),
        "rotary-scaling-factor": {
            FIELDS["rotary-scaling-factor"]: _of_latents,
            "model.yarn_rotary_scaling_factor": _of_softmax,
        },
        "group-query-attention": {},
        "spec": {},  # the provider picks its layers' specification
        "no-create-attention-mask-in-dataloader": {},
        "num-layers-per-virtual-pipeline-stage": {VIRTUAL: _chunks},
        "pipeline-model-parallel-layout": {
            FIELDS["pipeline-model-parallel-layout"]: _same,
            VIRTUAL: _chunks_if_several,
        },
        "no-overlap-p2p-communication": {
            "comm_overlap.overlap_p2p_comm": _always(False),
            "comm_overlap.batch_p2p_comm": _always(True),
        },
        "cpu-offloading-num-layers": {
            "model.cpu_offloading": _always(True),
            FIELDS["cpu-offloading-num-layers"]: _same,
        },
        "hybrid-layer-pattern": {FIELDS["hybrid-layer-pattern"]: _same, VIRTUAL: _chunks_if_several},
        "seq-length": {"model.seq_length": _same, "dataset.seq_length": _same},
    }
)


def fields_of(piece: Say, scenario: Scenario) -> Iterator[Piece]:
    """The fields that carry what an option carries; a loss where there is none."""
    name = piece.option.removeprefix("--")
    if name == "max-position-embeddings":
        yield from _positions(piece, scenario)
    elif name not in WRITTEN:
        for path in piece.paths:
            yield Lose(path, f"no field for {piece.option}")
    else:
        for field, transform in WRITTEN[name].items():
            value = transform(piece.value, scenario)
            if value is not None:
                yield Say(field, value, *piece.paths)


def _positions(piece: Say, scenario: Scenario) -> Iterator[Piece]:
    """Learned positions have a row for each token of a sequence: the provider takes their number from its length."""
    for path in piece.paths:
        if path == "model.embedding.positions" and piece.value == scenario.workload.seq:
            yield Say("model.seq_length", piece.value, path)
        elif path == "model.context":
            yield Fixed(path, scenario.model.context, "what the model was made for; a run has its own length")
        else:
            yield Lose(path, "the provider takes its length from seq_length")
