"""Attempt a request until it ends: again from the last checkpoint when workers are lost, then on fewer ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.scenario import Scenario
from ridgeline.runtime.train.request import Listener, Request, RunOutcome, WorkerLost

Replan = Callable[[int], Scenario | None]
"""The best scenario for at most so many ranks, from whoever may plan; None where nothing fits."""


class Starter:
    """Who can start the ranks of a request, and knows how many more it could."""

    def attempt(self, request: Request, listener: Listener) -> Any:
        """Run until the end, or until a worker is lost."""
        raise NotImplementedError

    def left_without(self, gone: tuple[int, ...]) -> int:
        """How many ranks can be started when these of the last attempt are lost for good."""
        raise NotImplementedError


def run_with_restarts(request: Request, listener: Listener, replan: Replan | None, starter: Starter) -> Any:
    """Attempts until one ends: on all ranks as often as `restarts` says, then, if elastic, on those that are left."""
    lost, notes = 0, []
    while True:
        try:
            outcome = starter.attempt(request, listener)
        except WorkerLost as failure:
            lost += 1
            if lost > request.options.restarts:
                if not (request.options.elastic and failure.gone):
                    raise
                remaining = starter.left_without(failure.gone)
                if not remaining:
                    raise
                request = fit_request(request, remaining, replan)
                notes.append(f"{failure.args[0].splitlines()[0]}; went on with {describe_plan(request.scenario)}")
                listener.note(notes[-1])
            request = replace(request, options=replace(request.options, resume=True))
            continue
        return (
            replace(outcome, restarts=lost, notes=(*notes, *outcome.notes))
            if isinstance(outcome, RunOutcome)
            else outcome
        )


def fit_request(request: Request, ranks: int, replan: Replan | None) -> Request:
    """The request with the best plan for so many ranks."""
    best = replan(ranks) if replan is not None else None
    if best is None:
        todo = "free memory with recompute or offload, or wait for the lost ranks"
        raise InputError(
            Problem(path="--elastic", given=f"{ranks} ranks left", expected="a plan that fits on them", todo=todo)
        )
    return replace(request, scenario=best)


def describe_plan(scenario: Scenario) -> str:
    """A plan in a few words: its axes that split anything.

    >>> import ridgeline
    >>> describe_plan(ridgeline.scenario({"model": "llama3-8b", "system": "2xcpu", "plan": {"tp": 2},
    ...     "workload": {"seq": 128, "global_batch": 4}}))
    'tp 2 on 2 rank(s)'
    """
    mesh = scenario.plan.mesh
    axes = [f"{name} {size}" for name in ("pp", "dp", "cp", "tp") if (size := getattr(mesh, name)) > 1]
    if scenario.plan.sharding.shard != "none":
        axes.append(scenario.plan.sharding.shard)
    return f"{', '.join(axes) or 'no parallelism'} on {mesh.ranks} rank(s)"
