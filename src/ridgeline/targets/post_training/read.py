"""Turn options of post-training that were gathered from files into settings of a scenario, none of them passed over.

An option that no list of the software knows is named as unknown. One that the list knows and nothing reads either
decides nothing (its table says why), or is said to change the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import MODELS
from ridgeline.targets.imports.model_names import UNKNOWN, named_by, with_depth
from ridgeline.targets.imports.option_reader import STRANGE, OptionReader, left_out, model_in, pick
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.options import options
from ridgeline.targets.post_training.settings import require_chips, settings_of
from ridgeline.targets.post_training.software import PostTrainingSoftware
from ridgeline.targets.target import ROLLOUT, Files, Imported, Unread, refusal

QUIET = ("", "false", "none", "null", "'none'", "'null'", "[]", "{}")
UNREAD = "an option that is not read: it may change the step"


def imported_post_training(
    software: PostTrainingSoftware, files: Files, reader: OptionReader, facts: JsonMapping, actor: JsonMapping
) -> Imported:
    """The run that facts and the actor's plan mean, with everything that reached neither."""
    refuse_other_algorithms(facts)
    require_batch(facts, reader)
    require_chips(facts, reader)
    model = _model(reader, files, str(facts.get("model.path") or ""))
    settings, chips = settings_of(facts, reader, actor)
    imported = Imported(
        target=software.id,
        settings=pick({"model": model}) | settings,
        unread=tuple(weigh_options(software, reader.unread({}))),
        assumptions=tuple(dict.fromkeys(reader.assumptions)),
        chips=chips,
    )
    return imported.with_notes(*left_out(files))


def other_algorithm(given: str, where: str) -> InputError:
    """The refusal of training that is no step with a rollout."""
    todo = 'reading it is not written: describe it by workload.kind = "rl" and its algorithm'
    return refusal(given, ROLLOUT, where=where, todo=todo)


def refuse_other_algorithms(facts: JsonMapping) -> None:
    """An `InputError` where files run an algorithm that no scenario describes."""
    algorithm = facts.get("workload.algorithm")
    if isinstance(algorithm, str) and algorithm.startswith("?"):
        raise refusal(algorithm[1:60], "an algorithm of post-training that a scenario has", path="algorithm")


def require_batch(facts: JsonMapping, reader: OptionReader) -> None:
    """Note a problem where files do not say how many samples a step has, and the software has no default."""
    missing = [] if {"workload.prompts", "batch.sequences"} & set(facts) else ["prompts of one step"]
    missing += [] if "workload.samples" in facts else ["samples of each prompt"]
    for expected in missing:
        todo = "read it together with the files that it builds on"
        reader.problems.append(Problem(path="", given="nothing", expected=expected, todo=todo))


def _model(reader: OptionReader, files: Files, path: str) -> str | JsonObject | None:
    """The catalog's model of a path, without blocks that predict further tokens, which are not trained."""
    name = checkout_of(files).model or model_in(files)
    if name is None and path:
        entry = named_by(path)
        if entry is None:
            reader.note("model", path[:100], UNKNOWN)
        else:
            name = entry[0]
            if entry[1]:
                reader.assumptions.append(f"model = {name}: by {entry[1]} in {path[:80]}")
    if name is not None and name in MODELS and MODELS[name].vision is not None:
        reader.assumptions.append("images = 0: what samples hold beside text is not in the files")
    trained = with_depth(name, 0)
    if trained != name:
        reader.assumptions.append("mtp = 0: blocks that predict further tokens are not trained")
    return trained


def weigh_options(software: PostTrainingSoftware, unread: Iterable[Unread]) -> Iterator[Unread]:
    """What was not read, with why it decides nothing, or that it changes the step, or that nobody knows it."""
    known = known_options(software)
    apart, matters = software.words("apart"), software.words("matters")
    for part in unread:
        if part.why != STRANGE:
            yield part
            continue
        name = part.option.lstrip("-")
        off = part.value.strip().lower() in QUIET or _is_neutral(software, name, part.value)
        changes = next((why for pattern, why in matters.items() if fnmatchcase(name, pattern)), "")
        quiet = next((why for pattern, why in apart.items() if fnmatchcase(name, pattern)), "")
        if changes:
            yield replace(part, why=changes, matters=not off)
        elif not is_known(name, known):  # before the patterns, which hold for options that there are
            yield replace(part, why=_strange(name, known, software.title), effect="may change")
        elif quiet:
            yield replace(part, why=quiet)
        else:
            yield replace(part, why=UNREAD, effect="none" if off else "may change")


def _is_neutral(software: PostTrainingSoftware, name: str, value: str) -> bool:
    """Whether a value says what a step does anyway."""
    patterns = software.data.get("neutral", {}).items()
    return any(fnmatchcase(name, pattern) and value.strip("'\"") in map(str, values) for pattern, values in patterns)


def known_options(software: PostTrainingSoftware) -> frozenset[str]:
    """Names that the software documents, those of engines and trainers that it passes on among them."""
    lists = [options(name) for name in software.data["lists"]]
    names = {name for known in lists for name in (*known.values, *known.flags)} | set(software.data.get("open", ()))
    names |= {name for name in software.words("apart") if "*" not in name}
    for engine, prefix in software.data.get("engine", {}).items():
        inner = options(engine)
        for name in (*inner.values, *inner.flags):
            names.add(software.engine_option(engine, name).lstrip("-") if prefix else name)
    return frozenset(names)


def is_known(name: str, known: frozenset[str]) -> bool:
    """Whether a software documents an option, or a table that is open holds it."""
    return name in known or any(fnmatchcase(name, pattern) for pattern in known if "*" in pattern)


def _strange(name: str, known: frozenset[str], title: str) -> str:
    near = get_close_matches(name, sorted(known), n=3, cutoff=0.75)
    return f"no option of {title} that is recorded" + (f"; near: {', '.join(near)}" if near else "")
