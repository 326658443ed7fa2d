"""A small model of the target's architecture on the device, its exact self, draws of right devices; who is to blame.

    testbed_of(session, format)       narrow layers, two at least, or the user's module; made once for each format
    run_check(session, bed, name, f)  f measures something on the device; where it is beyond its limit the op to blame
                                      is named by healing bisection and becomes a finding
    with Exact(): run()               on the host, everything in fp64, whatever format it asks for
    with Rounded(seed): run()         in its own formats, every op off as its contract allows: one right device of many
    DrawSpread(exact, draws)              what a run gives, held against draws of right runs around the exact one

    z = (got - exact) / sigma         sigma^2: half the draws' mean square there, half that of its row
    power   mean of z^2        typical   median over rows of the same        far   the largest |z|

Every draw is held against the others in the same way; a limit is some times the worst of them, never below a floor.
Healing bisection: from op i on the host computes. With i = 0 the run is right, with i past the last op it is wrong;
log2 of the ops' number runs find the first op whose own result makes it wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.bringup.arithmetic import (
    PLAIN,
    UNIT,
    Args,
    Draw,
    HostCall,
    Kwargs,
    OpVerdict,
    Unit,
    clone_tensors,
    error_text,
    tensors_in,
)
from ridgeline.runtime.bringup.capture import RAISED, Modules, OpPlace, WrongCall, entry_of, signature_of
from ridgeline.runtime.bringup.contracts import contract_of, exact, has_contract, is_view, outputs_of
from ridgeline.runtime.bringup.devices import OpMode
from ridgeline.runtime.bringup.fake_device import on_host
from ridgeline.runtime.bringup.findings import Check
from ridgeline.runtime.bringup.guard import Guard, host_result
from ridgeline.runtime.bringup.judge import widen_value
from ridgeline.runtime.bringup.repro import Session
from ridgeline.runtime.bringup.subject import Subject, adamw, stage_subject, subject_of
from ridgeline.runtime.bringup.target import OwnModule, narrow_model, one_of_each, two_layers
from ridgeline.runtime.train.request import has_experts

MARGIN = 4.0
FLOORS = {"power": 6.0, "typical": 6.0, "far": 12.0, "divergence": 0.0}

Trace = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadFigure:
    """The statistic that came nearest to its limit, or furthest beyond."""

    statistic: str = ""
    value: float = 0.0
    limit: float = 1.0

    @property
    def excess(self) -> float:
        """Above 1: beyond the limit."""
        return self.value / self.limit if self.value == self.value else torch.inf

    @property
    def right(self) -> bool:
        """Whether it stays below."""
        return self.excess <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpread:
    """The exact trace of a run and draws of it, tensors by name on the host.

    chooses   numbers decide a way (experts): where two are nearly equal right devices may part, so that only what most
              rows show is judged
    """

    exact: Trace
    draws: Sequence[Trace]
    chooses: bool = False

    def judge_value(self, name: str, got: Tensor) -> SpreadFigure:
        """One tensor against the exact one."""
        exact, draws = self.exact[name].double(), [draw[name].double() for draw in self.draws]
        if got.shape != exact.shape:
            return SpreadFigure(statistic="shape", value=float(got.numel()), limit=max(1.0, float(exact.numel())) / 2)
        return self._worst(got.double() - exact, [draw - exact for draw in draws], exact, got.dtype)

    def judge_pair(
        self, name: str, one: Tensor, other: Tensor, part: slice | int | tuple[slice | int, ...] = ()
    ) -> SpreadFigure:
        """Two tensors that differ by rounding alone; `part` says which of the traced one they are."""
        draws = [draw[name][part].double() for draw in self.draws]
        exact = self.exact[name][part].double()
        if one.shape != other.shape or one.shape != exact.shape:
            return SpreadFigure(statistic="shape", value=float(one.numel()), limit=max(1.0, float(exact.numel())) / 2)
        if torch.equal(one, other):
            return SpreadFigure(statistic="power", value=0.0, limit=FLOORS["power"])
        pairs = [draws[k] - draws[k - 1] for k in range(len(draws))]
        return self._worst(one.double() - other.double(), pairs, exact, one.dtype)

    def divergence(self, name: str, got: Tensor) -> SpreadFigure:
        """Kullback-Leibler divergence of teacher-forced next-token distributions, mean over tokens."""
        truth = self.exact[name].double().log_softmax(-1)

        def kl(logits: Tensor) -> float:
            log_probabilities = logits.double().log_softmax(-1)
            return float((truth.exp() * (truth - log_probabilities)).sum(-1).mean().clamp(min=0))

        largest = max(kl(draw[name]) for draw in self.draws)
        return SpreadFigure(statistic="divergence", value=kl(got), limit=max(MARGIN * largest, 1e-15))

    def _worst(self, error: Tensor, errors: list[Tensor], exact: Tensor, dtype: torch.dtype) -> SpreadFigure:
        if not bool(error.isfinite().all()):
            return SpreadFigure(statistic="nonfinite", value=float((~error.isfinite()).sum()), limit=0.5)
        return worst(error, errors, exact, dtype, typical=self.chooses)


def worst(
    error: Tensor, errors: list[Tensor], exact: Tensor, dtype: torch.dtype, *, typical: bool = False
) -> SpreadFigure:
    """The statistic of an error that is furthest beyond what right errors show."""
    unit = UNIT.get(dtype, UNIT[torch.float32])
    scale = exact.square().mean().sqrt() if exact.numel() else torch.tensor(1.0)
    floor = (unit * (exact.abs() * 0.1 + 0.01 * scale)).clamp(min=1e-30)
    squares = [error.square() for error in errors]
    total = torch.stack(squares).sum(0)

    def statistics(value: Tensor, among: Tensor, count: int) -> dict[str, float]:
        mean = among / count
        pooled_mean = mean.mean(-1, keepdim=True) if mean.dim() else mean
        z2 = value.square() / torch.maximum(0.5 * mean + 0.5 * pooled_mean, floor.square())
        rows = z2.mean(-1) if z2.dim() > 1 else z2
        return {"power": float(z2.mean()), "typical": float(rows.median()), "far": float(z2.max()) ** 0.5}

    measurements = statistics(error, total, len(errors))
    rights = [statistics(error_, total - squares[k], len(errors) - 1) for k, error_ in enumerate(errors)]
    worst_ = SpreadFigure()
    for name, value in measurements.items():
        if typical and name != "typical":
            continue
        limit = max(FLOORS[name], MARGIN * max(right[name] for right in rights))
        if not worst_.statistic or value / limit > worst_.excess:
            worst_ = SpreadFigure(statistic=name, value=value, limit=limit)
    return worst_


NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Exact(OpMode):
    """Every floating number in fp64: casts to fewer bits keep all of them."""

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        wide_args, wide = tree_map(_keep_wide, (args, kwargs))
        if func._schema.name == "aten::_grouped_mm":
            return grouped_product(*wide_args, **wide)
        return func(*wide_args, **wide)


class Rounded(OpMode):
    """Every op by its contract with noise at its rounding points, then rounded to the format that the op gives."""

    def __init__(self, seed: int, unit: Unit = PLAIN) -> None:
        super().__init__()
        self.source, self.number, self.unit = torch.Generator().manual_seed(seed), seed, unit

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        program = contract_of(func) if has_contract(func) else exact
        if program is exact or all(x.dtype not in NARROW for x in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        wide = tree_map(widen_value, clone_tensors((args, kwargs)))
        result = func(*args, **kwargs)
        outputs = outputs_of(func, args, kwargs, result)
        form = next((x.dtype for x in outputs if isinstance(x, Tensor) and x.is_floating_point()), None)
        if form is None:
            return result
        try:
            drawn = program(Draw(source=self.source, format=form, number=self.number, unit=self.unit), func, *wide)
        except (RuntimeError, NotImplementedError):
            return result  # no program: the host's own result
        for ours, other_output in zip(outputs, drawn, strict=False):
            if isinstance(ours, Tensor) and isinstance(other_output, Tensor) and ours.is_floating_point():
                ours.copy_(other_output.reshape(ours.shape) if other_output.numel() == ours.numel() else ours)
        return result


def _keep_wide(value: object) -> object:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def grouped_product(a: Tensor, b: Tensor, offs: Tensor | None = None, *_: object, **__: object) -> Tensor:
    """Products of experts, which torch has in 32 bits and fewer: the dim that both lack is cut where experts end."""
    if offs is None:
        return a @ b
    ends = [0, *offs.tolist()]
    spans = [slice(first, last) for first, last in pairwise(ends)]
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if a.dim() == 2:
        rows = torch.cat([a[span] @ b[expert] for expert, span in enumerate(spans)])
        return torch.cat((rows, rows.new_zeros(a.shape[0] - rows.shape[0], rows.shape[1])))
    return torch.cat([a[expert] @ b[:, span] for expert, span in enumerate(spans)], 1)


SeenCall = tuple[OpOverload, OpPlace, HostCall]  # an op, where, its arguments on the host


class Light(OpMode):
    """Ops under guard, counted; nothing is judged.

    heal_from   the host computes this op and all after it; None: none
    keep        the number of the op whose arguments are kept in `seen`
    raised      ops that raised, with their errors: the host stood in for them
    """

    def __init__(
        self, guard: Guard, modules: Modules | None = None, *, heal_from: int | None = None, keep: int = -1
    ) -> None:
        super().__init__()
        self.guard, self.modules = guard, modules or Modules()
        self.heal_from, self.keep, self.count = heal_from, keep, 0
        self.seen: SeenCall | None = None
        self.raised: list[tuple[OpOverload, OpPlace, HostCall, BaseException]] = []

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        number, self.count = self.count, self.count + 1
        place = self.modules.place()
        if number == self.keep:
            self.seen = func, place, tree_map(on_host, (args, kwargs))
        if self.heal_from is not None and number >= self.heal_from and heals(func):
            return host_result(func, args, kwargs)
        ran = self.guard.run(func, args, kwargs, entry_of(signature_of(func, args, kwargs), place, args, kwargs))
        if ran.error is not None and not isinstance(ran.error, NotImplementedError):
            self.raised.append((func, place, tree_map(on_host, (args, kwargs)), ran.error))
        return ran.result


def heals(func: OpOverload) -> bool:
    """Whether the host can stand in for an op: not for memory that is only made or handed on."""
    return has_contract(func) and not is_view(func) and func._schema.name.startswith("aten::")


def trace_values(subject: Subject, *, backward: bool = True, paths: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Outputs of the named modules, of the whole, the loss and every parameter's gradient."""
    values: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(_keeper(values, path))
        for path, module in subject.module.named_modules()
        if path in paths
    ]
    try:
        outputs = subject.forward()
        logits = first_tensor(outputs)
        if logits is not None:
            values["output"] = on_host(logits)
        if backward:
            loss = subject.loss(outputs)
            values["loss"] = on_host(loss)
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in subject.module.named_parameters():
        if parameter.grad is not None:
            values[f"gradient of {name}"] = on_host(parameter.grad)
            parameter.grad = None
    return values


def first_tensor(outputs: object) -> Tensor | None:
    """The first floating tensor among a module's outputs: logits, as a rule."""
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    values = outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs
    return next((x for x in tensors_in(values) if x.is_floating_point()), None)


def _keeper(found: dict[str, Tensor], path: str) -> Callable[[nn.Module, object, object], None]:
    def keep(_module: nn.Module, _inputs: object, output: object) -> None:
        value = first_tensor(output)
        if value is not None:
            found[path] = on_host(value)

    return keep


def train_steps(
    subject: Subject, steps: int, optimizer: torch.optim.Optimizer | None = None,
    mode: AbstractContextManager[object] | None = None, modules: Modules | None = None,
) -> list[Tensor]:  # fmt: skip
    """Losses of so many steps of AdamW; forward and backward in a mode; modules are told the phase."""
    optimizer = optimizer or adamw(subject)
    modules = modules or Modules()
    losses = []
    for _ in range(steps):
        modules.phase = "forward"
        with mode or nullcontext():
            loss = subject.loss(subject.forward())
            loss.backward()
        modules.phase = "optimizer"
        optimizer.step()
        optimizer.zero_grad()
        losses.append(on_host(loss))
    return losses


WIDE = 128
DRAWS = 6
LARGEST = 5_000_000  # parameters of a user's module that is run many times
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(slots=True, kw_only=True)
class Testbed:
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
    spread: DrawSpread
    chooses: bool = False
    guard: Guard = field(default_factory=Guard)
    modules: Modules = field(default_factory=Modules)

    def right_device(self, seed: int) -> Rounded:
        """A right device of this kind."""
        return Rounded(seed, self.guard.unit)

    def subject(self) -> Subject:
        """On the device, fresh; whoever watches knows which of its modules is at work."""
        subject = self.build(self.device)
        self.modules.follow(subject.module)
        return subject

    def wide(self) -> Subject:
        """On the host in fp64; to be run in `Exact`."""
        subject = self.build("cpu")
        subject.module.double()
        if subject.tokens:
            return subject
        inputs = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in subject.inputs)
        return Subject(module=subject.module, inputs=inputs, named=subject.named, loss=subject.loss)


def testbed_of(session: Session, format: str) -> Testbed | str:
    """The bed of a format, or why there is none."""
    if format in session.testbeds:
        known_bed: Testbed = session.testbeds[format]
        return known_bed
    target = session.target
    small = None if isinstance(target, OwnModule) else small_model(target)

    def build(device: str) -> Subject:
        if small is not None:
            return stage_subject(small, format, device, session.seed)
        subject = subject_of(target, format, device, session.seed)
        subject.module.eval()  # without dropout: runs are compared
        return subject

    host = build("cpu")
    size = sum(x.numel() for x in host.module.parameters())
    if size > LARGEST:
        return f"{size:,} parameters: more than the {LARGEST:,} that are run many times in fp64"
    paths = traced_paths(host.module)
    bed = Testbed(
        format=format,
        device=session.device,
        build=build,
        paths=paths,
        spread=DrawSpread(exact={}, draws=()),
        chooses=small is not None and has_experts(small) and format != "fp32",
        guard=session.guard,
    )
    bed.spread = spread_of(bed, partial(trace_values, paths=paths))
    session.testbeds[format] = bed
    return bed


def small_model(target: ModelSpec) -> ModelSpec:
    """A narrow copy of an architecture, of two layers at least."""
    return narrow_model(two_layers(one_of_each(target)), WIDE)


def traced_paths(module: nn.Module) -> tuple[str, ...]:
    """Layers, in their order; a module without any is traced by its parts."""
    layers = tuple(path for path, _ in module.named_modules() if path.startswith("layers.") and path.count(".") == 1)
    return layers or tuple(path for path, _ in module.named_children())


def spread_of(bed: Testbed, run: Callable[[Subject], dict[str, torch.Tensor]], draws: int = DRAWS) -> DrawSpread:
    """What a run gives exactly, and as right devices would."""
    wide = bed.wide()  # before the mode: first weights are drawn in their own format
    with Exact():
        exact = run(wide)
    drawn = []
    for seed in range(draws):
        subject = bed.build("cpu")
        with bed.right_device(seed):
            drawn.append(run(subject))
    return DrawSpread(exact=exact, draws=drawn, chooses=bed.chooses)


def furthest(figures: Iterable[tuple[SpreadFigure, str]], *, first: bool = False) -> tuple[SpreadFigure, str]:
    """The figure nearest to its limit, with its name; with `first` the first one beyond it."""
    worst_, where = SpreadFigure(statistic="power"), ""
    for figure, name in figures:
        if first and not figure.right:
            return figure, name
        if figure.excess > worst_.excess or not where:
            worst_, where = figure, name
    return worst_, where


Measure = Callable[[], tuple[SpreadFigure, str]]  # what was measured, and where it was worst


def run_check(session: Session, bed: Testbed, name: str, measure: Measure, phase: str = "forward") -> Check:
    """Measure on the device; where it is beyond its limit say which op is to blame."""
    bed.modules = Modules(phase=phase)
    light = Light(session.guard, bed.modules)
    with light:
        measurement, where = measure()
    for func, place, host, error in light.raised:
        session.note([WrongCall(
            op=str(func), place=place, dtype=DTYPES[bed.format], verdict=RAISED, args=host[0], kwargs=host[1],
            message=error_text(error),
        )])  # fmt: skip
    check = Check(
        name=name, format=bed.format, verdict="pass" if measurement.right else "fail", statistic=measurement.statistic,
        measured=measurement.value, limit=measurement.limit, where=where,
    )  # fmt: skip
    if measurement.right:
        return check
    op = blame_op(session, bed, name, measure, light.count, measurement, phase)
    return replace(check, op=op)


def blame_op(
    session: Session, bed: Testbed, name: str, measure: Measure, ops: int, measured: SpreadFigure, phase: str
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
    bed.modules = Modules(phase=phase)
    light = Light(session.guard, bed.modules, keep=first)
    with light:
        measure()
    if light.seen is None:
        return ""
    func, place, host = light.seen
    verdict = OpVerdict(right=False, statistic=name, measured=measured.value, limit=measured.limit)
    session.note([WrongCall(
        op=str(func), place=place, dtype=DTYPES[bed.format], verdict=verdict, args=host[0], kwargs=host[1],
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
