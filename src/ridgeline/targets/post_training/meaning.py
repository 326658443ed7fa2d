"""Turn what files of post-training say into the scenario that they mean, beside the plan they were made of."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.scenario_file import assemble
from ridgeline.rl import longest_tokens
from ridgeline.targets.target import Imported


def written_scenario(found: Imported, planned: Scenario[Rl]) -> Scenario[Rl]:
    """The scenario that files mean on the plan's machine; an `InputError` where they mean none.

    How long prompts and answers are, which environment and which reward there is, is nowhere in the files: as planned,
    except for lengths whose limit came back as another.
    """
    table: JsonObject = {**found.settings, "system": planned.system}
    if "model" not in table:
        table["model"] = planned.model
    built, problems = assemble(table)
    if built is None:
        raise InputError(problems)
    return _with_own_data(post_training(built), planned)


def _with_own_data(built: Scenario[Rl], planned: Scenario[Rl]) -> Scenario[Rl]:
    data, wanted = built.workload.data, planned.workload.data
    changes: JsonObject = {"drift": wanted.drift, "oversampling": wanted.oversampling}
    for name in ("prompt_tokens", "response_tokens"):
        written, meant = getattr(data, name), getattr(wanted, name)
        if written is not None and meant is not None and longest_tokens(written) == longest_tokens(meant):
            changes[name] = meant
    work, plan = built.workload, planned.workload
    learning = {name: getattr(plan.learning, name) for name in ("task", "level", "warm_up", "overlong")}
    workload = replace(
        work, data=replace(data, **changes), agent=plan.agent, seed=plan.seed,
        roles=replace(work.roles, verifier=plan.roles.verifier), learning=replace(work.learning, **learning),
    )  # fmt: skip
    return replace(built, workload=workload, name=planned.name)
