"""Turn a target's table into what it says of one software of post-training: when which options apply, what it can do.

    [supports]              "workload.algorithm" = ["grpo"]       what it runs; anything else is refused by name
    [sections]              separate = { "placement.colocated" = [false] }    when the rows of a section apply
    [options.separate]      "rollout.nodes" = { option = "...", kind = "count" }    a fact and the option that holds it
    [constants.separate]    "some.option" = true                   what is always written there
    [engine]                vllm = "rollout.vllm."                  what stands before an engine's own options
    [apart], [matters]      option or pattern = why nothing reads it: it decides nothing, or it does
    [why]                   decision or pattern = why no option holds it

The same rows are written and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import Problem
from ridgeline.targets.imports.option_reader import OptionReader
from ridgeline.targets.ledger import Lose, Piece, Say
from ridgeline.targets.option_table import OptionRow, option_rows, say_options
from ridgeline.targets.options import options
from ridgeline.targets.post_training.facts import carried
from ridgeline.targets.serving.engine import engine_words
from ridgeline.targets.tables import tables
from ridgeline.targets.target import NOTHING

ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostTrainingSoftware:
    """One software by its table.

    id       of the target
    table    the name of its table and of its option list: `verl` trains by another one
    """

    id: str
    table: str

    @property
    def title(self) -> str:
        """What its makers call it."""
        return options(self.table).target

    @property
    def data(self) -> JsonMapping:
        """The whole table."""
        return tables(self.table)

    def words(self, name: str) -> Mapping[str, str]:
        """A table of one word for each; empty where the software needs none."""
        return {key: str(value) for key, value in self.data.get(name, {}).items()}

    def sections(self, facts: JsonMapping) -> Iterator[str]:
        """Sections whose conditions hold, in the order of the table; facts may grow while they are gone through."""
        for section, conditions in self.data["sections"].items():
            if all(facts.get(fact) in values for fact, values in conditions.items()):
                yield section

    def pieces(self, facts: JsonMapping) -> Iterator[Piece]:
        """What the facts are written as."""
        spoken: set[str] = set()
        for section in self.sections(facts):
            for option, value in self.data.get("constants", {}).get(section, {}).items():
                yield Say(option, value)
            for piece in say_options(self.table, section, facts) if section in self.data["options"] else ():
                if isinstance(piece, Lose):
                    yield from (Lose(path, piece.why) for path in carried(piece.path))
                elif piece.option not in spoken:
                    spoken.add(piece.option)
                    yield Say(piece.option, piece.value, *(path for at in piece.paths for path in carried(at)))
        yield from self._knobs(facts)

    def _knobs(self, facts: JsonMapping) -> Iterator[Piece]:
        """Options of the rollout engine itself, by the names that its own target has for them."""
        engine = str(facts.get("plan.rl.rollout.engine"))
        if engine not in self.data.get("engine", {}):
            return
        rows = {path for section in self.sections(facts) for path in self._paths(section)}
        for knob, option in engine_words(engine, ENGINES[engine]).knobs.items():
            path = f"plan.serving.{engine}.{knob}"
            name = self.engine_option(engine, option)
            is_off = facts.get(path) is False and name.startswith("--")  # a flag of a command that is left out
            if path in facts and path not in rows and not is_off and self._takes(name):
                yield Say(name, facts[path], path)

    def _takes(self, name: str) -> bool:
        """Whether an engine's own option may be handed on; those of a command line all are."""
        lists = (options(known).values for known in self.data["lists"])
        is_open = any(fnmatchcase(name, pattern) for pattern in self.data.get("open", ()))
        return name.startswith("--") or is_open or any(name in known for known in lists)

    def _paths(self, section: str) -> Iterator[str]:
        """Decisions that a section has options of its own for."""
        if section in self.data["options"]:
            yield from (path for row in option_rows(self.table, section) for path in carried(row.path))

    def engine_option(self, engine: str, option: str) -> str:
        """The name here of an engine's own option.

        >>> PostTrainingSoftware(id="slime", table="slime").engine_option("sglang", "--page-size")
        '--sglang-page-size'
        """
        prefix = str(self.data["engine"][engine])
        name = option.removeprefix("--")
        return prefix + (name if prefix.startswith("--") else name.replace("-", "_"))

    def read_facts(self, reader: OptionReader, known: JsonMapping = NOTHING) -> JsonObject:
        """Every fact that the options state, or that the software has by default, beside those known already."""
        facts: JsonObject = dict(known)
        for pattern, gate in self.words("gates").items():
            if not reader.switch(gate):
                reader.skip(*(name for name in reader.options if fnmatchcase(name, pattern)))
        for section in self.sections(facts):
            for option, value in self.data.get("constants", {}).get(section, {}).items():
                if reader.options.get(option.removeprefix("--")) == value:
                    reader.skip(option.removeprefix("--"))
            for row in option_rows(self.table, section) if section in self.data["options"] else ():
                value = row.read(reader)
                self._note_default(row, value, reader)
                if value is not None and facts.get(row.path) in (None, row.default):
                    facts[row.path] = value
        return facts | self._read_knobs(facts, reader)

    def _note_default(self, row: OptionRow, value: object, reader: OptionReader) -> None:
        """Say what the software's default is where a step depends on it."""
        names = (row.option.removeprefix("--"), *row.older)
        if value is not None and row.path in IMPORTANT and not any(name in reader for name in names):
            note = f"{names[0]} = {value}: the default of {self.title}, which the files do not change"
            reader.assumptions.append(note)

    def _read_knobs(self, facts: JsonMapping, reader: OptionReader) -> JsonObject:
        engine = str(facts.get("plan.rl.rollout.engine"))
        if engine not in self.data.get("engine", {}):
            return {}
        knobs: JsonObject = {}
        rows = {path for section in self.sections(facts) for path in self._paths(section)}
        for knob, option in engine_words(engine, ENGINES[engine]).knobs.items():
            name = self.engine_option(engine, option).removeprefix("--")
            value = reader.take(name) if f"plan.serving.{engine}.{knob}" not in rows else None
            if value is not None and value != "":
                knobs[f"plan.serving.{engine}.{knob}"] = value
        return knobs

    def unsupported(self, facts: JsonMapping) -> Iterator[Problem]:
        """What the software does not run, by name, with others that do."""
        for fact, values in self.data["supports"].items():
            if fact in facts and facts[fact] not in values:
                given = f"{fact.rpartition('.')[2]} = {facts[fact]}"
                todo = self.words("todo").get(fact, "") or other_software(self.id, fact, facts[fact])
                expected = f"one of {', '.join(map(str, values))}: what {self.title} runs"
                yield Problem(path=fact, given=given, expected=expected, todo=todo)


IMPORTANT = (
    "workload.prompts", "workload.samples", "workload.mini_batch", "batch.mini_sequences", "batch.mini_batches",
    "workload.prompt_tokens.longest", "workload.response_tokens.longest", "limit.total", "plan.rl.rollout.tp",
    "all.nodes", "all.chips_per_node", "train.nodes", "train.chips_per_node", "rollout.nodes", "rollout.chips",
    "knob.memory", "pack.per_chip", "pack.sequences",
)  # fmt: skip
SOFTWARE = {
    id: PostTrainingSoftware(id=id, table="verl-rl" if id == "verl" else id)
    for id in ("verl", "openrlhf", "nemo-rl", "slime", "areal", "trl", "mindspeed-rl")
}
"""Software of post-training by the id of its target."""


@cache
def other_software(id: str, fact: str, value: object) -> str:
    """Targets that run what one does not."""
    able = [name for name, other in SOFTWARE.items() if name != id and value in other.data["supports"].get(fact, ())]
    return f"use --to {' or '.join(able[:3])}" if able else ""
