"""The ladder: module, two layers, whole model, teacher-forced logits, training steps, resume; and repeated runs.

Each rung compares the device with the exact model in units of what right devices show at that depth; the first rung
beyond its limit says where an error begins that no op shows alone. In repeated runs an op whose arguments are the same
bits as in the first run and whose result is not is judged by its contract: within it sums were taken in another order,
which is reported; beyond it the op reads what is not yet, or no longer, there.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ridgeline.runtime.bringup.arithmetic import Args, HostCall, Kwargs, Outputs, tensors_in
from ridgeline.runtime.bringup.capture import Modules, OpPlace, WrongCall, dtype_of, entry_of, signature_of
from ridgeline.runtime.bringup.contracts import has_contract, outputs_of
from ridgeline.runtime.bringup.devices import OpMode
from ridgeline.runtime.bringup.fake_device import equal_bits, on_host
from ridgeline.runtime.bringup.findings import Check, Determinism
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.judge import NoContractError, judge
from ridgeline.runtime.bringup.repro import Session
from ridgeline.runtime.bringup.subject import Subject, adamw
from ridgeline.runtime.bringup.testbed import (
    DrawSpread,
    Exact,
    SpreadFigure,
    Testbed,
    first_tensor,
    furthest,
    run_check,
    spread_of,
    testbed_of,
    trace_values,
    train_steps,
)

STEPS, TRAINING_DRAWS = 3, 3


def run_rungs(session: Session, format: str) -> tuple[Check, ...]:
    """Every rung in one format."""
    bed = testbed_of(session, format)
    if isinstance(bed, str):
        return tuple(Check(name=name, format=format, verdict="not run", reason=bed) for name, _ in RUNGS)
    return tuple(rung(session, bed) for _, rung in RUNGS)


def modules(session: Session, bed: Testbed) -> Check:
    """Each part of a layer on the device's own inputs: no error of another part is in it."""
    subject = bed.subject()
    inputs: dict[str, list[Tensor]] = {}
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

    def outputs(one: Subject) -> dict[str, Tensor]:
        outputs_by_path = {}
        for path, module_inputs in inputs.items():
            there = [_move_tensor(x, one) for x in module_inputs]
            with torch.no_grad():
                value = first_tensor(one.module.get_submodule(path)(*there))
            if value is not None:
                outputs_by_path[path] = on_host(value)
        return outputs_by_path

    noise, there = spread_of(bed, outputs), bed.subject()
    return run_check(session, bed, "module", lambda: _furthest(noise, outputs(there)))


def two_layers(session: Session, bed: Testbed) -> Check:
    """The residual stream behind each of two layers, or the parts of a user's module one after the other."""
    if not bed.paths:
        return Check(name="two layers", format=bed.format, verdict="not run", reason="the module has no parts")

    def measure() -> tuple[SpreadFigure, str]:
        got = trace_values(bed.subject(), backward=False, paths=bed.paths[:2])
        return _furthest(bed.spread, {path: got[path] for path in bed.paths[:2] if path in got}, first=True)

    return run_check(session, bed, "two layers", measure)


def whole_model(session: Session, bed: Testbed) -> Check:
    """Every layer, the loss and every parameter's gradient."""

    def measure() -> tuple[SpreadFigure, str]:
        return _furthest(bed.spread, trace_values(bed.subject(), paths=bed.paths), first=True)

    return run_check(session, bed, "whole model", measure)


def logits(session: Session, bed: Testbed) -> Check:
    """Next-token distributions, teacher-forced: their Kullback-Leibler divergence from the exact ones."""

    def measure() -> tuple[SpreadFigure, str]:
        with torch.no_grad():
            got = trace_values(bed.subject(), backward=False)
        divergence = bed.spread.divergence("output", got["output"])
        measurement = bed.spread.judge_value("output", got["output"])
        return (divergence if divergence.excess > measurement.excess else measurement), "output"

    return run_check(session, bed, "logits", measure)


def training(session: Session, bed: Testbed) -> Check:
    """Losses of some steps of AdamW, paired step by step with those of the exact model."""

    def losses(subject: Subject, mode: OpMode | None = None) -> dict[str, Tensor]:
        losses_ = train_steps(subject, STEPS, mode=mode, modules=bed.modules)
        return {"losses": torch.stack([x.double() for x in losses_])}

    exact = losses(bed.wide(), Exact())
    draws = [losses(bed.build("cpu"), bed.right_device(seed)) for seed in range(TRAINING_DRAWS)]
    noise = DrawSpread(exact=exact, draws=draws)

    def measure() -> tuple[SpreadFigure, str]:
        got = losses(bed.subject())["losses"].float()
        measurement = noise.judge_value("losses", got)
        step = int((got.double() - exact["losses"]).abs().argmax())
        return measurement, f"step {step + 1}"

    return run_check(session, bed, "training", measure)


def resume(session: Session, bed: Testbed) -> Check:
    """Steps, a checkpoint, as many steps: the bits of a run without it, or nearer than two such runs are."""

    def final(at: int | None) -> list[Tensor]:
        subject = bed.subject()
        optimizer = adamw(subject)
        if at is not None:
            train_steps(subject, at, optimizer, modules=bed.modules)
            buffer = io.BytesIO()
            state = {"model": _state(subject.module.state_dict()), "optimizer": _state(optimizer.state_dict())}
            torch.save(state, buffer)
            buffer.seek(0)
            state = torch.load(buffer, weights_only=True)
            subject = bed.subject()
            optimizer = adamw(subject)
            subject.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        train_steps(subject, STEPS - (at or 0), optimizer, modules=bed.modules)
        return [on_host(x) for x in subject.module.parameters()]

    def measure() -> tuple[SpreadFigure, str]:
        whole, after_resume = final(None), final(STEPS // 2)
        if equal_bits(whole, after_resume):
            return SpreadFigure(statistic="unequal", value=0.0, limit=0.5), ""
        repeat = final(None)
        noise = max(_distance(a, b) for a, b in zip(whole, repeat, strict=True))
        far = max(_distance(a, b) for a, b in zip(whole, after_resume, strict=True))
        return SpreadFigure(statistic="unequal", value=far, limit=max(4 * noise, 1e-300)), "parameters"

    return run_check(session, bed, "resume", measure)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _state(value: object) -> object:
    return torch.utils._pytree.tree_map(on_host, value)


def _furthest(spread: DrawSpread, got: dict[str, Tensor], *, first: bool = False) -> tuple[SpreadFigure, str]:
    """The tensor nearest to its limit; with `first` the first one beyond it."""
    values = ((spread.judge_value(name, value), name) for name, value in got.items() if name in spread.exact)
    return furthest(values, first=first)


def _parts(subject: Subject) -> tuple[str, ...]:
    names = [path for path, _ in subject.module.named_modules() if path]
    inner = tuple(path for path in names if path.startswith("layers.") and path.count(".") == 2)
    return inner or tuple(path for path in names if path.count(".") == 0)


def _input_keeper(found: dict[str, list[Tensor]], path: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
    def keep(_module: nn.Module, given: tuple[object, ...]) -> None:
        if path not in found and all(isinstance(x, Tensor) for x in given):
            found[path] = [on_host(x) for x in given]

    return keep


def _move_tensor(x: Tensor, subject: Subject) -> Tensor:
    """An input where the subject's weights are, and as wide as they are where those are in fp64."""
    weight = next(iter(subject.module.parameters()))
    return (x.double() if weight.dtype == torch.float64 and x.is_floating_point() else x).to(weight.device)


RUNGS: tuple[tuple[str, Callable[[Session, Testbed], Check]], ...] = (
    ("module", modules),
    ("two layers", two_layers),
    ("whole model", whole_model),
    ("logits", logits),
    ("training", training),
    ("resume", resume),
)


RUNS = 3
RepeatedOp = tuple[str, Outputs, Outputs]  # an op, its arguments and its results, on the host


class Repeat(OpMode):
    """Keeps what every op of a first run was given and gave, and holds later runs against it."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard, self.modules = guard, Modules()
        self.first: list[RepeatedOp] = []
        self.number, self.recording = 0, True
        self.reordered: set[str] = set()
        self.races: list[WrongCall] = []

    def restart_positions(self) -> None:
        """The next run begins."""
        self.number, self.recording = 0, False

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        place = self.modules.place()
        entry = entry_of(signature_of(func, args, kwargs), place, args, kwargs)
        if not has_contract(func):
            return self.guard.run(func, args, kwargs, entry).result
        host = tree_map(on_host, (args, kwargs))
        ran = self.guard.run(func, args, kwargs, entry)
        outputs = [on_host(x) for x in outputs_of(func, args, kwargs, ran.result)]
        inputs = tensors_in(host)
        if self.recording:
            self.first.append((str(func), inputs, outputs))
        elif self.number < len(self.first):
            self._compare(func, place, host, inputs, outputs)
        self.number += 1
        return ran.result

    def _compare(self, func: OpOverload, place: OpPlace, host: HostCall, given: Outputs, outputs: Outputs) -> None:
        op, before, first = self.first[self.number]
        if op != str(func) or not equal_bits(given, before) or equal_bits(outputs, first):
            return
        for result in (outputs, first):
            try:
                verdict = judge(func, host[0], host[1], result, unit=self.guard.unit)
            except NoContractError:
                continue
            if not verdict.right:
                message = f"{verdict.statistic}: other bits than in the first run, and beyond its contract"
                self.races.append(WrongCall(
                    op=op, place=place, dtype=dtype_of(outputs), verdict=replace(verdict, statistic="race"),
                    args=host[0], kwargs=host[1], message=message,
                ))  # fmt: skip
                return
        self.reordered.add(op)


def repeat_runs(session: Session) -> Determinism:
    """Steps of the small model in bf16 and fp32, each some times."""
    determinism = Determinism(runs=RUNS)
    for format in ("fp32", "bf16"):
        bed = testbed_of(session, format)
        if isinstance(bed, str):
            return Determinism(reason=bed, same=False)
        mode = Repeat(session.guard)
        for run in range(RUNS):
            subject = bed.build(session.device)
            optimizer = adamw(subject)
            torch.manual_seed(0)
            if run:
                mode.restart_positions()
            stop = mode.modules.follow(subject.module)
            with mode:
                mode.modules.phase = "forward"
                subject.loss(subject.forward()).backward()
                mode.modules.phase = "optimizer"
                optimizer.step()
            stop()
        session.note(mode.races)
        races = {race.op for race in mode.races}
        determinism = replace(
            determinism, same=determinism.same and not races and not mode.reordered,
            reordered=tuple(sorted({*determinism.reordered, *mode.reordered} - races)),
            races=tuple(sorted({*determinism.races, *races})),
        )  # fmt: skip
    return determinism
