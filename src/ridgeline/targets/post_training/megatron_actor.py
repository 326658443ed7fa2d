"""Turn the actor's plan into Megatron's options under the names of a software around it, and such options back.

Megatron's own writer and reader do the work: what a software passes on to Megatron means what Megatron makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ridgeline.core.documents import JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.dialects.megatron.collect import Given
from ridgeline.targets.dialects.megatron.read import settings_of
from ridgeline.targets.dialects.megatron.write import MODEL, PLAN, batch, pieces
from ridgeline.targets.imports.option_reader import OptionReader
from ridgeline.targets.ledger import Fixed, Piece, Say, admit_options
from ridgeline.targets.options import options

Renamed = Callable[[str], str]
# what stands for a model that no file names: its layers bound what a plan may split
DENSE, SPARSE = "llama3-70b", "qwen3-235b-a22b"
OF_A_STEP = ("seq-length", "global-batch-size", "micro-batch-size")


def actor_pieces(scenario: Scenario[Train], rename: Renamed, *, spells_model: bool = False) -> Iterator[Piece]:
    """What Megatron is told of the plan (and of the model's layers), without a batch, which a step of samples makes.

    `rename` gives an option's name here; an empty one where the software has none.
    """
    writers = (*(MODEL if spells_model else ()), *(writer for writer in PLAN if writer is not batch))
    for piece in admit_options(pieces(scenario, writers), options("megatron")):
        if not isinstance(piece, Say):
            yield piece
        elif piece.option.startswith("--") and (name := rename(piece.option)):
            yield Say(name, piece.value, *piece.paths)
    yield Fixed("plan.engine", "megatron-core", "Megatron-Core trains")


def read_actor(reader: OptionReader, own_name: Renamed, model: str | JsonObject | None) -> JsonObject:
    """The actor's plan with its optimizer, of options that Megatron knows; `own_name` gives a Megatron option's name.

    The key `model` holds the model that the options spell, where none was named.
    """
    known = options("megatron")
    stated: JsonObject = {}
    for name in (*known.flags, *known.values):
        own = own_name(f"--{name}")
        if own in reader.options:
            stated[name] = reader.options[own]
            reader.taken.add(own)
    stated = {name: value for name, value in stated.items() if value not in (None, False) and name not in OF_A_STEP}
    spells = "num-layers" in stated and model is None
    stand_in = SPARSE if stated.get("expert-model-parallel-size", 1) != 1 or "num-experts" in stated else DENSE
    named = {} if spells else {"model": model if model is not None else stand_in}
    stated |= {"seq-length": 4096, "global-batch-size": 1, "micro-batch-size": 1} | named
    found = settings_of(Given(options=stated, source=reader.table.source), "megatron", "megatron-core")
    for part in found.unread:
        if part.matters:
            reader.note(own_name(f"--{part.option}"), part.value, part.why)
    plan: JsonObject = {key: value for key, value in found.settings["plan"].items() if key != "microbatch"}
    plan["optimizer"] = found.settings["workload"].get("optimizer") or {"name": "adamw"}
    return plan | ({"model": found.settings["model"]} if spells else {})
