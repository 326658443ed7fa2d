"""Degrees of parallelism as an invariance: two processes of the device against one, as `ridgeline run --verify` does.

    parallel(session, format, spread)      loss and every gradient of one step of the narrow model, tp = 2 and dp = 2
    refused(device)                        why a device has no two processes at hand

A gradient may differ by what `--verify` allows, or by four times what right devices differ by where that is more: that
of a key's bias is zero but for rounding. One pair of processes compares both degrees: importing torch takes longer than
the steps.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist
from torch import Tensor

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
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.findings import Check, OpFinding
from ridgeline.runtime.bringup.noise import MARGIN, Spread
from ridgeline.runtime.bringup.rig import DTYPES, small_model
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.subject import TOKENS
from ridgeline.runtime.bringup.target import OwnModule
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.train.launch import free_port, reason
from ridgeline.runtime.train.refuse import refusals
from ridgeline.runtime.train.request import Compared, Options, Request, Verification, make_request
from ridgeline.runtime.train.verify import FLOOR

NAME = "parallel"
OP = "torch.distributed"  # a split step that differs is no single op's
FORMAT = "fp32"
RANKS = 2
MESHES: Mapping[str, Mesh] = {"tp 2": Mesh(tp=RANKS), "dp 2": Mesh(dp=RANKS)}
GRADIENT = "gradient of "
NO_DRAWS = Spread(exact={}, draws=())
TINY = 1e-30
LIMIT_S = 180.0  # both degrees, with the start of the processes


def parallel(session: Session, format: str, spread: Spread = NO_DRAWS, limit_s: float = LIMIT_S) -> Check:
    """Pass, fail with the parameter where a split step differs first, or why it was not run.

    spread    gradients of right devices
    """
    why = _why_not(session, format)
    if why or isinstance(session.target, OwnModule):
        return Check(name=NAME, format=format, verdict="not run", reason=why)
    options = Options(
        verify=True, seed=session.seed, timeout=limit_s, device=session.device.partition(":")[0], backend=""
    )
    scenarios = {name: scenario_of(small_model(session.target), mesh) for name, mesh in MESHES.items()}
    problems = {name: (*check(scenario), *refusals(scenario)) for name, scenario in scenarios.items()}
    able = {name: make_request(scenario, options) for name, scenario in scenarios.items() if not problems[name]}
    why = "; ".join(f"{name}: {_problem_text(reasons[0])}" for name, reasons in problems.items() if reasons)
    if not able:
        return Check(name=NAME, format=format, verdict="not run", reason=why)
    try:
        verifications = dict(zip(able, compare_ranks(tuple(able.values()), limit_s), strict=True))
    except (OSError, RuntimeError) as error:
        return Check(name=NAME, format=format, verdict="not run", reason=str(error).partition("\n")[0][:300])
    return _judge_degrees(
        session, {name: widen_tolerances(verification, spread) for name, verification in verifications.items()}, why
    )


def widen_tolerances(found: Verification, spread: Spread) -> Verification:
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
    if kind == ridge.NAME:
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


def compare_ranks(requests: tuple[Request, ...], limit_s: float = LIMIT_S) -> tuple[Verification, ...]:
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


def _rank(requests: tuple[Request, ...], rank: int, ports: tuple[int, ...], pipe: Connection) -> None:
    """The main function of one of the processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # AMX that is advertised and traps ends the process
    variables = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    try:
        from ridgeline.runtime.train.loop import compare

        verifications = []
        for request, port in zip(requests, ports, strict=True):
            os.environ["MASTER_PORT"] = str(port)
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
            statistic=NAME, measured=difference, limit=limit, message=f"{where} is not that of one process",
        ))  # fmt: skip
    return Check(
        name=NAME,
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
