"""Numbers that must not depend on how they are computed, told apart from rounding by draws of right devices.

batch         a sequence alone, or among others            padding     tokens behind it
causal        later tokens changed                         rotary      all positions shifted
microbatch    gradients accumulated, or of the whole batch     recompute   activations computed again, dropout too
compiled      torch.compile, or eager                      decode      token by token with a cache, or at once
parallel      two processes of the device, tp = 2 and dp = 2, or one, as `ridgeline run --verify` does

A gradient of two processes may differ by what `--verify` allows, or by four times what right devices differ by where
that is more: that of a key's bias is zero but for rounding. One pair of processes compares both degrees: importing
torch takes longer than the steps.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from ridgeline.core.dtype import dtype
from ridgeline.core.errors import Problem
from ridgeline.hardware.load import system
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.check import check
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Precision
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import Args, error_text
from ridgeline.runtime.bringup.fake_device import on_host
from ridgeline.runtime.bringup.findings import Check, OpFinding
from ridgeline.runtime.bringup.guard import OpEntry
from ridgeline.runtime.bringup.repro import Session
from ridgeline.runtime.bringup.subject import TOKENS, Subject, decode, prefill
from ridgeline.runtime.bringup.target import OwnModule
from ridgeline.runtime.bringup.testbed import (
    DTYPES,
    MARGIN,
    DrawSpread,
    SpreadFigure,
    Testbed,
    first_tensor,
    furthest,
    run_check,
    small_model,
    testbed_of,
)
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.train.launch import enter_rank, free_port, reason
from ridgeline.runtime.train.refuse import refusals
from ridgeline.runtime.train.request import Compared, RunOptions, RunRequest, Verification, make_request
from ridgeline.runtime.train.verify import FLOOR

SHIFT = 64  # positions
DROPPED = 0.1
COMPILED = "torch.compile"
OWN = "a user's module: what its inputs mean is not known"

Answer = tuple[SpreadFigure, str]


def check_invariances(session: Session, format: str) -> tuple[Check, ...]:
    """Every invariance in one format."""
    bed = testbed_of(session, format)
    checks = []
    for name, applies, measure in INVARIANCES:
        reason = bed if isinstance(bed, str) else applies(session, bed)
        if reason or isinstance(bed, str):
            checks.append(Check(name=name, format=format, verdict="not run", reason=reason))
            continue
        checks.append(_check_invariance(session, bed, name, measure))
    return *checks, parallel(session, format, NO_DRAWS if isinstance(bed, str) else bed.spread)


def _check_invariance(session: Session, bed: Testbed, name: str, measure: Callable[[Testbed], Answer]) -> Check:
    try:
        return run_check(session, bed, name, lambda: measure(bed), "generation" if name == "decode" else "forward")
    except Exception as error:
        message = error_text(error)[:300]
        return Check(name=name, format=bed.format, verdict="not run", reason=message)


def _output(subject: Subject, inputs: Args | None = None) -> Tensor:
    with torch.no_grad():
        output = first_tensor(subject.module(*(subject.inputs if inputs is None else inputs), **subject.named))
    assert output is not None
    return on_host(output)


def batch(bed: Testbed) -> Answer:
    """The first sequence alone."""
    subject = bed.subject()
    batch_output = _output(subject)
    single_output = _output(subject, tuple(x[:1] if isinstance(x, Tensor) else x for x in subject.inputs))
    return bed.spread.judge_pair("output", single_output[0], batch_output[0], 0), "sequence 1"


def padding(bed: Testbed) -> Answer:
    """Tokens behind the sequence: those before them do not see them."""
    subject = bed.subject()
    (x,) = subject.inputs
    longer = torch.cat((x, x[:, :5]), 1)
    return bed.spread.judge_pair("output", _output(subject, (longer,))[:, : x.shape[1]], _output(subject)), "all tokens"


def causal(bed: Testbed) -> Answer:
    """Later tokens are others: earlier ones stay as they are."""
    subject = bed.subject()
    (x,) = subject.inputs
    half = x.shape[1] // 2
    other_input = torch.cat((x[:, :half], x[:, half:].flip(1)), 1)
    part = (slice(None), slice(half))
    return bed.spread.judge_pair(
        "output", _output(subject, (other_input,))[part], _output(subject)[part], part
    ), "earlier tokens"


def rotary(bed: Testbed) -> Answer:
    """Rotary angles of later positions: scores depend on differences of positions alone."""
    subject = bed.subject()
    plain = _output(subject)
    for turn in subject.module.rotaries:
        tokens = subject.inputs[0].shape[1]
        cos, sin = turn.angles(tokens + SHIFT, subject.inputs[0].device)
        turn.known[turn.width, tokens, turn.local] = cos[SHIFT:], sin[SHIFT:]
    return bed.spread.judge_pair("output", _output(subject), plain), f"shifted by {SHIFT}"


def microbatch(bed: Testbed) -> Answer:
    """Gradients of one sequence after the other, each with its share of the loss, added up."""
    full_batch, parts = bed.subject(), bed.subject()
    full_batch.loss(full_batch.forward()).backward()
    assert parts.share is not None
    for row in range(parts.inputs[0].shape[0]):
        rows = slice(row, row + 1)
        parts.share(parts.module(parts.inputs[0][rows]), rows).backward()
    return _gradients(bed, full_batch, parts)


def recompute(bed: Testbed) -> Answer:
    """Layers computed again in the backward, with dropout behind each: the same random numbers."""
    return _gradients(bed, *(_with_random_drops(bed, again=recompute_) for recompute_ in (False, True)))


def _with_random_drops(bed: Testbed, *, again: bool) -> Subject:
    subject = bed.subject()
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


def _gradients(bed: Testbed, one: Subject, other: Subject) -> Answer:
    ours, theirs = (dict(subject.module.named_parameters()) for subject in (one, other))
    pairs = {f"{GRADIENT}{name}": (ours[name].grad, theirs[name].grad) for name in ours}
    return furthest(
        (bed.spread.judge_pair(name, on_host(gradient), on_host(other_gradient)), name)
        for name, (gradient, other_gradient) in pairs.items()
        if gradient is not None and other_gradient is not None
    )


def compiled_output(bed: Testbed) -> Answer:
    """Through torch.compile: on an accelerator its own compiler, on the host the traced graph run op by op."""
    from torch._dynamo.utils import counters  # seconds to import: only where something is compiled

    subject = bed.build(bed.device)
    plain = _output(subject)
    backend = "aot_eager" if bed.device.partition(":")[0] == "cpu" else "inductor"
    entry = OpEntry(op=COMPILED, phase="forward", dtype=DTYPES[bed.format], signature=backend)
    if bed.guard.heals(entry):
        raise RuntimeError(f"{COMPILED} ended the process")
    graphs = counters["stats"]["unique_graphs"]
    bed.guard.enter(entry)
    with torch.no_grad(), _disable_current_modes():  # the compiler leaves code alone that a mode watches
        output = first_tensor(torch.compile(subject.module, backend=backend)(*subject.inputs, **subject.named))
    bed.guard.leave()
    if counters["stats"]["unique_graphs"] == graphs:
        raise RuntimeError(f"{COMPILED} made no graph of it")
    assert output is not None
    return bed.spread.judge_pair("output", on_host(output), plain), backend


def decoded_tokens(bed: Testbed) -> Answer:
    """Half of the tokens at once, the others one by one with a cache."""
    subject = bed.subject()
    (x,) = subject.inputs
    plain, half = _output(subject), x.shape[1] // 2
    with torch.no_grad():
        logits, cache = prefill(subject.module, x[:, :half])
        rows = [logits]
        for place in range(half, x.shape[1]):
            logits, cache = decode(subject.module, x[:, place : place + 1], cache)
            rows.append(logits)
    return bed.spread.judge_pair(
        "output", torch.cat([on_host(row) for row in rows], 1), plain
    ), f"from token {half + 1} on"


def _batch_reason(session: Session, bed: Testbed) -> str:
    if not isinstance(session.target, OwnModule):
        return ""
    subject, output = bed.build("cpu"), bed.spread.exact.get("output")
    rows = {x.shape[0] for x in subject.inputs if isinstance(x, Tensor) and x.dim()}
    same = output is not None and rows == {output.shape[0]} and not subject.named and output.shape[0] > 1
    return "" if same else "inputs and output have no common first dim of more than one"


def _language(session: Session, bed: Testbed) -> str:  # noqa: ARG001
    return OWN if isinstance(session.target, OwnModule) else ""


def _turning(session: Session, bed: Testbed) -> str:
    reason = _language(session, bed)
    return reason or ("" if bed.build("cpu").module.rotaries else "the model has no rotary positions")


def _compilable(session: Session, bed: Testbed) -> str:
    if session.device.partition(":")[0] == fake_device.NAME:
        return "torch has no compiler for the fake device"
    return "in fp32 only" if bed.format != "fp32" else ""


INVARIANCES: tuple[tuple[str, Callable[[Session, Testbed], str], Callable[[Testbed], Answer]], ...] = (
    ("batch", _batch_reason, batch),
    ("padding", _language, padding),
    ("causal", _language, causal),
    ("rotary", _turning, rotary),
    ("microbatch", _language, microbatch),
    ("recompute", _language, recompute),
    ("compiled", _compilable, compiled_output),
    ("decode", _language, decoded_tokens),
)
PARALLEL = "parallel"
OP = "torch.distributed"  # a split step that differs is no single op's
FORMAT = "fp32"
RANKS = 2
MESHES: Mapping[str, Mesh] = {"tp 2": Mesh(tp=RANKS), "dp 2": Mesh(dp=RANKS)}
GRADIENT = "gradient of "
NO_DRAWS = DrawSpread(exact={}, draws=())
TINY = 1e-30
LIMIT_S = 180.0  # both degrees, with the start of the processes


def parallel(session: Session, format: str, spread: DrawSpread = NO_DRAWS, limit_s: float = LIMIT_S) -> Check:
    """Pass, fail with the parameter where a split step differs first, or why it was not run.

    spread    gradients of right devices
    """
    why = _why_not(session, format)
    if why or isinstance(session.target, OwnModule):
        return Check(name=PARALLEL, format=format, verdict="not run", reason=why)
    options = RunOptions(
        verify=True, seed=session.seed, timeout=limit_s, device=session.device.partition(":")[0], backend=""
    )
    scenarios = {name: scenario_of(small_model(session.target), mesh) for name, mesh in MESHES.items()}
    problems = {name: (*check(scenario), *refusals(scenario)) for name, scenario in scenarios.items()}
    able = {name: make_request(scenario, options) for name, scenario in scenarios.items() if not problems[name]}
    why = "; ".join(f"{name}: {_problem_text(reasons[0])}" for name, reasons in problems.items() if reasons)
    if not able:
        return Check(name=PARALLEL, format=format, verdict="not run", reason=why)
    try:
        verifications = dict(zip(able, compare_ranks(tuple(able.values()), limit_s), strict=True))
    except (OSError, RuntimeError) as error:
        return Check(name=PARALLEL, format=format, verdict="not run", reason=str(error).partition("\n")[0][:300])
    return _judge_degrees(
        session, {name: widen_tolerances(verification, spread) for name, verification in verifications.items()}, why
    )


def widen_tolerances(found: Verification, spread: DrawSpread) -> Verification:
    """With the tolerances that right devices need."""
    exact = {name: gradient.double() for name, gradient in spread.exact.items() if name.startswith(GRADIENT)}
    floor = FLOOR * _rms(torch.cat([gradient.flatten() for gradient in exact.values()])) if exact else 0.0
    parameters = []
    for parameter in found.parameters:
        gradient_name, tolerance = f"{GRADIENT}{parameter.name}", parameter.tolerance
        if gradient_name in exact:
            draws = [draw[gradient_name].double() for draw in spread.draws]
            largest = max((_rms(draws[k] - draws[k - 1]) for k in range(len(draws))), default=0.0)
            tolerance = max(tolerance, MARGIN * largest / max(_rms(exact[gradient_name]), floor, TINY))
        parameters.append(replace(parameter, tolerance=tolerance))
    return replace(found, parameters=tuple(parameters))


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def refusal_of(device: str) -> str:
    """Why two processes of a device cannot be compared with one; empty where they can."""
    kind = device.partition(":")[0]
    if kind == fake_device.NAME:
        return "the fake device has no process group"
    if kind == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        there, backend, what = cores, "gloo", "core"
    elif kind == "cuda":
        there, backend, what = torch.cuda.device_count(), "nccl", "device"
    else:
        return f"processes are started on cpu and cuda; use ridgeline run SCENARIO --verify --device {kind}"
    if not dist.is_available() or not dist.is_backend_available(backend):
        return f"this torch has no {backend}"
    return "" if there >= RANKS else f"one {what}: a split step takes {RANKS}"


def scenario_of(model: ModelSpec, mesh: Mesh) -> Scenario:
    """One short step of a model in fp32."""
    wide = dtype(FORMAT)
    plan = Plan(mesh=mesh, precision=Precision(compute=wide, weights=wide, activations=wide))
    workload = Train(seq=TOKENS[1], global_batch=TOKENS[0])
    return Scenario(
        model=model, system=system(f"{RANKS}xcpu"), workload=workload, engine=ENGINES[plan.engine], plan=plan
    )


def compare_ranks(requests: tuple[RunRequest, ...], limit_s: float = LIMIT_S) -> tuple[Verification, ...]:
    """What each plan of two ranks gives beside one process, computed by a pair of processes that end with this call."""
    context = multiprocessing.get_context("spawn")
    ports = tuple(free_port() for _ in requests)
    pipes: list[Connection] = []
    processes = []
    try:
        for rank in range(RANKS):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(requests, rank, ports, there), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        return _answer(pipes, limit_s)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _answer(pipes: list[Connection], limit_s: float) -> tuple[Verification, ...]:
    """Rank 0's, or the first failure of any."""
    until, silent = time.monotonic() + limit_s, list(pipes)
    while ready := wait(silent, timeout=max(0.0, until - time.monotonic())):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes.index(pipe)
            try:
                why, verification = pipe.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} ended without an answer") from None
            if why:
                raise RuntimeError(f"rank {rank}: {why}")
            if rank == 0:
                return tuple(verification)
            silent.remove(pipe)
    raise TimeoutError(f"two processes gave no answer within {limit_s:.0f} s")


def _rank(requests: tuple[RunRequest, ...], rank: int, ports: tuple[int, ...], pipe: Connection) -> None:
    """The main function of one of the processes."""
    torch.set_num_threads(1)
    try:
        from ridgeline.runtime.train.loop import compare

        verifications = []
        for request, port in zip(requests, ports, strict=True):
            enter_rank(rank, RANKS, rank, port)
            verifications.append(compare(request, find_world()))
        pipe.send(("", verifications))
    except BaseException as error:
        with suppress(OSError):
            pipe.send((reason(error), []))
        os._exit(1)  # not through destructors that wait for a rank which is gone


def _why_not(session: Session, format: str) -> str:
    if isinstance(session.target, OwnModule):
        return "a user's module: how it splits is not known"
    why = refusal_of(session.device)
    return why or ("in fp32 only" if format != FORMAT else "")


def _judge_degrees(session: Session, found: Mapping[str, Verification], why: str) -> Check:
    """The first degree that differs, or the one nearest its tolerance; what differs is a finding."""
    name, worst = max(found.items(), key=lambda one: (not one[1].equal, _share(one[1].worst)))
    gradient = next(iter(worst.diverged), worst.worst)
    difference, limit, module = gradient.difference, gradient.tolerance, gradient.name
    if not worst.equal and not worst.diverged:
        difference, limit, module = worst.loss_difference, worst.tolerance, "loss"
    where = f"{name}: " + ("loss" if module == "loss" else f"{GRADIENT}{module}")
    if not worst.equal:
        session.found.add(OpFinding(
            op=OP, module=module, phase="loss" if module == "loss" else "backward", dtype=DTYPES[FORMAT],
            statistic=PARALLEL, measured=difference, limit=limit, message=f"{where} is not that of one process",
        ))  # fmt: skip
    return Check(
        name=PARALLEL,
        format=FORMAT,
        verdict="pass" if worst.equal else "fail",
        statistic="difference",
        measured=difference,
        limit=limit,
        where=where,
        op="" if worst.equal else OP,
        reason=why,
    )


def _share(one: Compared) -> float:
    return one.difference / one.tolerance


def _problem_text(problem: Problem) -> str:
    return f"{problem.path} is {problem.given}, expected {problem.expected}"
