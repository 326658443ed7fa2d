"""Numbers that must not depend on how they are computed, told apart from rounding by draws of right devices.

batch         a sequence alone, or among others            padding     tokens behind it
causal        later tokens changed                         rotary      all positions shifted
microbatch    gradients accumulated, or of the whole batch     recompute   activations computed again, dropout too
compiled      torch.compile, or eager                      decode      token by token with a cache, or at once
parallel      two processes, or one (`degrees`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.degrees import NO_DRAWS, parallel
from ridgeline.runtime.bringup.findings import Check
from ridgeline.runtime.bringup.generation import decode, prefill
from ridgeline.runtime.bringup.journal import Entry
from ridgeline.runtime.bringup.noise import Measured
from ridgeline.runtime.bringup.rig import DTYPES, Rig, rig_of, run_check
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.stepper import first_tensor
from ridgeline.runtime.bringup.subject import Subject
from ridgeline.runtime.bringup.target import OwnModule
from ridgeline.runtime.bringup.tensors import on_host

SHIFT = 64  # positions
DROPPED = 0.1
COMPILED = "torch.compile"
OWN = "a user's module: what its inputs mean is not known"

Answer = tuple[Measured, str]


def check_invariances(session: Session, format: str) -> tuple[Check, ...]:
    """Every invariance in one format."""
    rig = rig_of(session, format)
    checks = []
    for name, applies, measure in INVARIANCES:
        reason = rig if isinstance(rig, str) else applies(session, rig)
        if reason or isinstance(rig, str):
            checks.append(Check(name=name, format=format, verdict="not run", reason=reason))
            continue
        checks.append(_check_invariance(session, rig, name, measure))
    return *checks, parallel(session, format, NO_DRAWS if isinstance(rig, str) else rig.spread)


def _check_invariance(session: Session, rig: Rig, name: str, measure: Callable[[Rig], Answer]) -> Check:
    try:
        return run_check(session, rig, name, lambda: measure(rig), "generation" if name == "decode" else "forward")
    except Exception as error:
        message = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        return Check(name=name, format=rig.format, verdict="not run", reason=message)


def _output(subject: Subject, inputs: tuple[Any, ...] | None = None) -> Tensor:
    with torch.no_grad():
        output = first_tensor(subject.module(*(subject.inputs if inputs is None else inputs), **subject.named))
    assert output is not None
    return on_host(output)


def batch(rig: Rig) -> Answer:
    """The first sequence alone."""
    subject = rig.subject()
    batch_output = _output(subject)
    single_output = _output(subject, tuple(x[:1] if isinstance(x, Tensor) else x for x in subject.inputs))
    return rig.spread.apart("output", single_output[0], batch_output[0], 0), "sequence 1"


def padding(rig: Rig) -> Answer:
    """Tokens behind the sequence: those before them do not see them."""
    subject = rig.subject()
    (x,) = subject.inputs
    longer = torch.cat((x, x[:, :5]), 1)
    return rig.spread.apart("output", _output(subject, (longer,))[:, : x.shape[1]], _output(subject)), "all tokens"


def causal(rig: Rig) -> Answer:
    """Later tokens are others: earlier ones stay as they are."""
    subject = rig.subject()
    (x,) = subject.inputs
    half = x.shape[1] // 2
    other_input = torch.cat((x[:, :half], x[:, half:].flip(1)), 1)
    part = (slice(None), slice(half))
    return rig.spread.apart(
        "output", _output(subject, (other_input,))[part], _output(subject)[part], part
    ), "earlier tokens"


def rotary(rig: Rig) -> Answer:
    """Rotary angles of later positions: scores depend on differences of positions alone."""
    subject = rig.subject()
    plain = _output(subject)
    for turn in subject.module.rotaries:
        tokens = subject.inputs[0].shape[1]
        cos, sin = turn.angles(tokens + SHIFT, subject.inputs[0].device)
        turn.known[turn.width, tokens] = cos[SHIFT:], sin[SHIFT:]
    return rig.spread.apart("output", _output(subject), plain), f"shifted by {SHIFT}"


def microbatch(rig: Rig) -> Answer:
    """Gradients of one sequence after the other, each with its share of the loss, added up."""
    full_batch, parts = rig.subject(), rig.subject()
    full_batch.loss(full_batch.forward()).backward()
    assert parts.share is not None
    for row in range(parts.inputs[0].shape[0]):
        rows = slice(row, row + 1)
        parts.share(parts.module(parts.inputs[0][rows]), rows).backward()
    return _gradients(rig, full_batch, parts)


def recompute(rig: Rig) -> Answer:
    """Layers computed again in the backward, with dropout behind each: the same random numbers."""
    return _gradients(rig, *(_with_random_drops(rig, again=recompute_) for recompute_ in (False, True)))


def _with_random_drops(rig: Rig, *, again: bool) -> Subject:
    subject = rig.subject()
    torch.manual_seed(1)
    for layer in subject.module.layers.values():
        layer.forward = _with_dropout(layer.forward, again)
    subject.loss(subject.forward()).backward()
    return subject


def _with_dropout(forward: Callable[[Tensor], Tensor], again: bool) -> Callable[[Tensor], Tensor]:
    def drop(x: Tensor) -> Tensor:
        return functional.dropout(forward(x), DROPPED)

    if not again:
        return drop
    return lambda x: checkpoint(drop, x, use_reentrant=False)


def _gradients(rig: Rig, one: Subject, other: Subject) -> Answer:
    worst, where = Measured(statistic="power"), ""
    theirs = dict(other.module.named_parameters())
    for name, parameter in one.module.named_parameters():
        if parameter.grad is None or theirs[name].grad is None:
            continue
        gradient_name = f"gradient of {name}"
        measurement = rig.spread.apart(gradient_name, on_host(parameter.grad), on_host(theirs[name].grad))
        if measurement.excess > worst.excess or not where:
            worst, where = measurement, gradient_name
    return worst, where


def compiled_output(rig: Rig) -> Answer:
    """Through torch.compile: on an accelerator its own compiler, on the host the traced graph run op by op."""
    from torch._dynamo.utils import counters  # seconds to import: only where something is compiled

    subject = rig.build(rig.device)
    plain = _output(subject)
    backend = "aot_eager" if rig.device.partition(":")[0] == "cpu" else "inductor"
    entry = Entry(op=COMPILED, phase="forward", dtype=DTYPES[rig.format], signature=backend)
    if rig.guard.heals(entry):
        raise RuntimeError(f"{COMPILED} ended the process")
    graphs = counters["stats"]["unique_graphs"]
    rig.guard.enter(entry)
    with torch.no_grad(), _disable_current_modes():  # the compiler leaves code alone that a mode watches
        output = first_tensor(torch.compile(subject.module, backend=backend)(*subject.inputs, **subject.named))
    rig.guard.leave()
    if counters["stats"]["unique_graphs"] == graphs:
        raise RuntimeError(f"{COMPILED} made no graph of it")
    assert output is not None
    return rig.spread.apart("output", on_host(output), plain), backend


def decoded_tokens(rig: Rig) -> Answer:
    """Half of the tokens at once, the others one by one with a cache."""
    subject = rig.subject()
    (x,) = subject.inputs
    plain, half = _output(subject), x.shape[1] // 2
    with torch.no_grad():
        logits, cache = prefill(subject.module, x[:, :half])
        rows = [logits]
        for place in range(half, x.shape[1]):
            logits, cache = decode(subject.module, x[:, place : place + 1], cache)
            rows.append(logits)
    return rig.spread.apart("output", torch.cat([on_host(row) for row in rows], 1), plain), f"from token {half + 1} on"


def _batch_reason(session: Session, rig: Rig) -> str:
    if not isinstance(session.target, OwnModule):
        return ""
    subject, output = rig.build("cpu"), rig.spread.exact.get("output")
    rows = {x.shape[0] for x in subject.inputs if isinstance(x, Tensor) and x.dim()}
    same = output is not None and rows == {output.shape[0]} and not subject.named and output.shape[0] > 1
    return "" if same else "inputs and output have no common first dim of more than one"


def _language(session: Session, rig: Rig) -> str:  # noqa: ARG001
    return OWN if isinstance(session.target, OwnModule) else ""


def _turning(session: Session, rig: Rig) -> str:
    reason = _language(session, rig)
    return reason or ("" if rig.build("cpu").module.rotaries else "the model has no rotary positions")


def _compilable(session: Session, rig: Rig) -> str:
    if session.device.partition(":")[0] == ridge.NAME:
        return "torch has no compiler for the fake device"
    return "in fp32 only" if rig.format != "fp32" else ""


INVARIANCES: tuple[tuple[str, Callable[[Session, Rig], str], Callable[[Rig], Answer]], ...] = (
    ("batch", _batch_reason, batch),
    ("padding", _language, padding),
    ("causal", _language, causal),
    ("rotary", _turning, rotary),
    ("microbatch", _language, microbatch),
    ("recompute", _language, recompute),
    ("compiled", _compilable, compiled_output),
    ("decode", _language, decoded_tokens),
)
