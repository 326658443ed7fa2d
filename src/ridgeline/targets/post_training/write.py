"""Turn a Scenario of post-training into files of one software, with an account that its own files confirm.

Files are read again before the account is closed. A decision that no option carries is implied where it comes back as
it was planned, and lost where it does not, with what it comes back as: nobody claims that a software does by itself
what its own files do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.targets.launchers import launch
from ridgeline.targets.ledger import UNSPOKEN, Ledger, Lose, Piece, Say, export_of, gather
from ridgeline.targets.post_training.decisions import rl_decisions_of
from ridgeline.targets.post_training.facts import facts_of
from ridgeline.targets.post_training.meaning import written_scenario
from ridgeline.targets.post_training.software import SOFTWARE, PostTrainingSoftware
from ridgeline.targets.tables import template
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported, Lost

MARK = "workload: post-training"  # at the top of every file that is written here
ROUNDED = 1e-3  # of a number that a software takes in whole units
YOURS = table_words("post-training", "yours")
MODEL = "no published weights are known of it: set MODEL to a folder whose config.json says the same"


def _nothing(_: Scenario[Rl]) -> Iterator[Piece]:
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm:
    """How a software takes its options.

    files    (scenario, options) -> relative file name -> text
    read     files -> what they say
    actor    what the trainer's own dialect writes of the actor's plan, by its trainer
    """

    files: Callable[[Scenario[Rl], JsonMapping], Files]
    read: Callable[[Files], Imported]
    actor: Callable[[Scenario[Rl]], Iterator[Piece]] = _nothing


def export_post_training(id: str, scenario: Scenario, form: FileForm) -> Export:
    """The scenario as files of that software; an `InputError` with everything that the software does not run."""
    software, built = SOFTWARE[id], post_training(scenario)
    refuse_offline(software, built)
    facts = facts_of(built) | {"trainer": trainer_of(built, software)}
    problems = [*software.unsupported(facts), *_role_problems(software, built)]
    if problems:
        raise InputError(problems)
    decisions = rl_decisions_of(built)
    pieces = (*form.actor(built), *software.pieces(facts), *_yours(facts), *_reasons(software))
    ledger = gather(decisions, _said_once(pieces))
    files = form.files(built, ledger.options)
    after = rl_decisions_of(written_scenario(form.read(files), built))
    return export_of(id, files, close_account(ledger, decisions, after, software))


def refuse_offline(software: PostTrainingSoftware, scenario: Scenario[Rl]) -> None:
    """An `InputError` for training on data that is there, where the software's files are those of a rollout."""
    algorithm = scenario.workload.algorithm
    able = software.data["supports"]["workload.algorithm"]
    if algorithm not in able:
        todo = software.words("todo").get(algorithm, "")
        if not todo and not scenario.workload.generates:
            todo = 'set workload.kind = "train" with task = "finetune" and use --to accelerate for supervised training'
        expected = f"one of {', '.join(able)}: what is written for {software.title}"
        raise InputError(Problem(path="workload.algorithm", given=algorithm, expected=expected, todo=todo))


def trainer_of(scenario: Scenario[Rl], software: PostTrainingSoftware) -> str:
    """Who trains: Megatron where the plan splits matrices or layers, or its engine is one; else the first it has."""
    trainers = software.data["trainers"]
    mesh, plan = scenario.plan.mesh, scenario.plan
    if len(trainers) > 1 and "megatron" in trainers:
        ring = mesh.cp > 1 and plan.switches.cp_kind == "ring"
        split = mesh.pp * mesh.ep * mesh.etp > 1 or (mesh.tp > 1 and not software.data.get("splits_matrices", False))
        if split or ring or plan.sharding.shard in ("zero1", "none") or scenario.engine.family == "megatron-core":
            return "megatron"
    return str(trainers[0])


def _role_problems(software: PostTrainingSoftware, scenario: Scenario[Rl]) -> Iterator[Problem]:
    """Roles that the software has no place for."""
    able = software.data["roles"]
    for role in scenario.workload.roles.models:
        if role not in able:
            expected = f"{' or '.join(able) or 'none'}: roles that are written for {software.title}"
            todo = "serve it as the reward of your own program, and describe it as roles.verifier"
            yield Problem(path=f"workload.roles.{role}", given=role, expected=expected, todo=todo)


def _yours(facts: JsonMapping) -> Iterator[Piece]:
    yield from (Lose(path, why, yours=True) for path, why in YOURS.items())
    if not facts["model.path"]:
        yield Lose("model.*", MODEL, yours=True)


def _reasons(software: PostTrainingSoftware) -> Iterator[Piece]:
    yield from (Lose(path, why) for path, why in software.words("lost").items())


def _said_once(pieces: tuple[Piece, ...]) -> Iterator[Piece]:
    """The pieces without options that an actor's dialect says otherwise than the step around it: the first counts."""
    seen: JsonObject = {}
    for piece in pieces:
        if not isinstance(piece, Say):
            yield piece
        elif piece.option not in seen:
            seen[piece.option] = piece.value
            yield piece
        elif seen[piece.option] == piece.value:
            yield piece


def close_account(ledger: Ledger, decisions: JsonMapping, after: JsonMapping, software: PostTrainingSoftware) -> Ledger:
    """The account with every decision judged by what the files mean when they are read again."""
    expressed, implied = dict(ledger.expressed), dict(ledger.implied)
    reasons = {part.path: part.why for part in ledger.lost if part.why != UNSPOKEN}
    lost = [part for part in ledger.lost if part.yours]
    yours = {part.path for part in lost}
    for path, value in decisions.items():
        if path in yours:
            continue
        if _equal(value, after.get(path)):
            if path not in expressed:
                implied.setdefault(path, f"as {software.title} does by itself, or as its other options say")
            continue
        option = expressed.pop(path, "")
        implied.pop(path, None)
        means = "nothing" if after.get(path) is None else str(plain(after[path]))
        why = _reason(path, software) or reasons.get(path, "")
        why = why or (f"{option} then means {means}" if option else f"no option of {software.title} says it")
        lost.append(Lost(path=path, value=value, why=f"{why}: written as {means}"))
    return replace(ledger, expressed=expressed, implied=implied, lost=tuple(lost))


def _reason(path: str, software: PostTrainingSoftware) -> str:
    """Why the software does not hold a decision, by the first pattern of its table."""
    return next((why for pattern, why in software.words("why").items() if fnmatchcase(path, pattern)), "")


def _equal(planned: object, written: object) -> bool:
    if isinstance(planned, float) and isinstance(written, (int, float)):
        return abs(planned - written) <= ROUNDED * abs(planned)
    if isinstance(planned, (list, tuple)) and isinstance(written, (list, tuple)):
        return tuple(planned) == tuple(written)
    return planned == written


def head(scenario: Scenario[Rl], software: PostTrainingSoftware) -> str:
    """The comment at the top of a file."""
    return launch.comment((*launch.header(scenario, software.title), MARK))


def ray_script(scenario: Scenario[Rl], software: PostTrainingSoftware, before: str, command: str) -> Files:
    """launch.sh, which starts Ray on every node and the program on the first, and a batch script that runs it."""
    nodes = launch.nodes_of(scenario.system)[0]
    joins = "".join(f"{line}\n" for line in launch.leader(nodes, 6379))
    model = scenario_model(scenario)
    text = template("ray_launch.txt").format(nodes=nodes, leader=joins, model=model, before=before, command=command)
    return {
        launch.ON_NODE: f"#!/bin/bash\n{head(scenario, software)}{text}",
        launch.SLURM: launch.slurm(scenario, software.title),
    }


def scenario_model(scenario: Scenario[Rl]) -> str:
    """Where the weights come from: a name that hubs know, or a folder that the caller has to say."""
    path = str(facts_of(scenario)["model.path"])
    return f"MODEL=${{MODEL:-{path}}}" if path else "MODEL=${MODEL:?a folder with weights and a config.json}"
