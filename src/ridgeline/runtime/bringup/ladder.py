"""The ladder: module, two layers, whole model, teacher-forced logits, training steps, resume.

Each rung compares the device with the exact model in units of what right devices show at that depth; the first rung
beyond its limit says where an error begins that no op shows alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.bringup.findings import Check
from ridgeline.runtime.bringup.noise import Measured, Spread
from ridgeline.runtime.bringup.reference import Exact
from ridgeline.runtime.bringup.rig import DRAWS, Rig, rig_of, run_check
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.stepper import adamw, first_tensor, trace_values, train_steps
from ridgeline.runtime.bringup.subject import Subject
from ridgeline.runtime.bringup.tensors import equal_bits, on_host

STEPS, TRAINING_DRAWS = 3, 3


def run_rungs(session: Session, format: str) -> tuple[Check, ...]:
    """Every rung in one format."""
    rig = rig_of(session, format)
    if isinstance(rig, str):
        return tuple(Check(name=name, format=format, verdict="not run", reason=rig) for name, _ in RUNGS)
    return tuple(rung(session, rig) for _, rung in RUNGS)


def modules(session: Session, rig: Rig) -> Check:
    """Each part of a layer on the device's own inputs: no error of another part is in it."""
    subject = rig.subject()
    inputs: dict[str, Any] = {}
    paths = _parts(subject)
    handles = [
        module.register_forward_pre_hook(_input_keeper(inputs, path))
        for path, module in subject.module.named_modules()
        if path in paths
    ]
    with torch.no_grad():
        subject.forward()
    for handle in handles:
        handle.remove()

    def outputs(one: Subject, wide: bool = False) -> dict[str, Tensor]:
        outputs_by_path = {}
        for path, module_inputs in inputs.items():
            there = [_move_tensor(x, one, wide) for x in module_inputs]
            with torch.no_grad():
                value = first_tensor(one.module.get_submodule(path)(*there))
            if value is not None:
                outputs_by_path[path] = on_host(value)
        return outputs_by_path

    reference = rig.wide()
    with Exact():
        exact = outputs(reference, wide=True)
    draws = []
    for seed in range(DRAWS):
        made = rig.build("cpu")
        with rig.rounded(seed):
            draws.append(outputs(made))
    noise = Spread(exact=exact, draws=draws, chooses=rig.chooses)
    there = rig.subject()
    return run_check(session, rig, "module", lambda: _furthest(noise, outputs(there)))


def two_layers(session: Session, rig: Rig) -> Check:
    """The residual stream behind each of two layers, or the parts of a user's module one after the other."""
    if not rig.paths:
        return Check(name="two layers", format=rig.format, verdict="not run", reason="the module has no parts")

    def measure() -> tuple[Measured, str]:
        got = trace_values(rig.subject(), backward=False, paths=rig.paths[:2])
        return _furthest(rig.spread, {path: got[path] for path in rig.paths[:2] if path in got}, first=True)

    return run_check(session, rig, "two layers", measure)


def whole_model(session: Session, rig: Rig) -> Check:
    """Every layer, the loss and every parameter's gradient."""

    def measure() -> tuple[Measured, str]:
        return _furthest(rig.spread, trace_values(rig.subject(), paths=rig.paths), first=True)

    return run_check(session, rig, "whole model", measure)


def logits(session: Session, rig: Rig) -> Check:
    """Next-token distributions, teacher-forced: their Kullback-Leibler divergence from the exact ones."""

    def measure() -> tuple[Measured, str]:
        with torch.no_grad():
            got = trace_values(rig.subject(), backward=False)
        divergence = rig.spread.divergence("output", got["output"])
        measurement = rig.spread.judge_value("output", got["output"])
        return (divergence if divergence.excess > measurement.excess else measurement), "output"

    return run_check(session, rig, "logits", measure)


def training(session: Session, rig: Rig) -> Check:
    """Losses of some steps of AdamW, paired step by step with those of the exact model."""

    def losses(subject: Subject, mode: Any = None) -> dict[str, Tensor]:
        losses_ = train_steps(subject, STEPS, mode=mode, modules=rig.modules)
        return {"losses": torch.stack([x.double() for x in losses_])}

    exact = losses(rig.wide(), Exact())
    draws = [losses(rig.build("cpu"), rig.rounded(seed)) for seed in range(TRAINING_DRAWS)]
    noise = Spread(exact=exact, draws=draws)

    def measure() -> tuple[Measured, str]:
        got = losses(rig.subject())["losses"].float()
        measurement = noise.judge_value("losses", got)
        step = int((got.double() - exact["losses"]).abs().argmax())
        return measurement, f"step {step + 1}"

    return run_check(session, rig, "training", measure)


def resume(session: Session, rig: Rig) -> Check:
    """Steps, a checkpoint, as many steps: the bits of a run without it, or nearer than two such runs are."""

    def final(at: int | None) -> list[Tensor]:
        subject = rig.subject()
        optimizer = adamw(subject)
        if at is not None:
            train_steps(subject, at, optimizer, modules=rig.modules)
            buffer = io.BytesIO()
            state = {"model": _state(subject.module.state_dict()), "optimizer": _state(optimizer.state_dict())}
            torch.save(state, buffer)
            buffer.seek(0)
            state = torch.load(buffer, weights_only=True)
            subject = rig.subject()
            optimizer = adamw(subject)
            subject.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        train_steps(subject, STEPS - (at or 0), optimizer, modules=rig.modules)
        return [on_host(x) for x in subject.module.parameters()]

    def measure() -> tuple[Measured, str]:
        whole, after_resume = final(None), final(STEPS // 2)
        if equal_bits(whole, after_resume):
            return Measured(statistic="unequal", value=0.0, limit=0.5), ""
        repeat = final(None)
        noise = max(_distance(a, b) for a, b in zip(whole, repeat, strict=True))
        far = max(_distance(a, b) for a, b in zip(whole, after_resume, strict=True))
        return Measured(statistic="unequal", value=far, limit=max(4 * noise, 1e-300)), "parameters"

    return run_check(session, rig, "resume", measure)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _state(value: Any) -> Any:
    return torch.utils._pytree.tree_map(on_host, value)


def _furthest(spread: Spread, got: dict[str, Tensor], *, first: bool = False) -> tuple[Measured, str]:
    """The tensor nearest to its limit; with `first` the first one beyond it."""
    worst, where = Measured(statistic="power"), ""
    for name, value in got.items():
        if name not in spread.exact:
            continue
        measurement = spread.judge_value(name, value)
        if not measurement.right and first:
            return measurement, name
        if measurement.excess > worst.excess or not where:
            worst, where = measurement, name
    return worst, where


def _parts(subject: Subject) -> tuple[str, ...]:
    names = [path for path, _ in subject.module.named_modules() if path]
    inner = tuple(path for path in names if path.startswith("layers.") and path.count(".") == 2)
    return inner or tuple(path for path in names if path.count(".") == 0)


def _input_keeper(found: dict[str, Any], path: str) -> Callable[[Any, Any], None]:
    def keep(_module: Any, given: Any) -> None:
        if path not in found and all(isinstance(x, Tensor) for x in given):
            found[path] = [on_host(x) for x in given]

    return keep


def _move_tensor(x: Tensor, subject: Subject, wide: bool) -> Tensor:
    there = next(iter(subject.module.parameters())).device
    return (x.double() if wide and x.is_floating_point() else x).to(there)


RUNGS: tuple[tuple[str, Callable[[Session, Rig], Check]], ...] = (
    ("module", modules),
    ("two layers", two_layers),
    ("whole model", whole_model),
    ("logits", logits),
    ("training", training),
    ("resume", resume),
)


def names() -> Iterator[str]:
    """Of the rungs, from below."""
    yield from (name for name, _ in RUNGS)
