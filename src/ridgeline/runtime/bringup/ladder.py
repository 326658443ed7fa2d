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
from ridgeline.runtime.bringup.rig import DRAWS, Rig, checked, rig_of
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.stepper import adamw, first_tensor, traced, trained
from ridgeline.runtime.bringup.subject import Subject
from ridgeline.runtime.bringup.tensors import equal_bits, on_host

STEPS, TRAINING_DRAWS = 3, 3


def climbed(session: Session, format: str) -> tuple[Check, ...]:
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
        found = {}
        for path, given in inputs.items():
            there = [_moved(x, one, wide) for x in given]
            with torch.no_grad():
                value = first_tensor(one.module.get_submodule(path)(*there))
            if value is not None:
                found[path] = on_host(value)
        return found

    reference = rig.wide()
    with Exact():
        exact = outputs(reference, wide=True)
    draws = []
    for seed in range(DRAWS):
        made = rig.build("cpu")
        with rig.rounded(seed):
            draws.append(outputs(made))
    spread = Spread(exact=exact, draws=draws, chooses=rig.chooses)
    there = rig.subject()
    return checked(session, rig, "module", lambda: _furthest(spread, outputs(there)))


def two_layers(session: Session, rig: Rig) -> Check:
    """The residual stream behind each of two layers, or the parts of a user's module one after the other."""
    if not rig.paths:
        return Check(name="two layers", format=rig.format, verdict="not run", reason="the module has no parts")

    def measure() -> tuple[Measured, str]:
        got = traced(rig.subject(), backward=False, paths=rig.paths[:2])
        return _furthest(rig.spread, {path: got[path] for path in rig.paths[:2] if path in got}, first=True)

    return checked(session, rig, "two layers", measure)


def whole_model(session: Session, rig: Rig) -> Check:
    """Every layer, the loss and every parameter's gradient."""

    def measure() -> tuple[Measured, str]:
        return _furthest(rig.spread, traced(rig.subject(), paths=rig.paths), first=True)

    return checked(session, rig, "whole model", measure)


def logits(session: Session, rig: Rig) -> Check:
    """Next-token distributions, teacher-forced: their Kullback-Leibler divergence from the exact ones."""

    def measure() -> tuple[Measured, str]:
        with torch.no_grad():
            got = traced(rig.subject(), backward=False)
        found = rig.spread.divergence("output", got["output"])
        apart = rig.spread.judged("output", got["output"])
        return (found if found.excess > apart.excess else apart), "output"

    return checked(session, rig, "logits", measure)


def training(session: Session, rig: Rig) -> Check:
    """Losses of some steps of AdamW, paired step by step with those of the exact model."""

    def losses(subject: Subject, mode: Any = None) -> dict[str, Tensor]:
        found = trained(subject, STEPS, mode=mode, modules=rig.modules)
        return {"losses": torch.stack([x.double() for x in found])}

    exact = losses(rig.wide(), Exact())
    draws = [losses(rig.build("cpu"), rig.rounded(seed)) for seed in range(TRAINING_DRAWS)]
    spread = Spread(exact=exact, draws=draws)

    def measure() -> tuple[Measured, str]:
        got = losses(rig.subject())["losses"].float()
        found = spread.judged("losses", got)
        step = int((got.double() - exact["losses"]).abs().argmax())
        return found, f"step {step + 1}"

    return checked(session, rig, "training", measure)


def resume(session: Session, rig: Rig) -> Check:
    """Steps, a checkpoint, as many steps: the bits of a run without it, or nearer than two such runs are."""

    def final(at: int | None) -> list[Tensor]:
        subject = rig.subject()
        optimizer = adamw(subject)
        if at is not None:
            trained(subject, at, optimizer, modules=rig.modules)
            held = io.BytesIO()
            state = {"model": _state(subject.module.state_dict()), "optimizer": _state(optimizer.state_dict())}
            torch.save(state, held)
            held.seek(0)
            state = torch.load(held, weights_only=True)
            subject = rig.subject()
            optimizer = adamw(subject)
            subject.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        trained(subject, STEPS - (at or 0), optimizer, modules=rig.modules)
        return [on_host(x) for x in subject.module.parameters()]

    def measure() -> tuple[Measured, str]:
        whole, resumed = final(None), final(STEPS // 2)
        if equal_bits(whole, resumed):
            return Measured(statistic="unequal", value=0.0, limit=0.5), ""
        again = final(None)
        noise = max(_distance(a, b) for a, b in zip(whole, again, strict=True))
        far = max(_distance(a, b) for a, b in zip(whole, resumed, strict=True))
        return Measured(statistic="unequal", value=far, limit=max(4 * noise, 1e-300)), "parameters"

    return checked(session, rig, "resume", measure)


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
        found = spread.judged(name, value)
        if not found.right and first:
            return found, name
        if found.excess > worst.excess or not where:
            worst, where = found, name
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


def _moved(x: Tensor, subject: Subject, wide: bool) -> Tensor:
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
