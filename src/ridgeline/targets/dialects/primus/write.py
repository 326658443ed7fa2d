"""Which keys of Primus's files stand for which options of Megatron's command line, and what they say when left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.dialects.megatron.write import pieces
from ridgeline.targets.dialects.megatron.write_model import OPTION as PATTERN
from ridgeline.targets.dialects.megatron.write_model import is_hybrid, needs_segments, pattern
from ridgeline.targets.launchers.launch import Command, comment, header, nodes_of, scripts
from ridgeline.targets.ledger import Fixed, Like, Lose, Piece, Say, admit_options, export_of, gather, lose
from ridgeline.targets.options import options
from ridgeline.targets.tables import values
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on
from ridgeline.targets.yaml_text import yaml_text

ID = "primus"

# names of Megatron's configuration -> options of its command line; `no-` where false is the option
NAMES = table_words("primus", "names")
OPPOSITE = {
    "add-bias-linear": "disable-bias-linear",
    "overlap-p2p-comm": "no-overlap-p2p-communication",
    "gradient-accumulation-fusion": "no-gradient-accumulation-fusion",
}
# what Megatron does without the option, where Primus's own files (pre_trainer, language_model) would say otherwise
PLAIN = values("primus", "plain")


FILE = "primus.yaml"
OVERRIDES = "overrides."
NOTE = "# PRIMUS is a checkout of AMD-AGI/Primus; words after the script's name override keys (--train_iters 100)."
# what a first run needs beside the decisions: made-up data, few steps
RUN: JsonObject = {
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "train_iters": 50,
    "lr": 1.0e-5,
    "eval_iters": 0,
    "save": None,
    "load": None,
    "disable_last_saving": True,
}


def write(scenario: Scenario) -> Export:
    """primus.yaml and the launch scripts."""
    decisions = gather(decisions_of(scenario), _pieces(scenario))
    stated_options = {
        key.removeprefix(OVERRIDES): value for key, value in decisions.options.items() if key.startswith(OVERRIDES)
    }
    plain = {key: value for key, value in PLAIN.items() if key not in stated_options}
    turbo = {"enable_primus_turbo": True} if "use_turbo_deepep" in stated_options else {}
    overrides = {**RUN, **plain, **turbo, **stated_options}
    kind = "mamba_base.yaml" if is_hybrid(scenario.model) else "language_model.yaml"
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": kind}
    name = scenario.model.id
    table = {
        "work_group": "ridgeline",
        "user_name": "ridgeline",
        "exp_name": name,
        "workspace": "./output",
        "modules": {"pre_trainer": {**module, "overrides": overrides}},
    }
    title = options(ID).title
    _, chips_per_node = nodes_of(scenario.system)
    command = Command(
        words=(),
        per_chip=False,
        environment={"GPUS_PER_NODE": str(chips_per_node)}
        | {key: str(value) for key, value in decisions.options.items() if key.isupper()},
        setup=("export NNODES NODE_RANK MASTER_ADDR MASTER_PORT",),
        before=NOTE,
        tail=f'"${{PRIMUS:-Primus}}/runner/primus-cli" direct -- train pretrain --config "$PWD/{FILE}"',
    )
    text = comment(header(scenario, title)) + yaml_text(table)
    return export_of(ID, {FILE: text, **scripts(scenario, command, title)}, decisions)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield from runs_on(scenario, ID)
    yield Fixed("plan.engine", "primus", "what runs it is Primus, with Megatron inside")
    yield Fixed("system.chips", scenario.system.chips, "ranks that launch.sh starts")
    yield Fixed("plan.dp", scenario.plan.mesh.dp, "the ranks that the other axes leave")
    if is_hybrid(scenario.model):
        yield Say(f"{OVERRIDES}num_layers", len(pattern(scenario, cuts=False).split("/")[0]))
        yield Say(f"{OVERRIDES}is_hybrid_model", True)
        for path in ("schedule.*", "placement") if needs_segments(scenario) else ():
            yield Lose(f"plan.{path}", "layers of a pattern are spread evenly over the ranks of a pipeline, under 1f1b")
    for piece in admit_options(pieces(scenario), options("megatron")):
        yield from _key_pieces(_model_paths_only(piece, scenario))


def _model_paths_only(piece: Piece, scenario: Scenario) -> Piece:
    """The pattern of a hybrid without cuts: the Megatron inside Primus is one before they came."""
    if not isinstance(piece, Say) or piece.option != PATTERN:
        return piece
    if not needs_segments(scenario):
        return piece
    model_paths = [path for path in piece.paths if not path.startswith("plan.")]
    return Say(piece.option, pattern(scenario, cuts=False), *model_paths)


def _key_pieces(piece: Piece) -> Iterator[Piece]:
    """An option of the command line as a key of the experiment."""
    if isinstance(piece, Fixed) and piece.path == "plan.engine":
        return
    if isinstance(piece, Say) and piece.option.startswith("torchrun"):
        return
    if isinstance(piece, (Fixed, Lose, Like)) or not piece.option.startswith("--"):
        yield piece
        return
    key, value = key_of(piece.option.removeprefix("--"), piece.value)
    if key is None:
        yield from lose(f"no file of Primus has a key for {piece.option}", *piece.paths)
    else:
        yield Say(f"{OVERRIDES}{key}", value, *piece.paths)


def key_of(option: str, value: Any) -> tuple[str | None, Any]:
    """The key and its value that an option of Megatron's command line means; None where there is none.

    >>> key_of("tensor-model-parallel-size", 8), key_of("disable-bias-linear", True)
    (('tensor_model_parallel_size', 8), ('add_bias_linear', False))
    """
    if (option, value) == ("moe-flex-dispatcher-backend", "deepep"):
        return "use_turbo_deepep", True
    option_list = options(ID).values
    back = {name: key for key, name in NAMES.items()}
    opposite_names = {name: key for key, name in OPPOSITE.items()}
    names = [(option, value), (back.get(option, ""), value), (opposite_names.get(option, ""), False)]
    if value is True and option.startswith("no-"):
        names.append((option.removeprefix("no-"), False))
    for name, means in names:
        key = name.replace("-", "_")
        if name and f"{OVERRIDES}{key}" in option_list:
            digits = isinstance(means, str) and means.isdigit()
            return key, list(means) if isinstance(means, tuple) else int(means) if digits else means
    return None, None
