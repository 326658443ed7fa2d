"""Turn a predicted step into what its own collectives cost each other on the system's graph.

Ranks stand on chips in the plan's rank order, tp closest. Each collective of the step runs first in one group alone,
then in all its groups at once (together), and where the plan overlaps gradients with the backward pass also beside
their reduction. With e = what of it is exposed in closed form, g = seconds of the gradient reduction, s = the step:

    added = (together / alone - 1) e  +  (beside - together) / alone * g e / s

since of the e seconds, spread over the step, g e / s meet the reduction.
Reductions and gathers go round rings of their group in the order of ranks, all-to-alls straight to every peer; a few
rounds show the same factor as all. The closed form's rates, fitted to whole machines, are left as they are: what is
added is what placement and paths make of them. Groups that overlap in time elsewhere are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Unpack

import numpy as np

from ridgeline.comm import Algorithm, graph_of_system, pairwise, ring_allgather, sends
from ridgeline.comm.simulation import Conditions, Job, NetworkOptions, over_seeds, parse_conditions, simulated_graph
from ridgeline.core.arrays import Index
from ridgeline.cost.step_part import StepPart
from ridgeline.ir.ops import Collective, Num
from ridgeline.ir.program import Program
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.mesh import DP_LAST, Mesh
from ridgeline.sim.prediction import PART_OF_AXIS, ContendedCollective, NetworkContention, Prediction

ROUNDS = 4  # of a ring; it repeats itself
SEEDS = 5  # of hashed paths; the mean is taken
MOST_PAIRS = 64  # peers of an all-to-all that are drawn; more are a sample of distances


def network_contention(prediction: Prediction, **wanted: Unpack[NetworkOptions]) -> NetworkContention:
    """Simulate the collectives of a predicted step where the plan puts them; `wanted` says what else is on the network.

    Traffic of others and stragglers count as what contention adds: alone, a collective has neither.
    """
    scenario = prediction.scenario
    graph = simulated_graph(graph_of_system(scenario.system))
    plans = plan_columns([scenario])
    program = lower(scenario, plans, tensors=False)
    run_conditions = parse_conditions(graph, **wanted)
    seeds = range(run_conditions.seed, run_conditions.seed + (SEEDS if run_conditions.paths == "ecmp" else 1))
    quiet = replace(run_conditions, background=(), slower={}, late={})
    exposed_s = {part.name: part.seconds for part in prediction.breakdown}

    def by_seed(jobs: list[Job], others: list[Job], under: Conditions = run_conditions) -> list[float]:
        runs = over_seeds([*jobs, *others], graph, under, seeds)
        return [max(run.job_s[: len(jobs)]) for run in runs]

    def seconds(jobs: list[Job], others: list[Job], under: Conditions = run_conditions) -> float:
        return float(np.mean(by_seed(jobs, others, under)))

    mesh = scenario.plan.mesh
    reductions = program.step.grad_reduce if program.step and plans.overlap_grad[0] > 0 else ()
    overlapped_jobs = [job for op in reductions for job in _jobs(op, mesh)]
    lasts = sum(_rounds(job) * seconds([job], [], quiet) for job in overlapped_jobs[:1])
    collectives = []
    for op in _distinct(program):
        jobs = _jobs(op, mesh)
        if not jobs:
            continue
        concurrent_jobs = overlapped_jobs if op.axis in ("tp", "cp", "ep") else []
        alone_s, seed_times = seconds(jobs[:1], [], quiet), by_seed(jobs, [])
        together = float(np.mean(seed_times))
        beside_s = seconds(jobs, concurrent_jobs) if concurrent_jobs else together
        exposed_part_s = exposed_s.get(PART_OF_AXIS[op.axis].value, 0.0)
        meets = lasts * exposed_part_s / prediction.step_time_s
        added_s = max(0.0, together / alone_s - 1) * exposed_part_s + max(0.0, beside_s - together) / alone_s * min(
            meets, exposed_part_s
        )
        collectives.append(
            ContendedCollective(
                label=op.label,
                kind=op.kind,
                axis=op.axis,
                ranks=round(_number(op.ranks)),
                stride=round(_number(op.stride)),
                groups=len(jobs),
                alone_s=alone_s,
                together_s=together,
                worst_s=max(seed_times),
                beside_s=beside_s,
                exposed_s=exposed_part_s,
                added_s=added_s,
            )
        )
    by_added_time = tuple(sorted(collectives, key=lambda one: -one.added_s))
    return NetworkContention(
        topology=graph.name, paths=run_conditions.paths, collectives=by_added_time, closed_form_s=prediction.step_time_s
    )


def _rounds(job: Job) -> float:
    """How many times the rounds that are simulated make the whole ring."""
    ring_rounds = job.algorithm.ranks - 1
    return ring_rounds / min(ring_rounds, ROUNDS)


def _distinct(program: Program) -> Iterator[Collective]:
    """Collectives of the step, one for each kind, axis and group; the one with the most bytes."""
    ops = [op for section in program.sections for op in (*section.forward, *section.backward_input)]
    if program.step is not None:
        step = program.step
        ops += [step.send, *step.layer_gather, *step.layer_scatter, *step.grad_reduce, *step.param_gather]
    distinct_ops: dict[tuple[str, str, float, float], Collective] = {}
    for op in ops:
        if isinstance(op, Collective) and _number(op.ranks) > 1 and _number(op.payload_bytes) > 0:
            key = op.kind, op.axis, _number(op.ranks), _number(op.stride)
            if key not in distinct_ops or _number(op.payload_bytes) > _number(distinct_ops[key].payload_bytes):
                distinct_ops[key] = op
    yield from distinct_ops.values()


def _jobs(op: Collective, mesh: Mesh) -> list[Job]:
    """The collective in each of its groups where the rank order puts them, the first few rounds."""
    ranks = round(_number(op.ranks))
    if ranks < 2:
        return []
    algorithm = _algorithm(op, ranks)
    size = _number(op.payload_bytes)
    return [Job(algorithm=algorithm, size_bytes=size, ranks=group) for group in _groups(op, ranks, mesh)]


def _groups(op: Collective, ranks: int, mesh: Mesh) -> Iterator[Index]:
    """Ranks that share all coordinates but one; the closed form's stride counts stages in between, where such lie."""
    pipeline_stride = mesh.pp if mesh.order == DP_LAST and PART_OF_AXIS[op.axis] in (StepPart.DP, StepPart.SHARD) else 1
    distance = max(1, round(_number(op.stride) / pipeline_stride))
    for group in mesh.groups(ranks, distance, stages=op.axis == "pp"):
        yield np.array(group, np.int64)


def _algorithm(op: Collective, ranks: int) -> Algorithm:
    if op.kind == "send":
        return sends(ranks, np.arange(ranks - 1), np.arange(1, ranks))
    if op.kind == "all-to-all":
        all_pairs = pairwise(ranks, at_once=True)
        distance = (all_pairs.steps.target - all_pairs.steps.source) % ranks
        keep_every = max(1, -(-ranks // MOST_PAIRS))
        return (
            replace(all_pairs, steps=all_pairs.steps.take(distance % keep_every == 0)) if keep_every > 1 else all_pairs
        )
    ring = ring_allgather(ranks)
    return replace(ring, steps=ring.steps.take(ring.steps.round < ROUNDS))


def _number(value: Num) -> float:
    return float(np.max(value))
