"""Turn what was asked (a model, systems, sizes, pins) into scenarios to search, and a found plan into a scenario file.

Nothing but a model and a system is needed; what is left out takes a default that is stated as an assumption.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.core.table import keys
from ridgeline.hardware.load import resized, system_table
from ridgeline.hardware.load import system as load_system
from ridgeline.models.load import model as load_model
from ridgeline.plan.plan import Plan, Switches
from ridgeline.plan.plan_table import scenario_text
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import apply_settings, assemble
from ridgeline.search.find_plan import HEADROOM
from ridgeline.search.objectives import Goal, sizes_of
from ridgeline.search.pins import Wanted, pins_of
from ridgeline.search.space import Pins

SEQ, GLOBAL_BATCH = 8192, 1024
LARGEST = 16384  # chips that are tried for a deadline unless a range is given
# the software that a vendor's chips are usually trained with; everything else under Megatron
ENGINE = "megatron-core"
ENGINE_OF = MappingProxyType({"Google": "maxtext", "Huawei": "mindspeed"})
KEPT = ("engine", "precision", *keys(Switches))  # of a plan that came with a scenario; the rest is searched


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What was asked.

    table      as a scenario file: model and whatever else was given; `system` where no other system is named
    systems    names or files; each is searched
    settings   `key=value` upon the table, none of them about the plan
    chips      sizes to search, as a range or a list; absent: as the systems say
    """

    table: Mapping[str, Any]
    systems: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    wish: Wanted = field(default_factory=Wanted)
    goal: Goal = Goal()
    chips: str | None = None
    headroom: float = HEADROOM
    top: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One system of one size under one engine: a space to search.

    table    the scenario as a file would say it, without its plan
    given    whether the scenario came with a plan of its own, which is then compared with what is found
    """

    scenario: Scenario
    pins: Pins
    table: Mapping[str, Any]
    given: bool = False


def read_request(name: str) -> dict[str, Any]:
    """The scenario table that a model's name, a model's file or a scenario file means."""
    path = Path(name)
    if path.suffix.lower() in SUFFIXES and path.is_file():
        table = read_table(path).data
        if "model" in table and ("workload" in table or "system" in table or "plan" in table):
            return _beside(table, path.parent)
    load_model(name)  # an unknown name is told at once, with its near matches
    return {"model": name}


def _beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The table with paths that begin at the file's own folder; one that leaves it is refused."""
    for key in ("model", "system"):
        ref = table.get(key)
        if isinstance(ref, str) and (folder / ref).exists() and (ref.endswith(SUFFIXES) or "/" in ref):
            target = (folder / ref).resolve()
            if not target.is_relative_to(folder.resolve()):
                expected = "a path inside the file's own folder"
                raise InputError(Problem(path=key, given=repr(ref), expected=expected, todo="copy it there"))
            table[key] = str(target)
    return table


def cases(ask: PlanRequest, skipped: list[str]) -> Iterator[Case]:
    """Every space to search, sizes in rising order; those that cannot be built are told in `skipped`."""
    for ref in ask.systems or (ask.table.get("system"),):
        for sized in sizes(ask, ref, skipped):
            yield from engines(ask, sized)


def engines(ask: PlanRequest, ref: Any) -> Iterator[Case]:
    """One system under each engine asked for."""
    for engine in ask.wish.engines or (None,):
        yield case(ask, ref, engine)


def sizes(ask: PlanRequest, ref: Any, skipped: list[str]) -> Iterator[Any]:
    """What names the system at each size."""
    text = ask.chips
    if text is None and ask.goal.objective == "chips":
        text = f"8..{LARGEST}"
    if text is None or ref is None:
        yield ref
        return
    if not isinstance(ref, str):
        expected = "a system named by --on when sizes are swept"
        raise InputError(Problem(path="--chips", given="a system table", expected=expected, todo="add --on"))
    whole = load_system(ref)
    domain = whole.tiers[0].chips if whole.tiers else 1
    for chips in sizes_of(text, domain):
        sized = resized(ref, chips)
        try:
            load_system(sized)
        except InputError as wrong:
            skipped.append(f"{chips} chips left out: {wrong}")
        else:
            yield sized


def case(ask: PlanRequest, ref: Any, engine: str | None) -> Case:
    """The space of one system; everything wrong with the input at once as an `InputError`."""
    table = copy.deepcopy(dict(ask.table))
    if ref is not None:
        table["system"] = ref
    problems = apply_settings(table, ask.settings)
    own = table.pop("plan", {})
    own = own if isinstance(own, Mapping) else {}
    notes = _defaults(table, own, engine)
    kept = {key: value for key, value in own.items() if key in KEPT}
    kept = {"engine": _usual(table), "precision": "bf16", **kept, **({"engine": engine} if engine else {})}
    settled = {"dp": 1, "microbatch": 1, "recompute": "none", **kept}
    built, found = assemble({**table, "plan": settled})
    problems += [problem for problem in found if built is None or not problem.path.startswith("plan.")]
    if problems or built is None:
        raise InputError(dict.fromkeys(problems))
    given = assemble({**table, "plan": {**own, **kept}})[0] if own else None
    plan = given.plan if given else built.plan
    built = replace(built, plan=plan, assumptions=tuple(dict.fromkeys((*notes, *built.assumptions))))
    pins = pins_of(ask.wish, built, problems)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return Case(scenario=built, pins=pins, table=table, given=given is not None)


def _defaults(table: dict[str, Any], plan: Mapping[str, Any], engine: str | None) -> list[str]:
    """Fill in what the workload leaves out; what was assumed, a line each."""
    notes = []
    work = dict(table["workload"]) if isinstance(table.get("workload"), Mapping) else {}
    if "seq" not in work:
        work["seq"] = _longest(table)
        notes.append(f"seq = {work['seq']}: not given")
    if "global_batch" not in work and "tokens_per_batch" not in work and work.get("kind", "train") == "train":
        work["global_batch"] = GLOBAL_BATCH
        notes.append(f"global_batch = {GLOBAL_BATCH} sequences: not given")
    if "optimizer" not in work:
        notes.append("optimizer = adamw with fp32 states and master weights: not given")
    table["workload"] = {"kind": "train", **work}
    if engine is None and "engine" not in plan:
        notes.append(f"engine = {_usual(table)}: not given")
    if "precision" not in plan:
        notes.append("precision = bf16 unless searched: not given")
    return notes


def _longest(table: Mapping[str, Any]) -> int:
    """The default sequence, or the longest the model was made for."""
    try:
        context = load_model(table["model"]).context
    except (InputError, KeyError):
        context = None  # told when the scenario is built
    return min(SEQ, context or SEQ)


def _usual(table: Mapping[str, Any]) -> str:
    """The software the system's chips are usually trained with."""
    try:
        return ENGINE_OF.get(load_system(table["system"]).chip.vendor, ENGINE)
    except (InputError, KeyError, TypeError):
        return ENGINE


def scenario_file(table: Mapping[str, Any], plan: Plan, note: str) -> str:
    """The text of a scenario file that stands on its own: files it would refer to are written into it."""
    whole = dict(table)
    for key, read in (("model", _model_table), ("system", system_table)):
        ref = whole.get(key)
        if isinstance(ref, str) and Path(ref).exists() and (ref.endswith(SUFFIXES) or Path(ref).is_dir()):
            whole[key] = read(Path(ref))
    return scenario_text(whole, plan, note)


def _model_table(path: Path) -> dict[str, Any]:
    return read_table(path / "config.json" if path.is_dir() else path).data
