"""A small model of the target's architecture on the device, its exact self, draws of right devices; who is to blame.

    rig_of(session, format)           narrow layers, two at least, or the user's module; made once for each format
    checked(session, rig, name, f)    f measures something on the device; where it is beyond its limit the op to blame
                                      is named by healing bisection and becomes a finding

Healing bisection: from op i on the host computes. With i = 0 the run is right, with i past the last op it is wrong;
log2 of the ops' number runs find the first op whose own result makes it wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.bringup.arithmetic import PLAIN, Unit
from ridgeline.runtime.bringup.capture import RAISED, Modules, Wrong
from ridgeline.runtime.bringup.cut import narrow_model, one_of_each, two_layers
from ridgeline.runtime.bringup.findings import Check
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.noise import Measured, Spread
from ridgeline.runtime.bringup.outcome import Verdict
from ridgeline.runtime.bringup.reference import Exact, Rounded
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.stepper import Light, Seen, trace_values
from ridgeline.runtime.bringup.subject import Subject, stage_subject, subject_of
from ridgeline.runtime.bringup.target import OwnModule
from ridgeline.runtime.train.request import has_experts

WIDE = 128
DRAWS = 6
LARGEST = 5_000_000  # parameters of a user's module that is run many times
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(slots=True, kw_only=True)
class Rig:
    """What the ladder and the invariances are tried on.

    build    the subject on a device, always with the same weights and inputs
    paths    modules whose outputs are traced
    spread   the exact trace and draws
    modules  which module of the device's subject is at work
    """

    format: str
    device: str
    build: Callable[[str], Subject]
    paths: tuple[str, ...]
    spread: Spread
    chooses: bool = False
    unit: Unit = PLAIN
    guard: Guard = field(default_factory=Guard)
    modules: Modules = field(default_factory=Modules)

    def rounded(self, seed: int) -> Rounded:
        """A right device of this kind."""
        return Rounded(seed, self.unit)

    def subject(self) -> Subject:
        """On the device, fresh; whoever watches knows which of its modules is at work."""
        subject = self.build(self.device)
        self.modules.follow(subject.module)
        return subject

    def wide(self) -> Subject:
        """On the host in fp64; to be run in `Exact`."""
        subject = self.build("cpu")
        subject.module.double()
        if not subject.tokens:
            inputs = tuple(_wide(x) for x in subject.inputs)
            return Subject(module=subject.module, inputs=inputs, named=subject.named, loss=subject.loss)
        return subject


def _still(subject: Subject) -> Subject:
    """Without dropout: runs are compared."""
    subject.module.eval()
    return subject


def _wide(value: object) -> object:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def rig_of(session: Session, format: str) -> Rig | str:
    """The rig of a format, or why there is none."""
    if format in session.rigs:
        known_rig: Rig = session.rigs[format]
        return known_rig
    target = session.target
    if isinstance(target, OwnModule):
        build: Callable[[str], Subject] = lambda device: _still(subject_of(target, format, device, session.seed))  # noqa: E731
        chooses = False
    else:
        small = small_model(target)
        build = lambda device: stage_subject(small, format, device, session.seed)  # noqa: E731
        chooses = has_experts(small) and format != "fp32"
    host = build("cpu")
    size = sum(x.numel() for x in host.module.parameters())
    if size > LARGEST:
        return f"{size:,} parameters: more than the {LARGEST:,} that are run many times in fp64"
    paths = traced_paths(host.module)
    rig = Rig(
        format=format, device=session.device, build=build, paths=paths, spread=Spread(exact={}, draws=()),
        chooses=chooses, unit=session.guard.unit, guard=session.guard,
    )  # fmt: skip
    rig.spread = spread_of(rig, partial(trace_values, paths=paths))
    session.rigs[format] = rig
    return rig


def small_model(target: ModelSpec) -> ModelSpec:
    """A narrow copy of an architecture, of two layers at least."""
    return narrow_model(two_layers(one_of_each(target)), WIDE)


def traced_paths(module: nn.Module) -> tuple[str, ...]:
    """Layers, in their order; a module without any is traced by its parts."""
    layers = tuple(path for path, _ in module.named_modules() if path.startswith("layers.") and path.count(".") == 1)
    return layers or tuple(path for path, _ in module.named_children())


def spread_of(rig: Rig, run: Callable[[Subject], dict[str, torch.Tensor]], draws: int = DRAWS) -> Spread:
    """What a run gives exactly, and as right devices would."""
    wide = rig.wide()  # before the mode: first weights are drawn in their own format
    with Exact():
        exact = run(wide)
    drawn = []
    for seed in range(draws):
        subject = rig.build("cpu")
        with rig.rounded(seed):
            drawn.append(run(subject))
    return Spread(exact=exact, draws=drawn, chooses=rig.chooses)


Measure = Callable[[], tuple[Measured, str]]  # what was measured, and where it was worst


def run_check(session: Session, rig: Rig, name: str, measure: Measure, phase: str = "forward") -> Check:
    """Measure on the device; where it is beyond its limit say which op is to blame."""
    rig.modules = Modules(phase=phase)
    light = Light(session.guard, rig.modules)
    with light:
        measurement, where = measure()
    for func, place, host, error in light.raised:
        session.note([Wrong(
            op=str(func), place=place, dtype=DTYPES[rig.format], verdict=RAISED, args=host[0], kwargs=host[1],
            message=f"{type(error).__name__}: {error}".partition("\n")[0],
        )])  # fmt: skip
    check = Check(
        name=name, format=rig.format, verdict="pass" if measurement.right else "fail", statistic=measurement.statistic,
        measured=measurement.value, limit=measurement.limit, where=where,
    )  # fmt: skip
    if measurement.right:
        return check
    op = blame_op(session, rig, name, measure, light.count, measurement, phase)
    return Check(**{slot: getattr(check, slot) for slot in Check.__slots__} | {"op": op})


def blame_op(
    session: Session, rig: Rig, name: str, measure: Measure, ops: int, measured: Measured, phase: str
) -> str:  # fmt: skip
    """The op that makes a run wrong: one that is known to be, or the first that a bisection finds."""
    blamed_ops = {finding.op for finding in session.found.findings}
    if blamed_ops and _right(
        Light(Guard(journal=session.guard.journal, healed=blamed_ops | session.guard.healed)), measure
    ):
        return ", ".join(sorted(blamed_ops))
    first = bisect_ops(lambda at: _right(Light(session.guard, heal_from=at), measure), ops)
    if first is None:
        return ""
    rig.modules = Modules(phase=phase)
    light = Light(session.guard, rig.modules, keep=first)
    with light:
        measure()
    if light.seen is None:
        return ""
    return _add_finding(session, rig, name, light.seen, measured)


def _add_finding(session: Session, rig: Rig, name: str, seen: Seen, measured: Measured) -> str:
    func, place, host = seen
    verdict = Verdict(right=False, statistic=name, measured=measured.value, limit=measured.limit)
    session.note([Wrong(
        op=str(func), place=place, dtype=DTYPES[rig.format], verdict=verdict, args=host[0], kwargs=host[1],
        message=f"{name}: {measured.statistic}",
    )])  # fmt: skip
    return str(func)


def _right(light: Light, measure: Measure) -> bool:
    with light:
        return measure()[0].right


def bisect_ops(right: Callable[[int], bool], ops: int) -> int | None:
    """The first op whose own result makes a run wrong, when `right(i)` runs with the host's results from op i on.

    >>> bisect_ops(lambda at: at <= 5, 100)
    5
    """
    if not right(0):
        return None
    good, bad = 0, ops  # right with the host from `good` on, wrong with it from `bad` on
    while bad - good > 1:
        middle = (good + bad) // 2
        if right(middle):
            good = middle
        else:
            bad = middle
    return good
