"""Say what an option that nobody read may change: by its software's own list of options, and by the words of its name.

    changes      the reader knows that it changes the step, and a scenario has no place for it
    may change   no list of the software holds it, or its name speaks of a decision and nothing says that it is harmless
    none         its software documents it, and it speaks of files, reports, rates or data

An option that may change the step widens the prediction by the decision that its name speaks of (`plan.unread`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from ridgeline.targets.imports.option_reader import STRANGE
from ridgeline.targets.options import has_recorded_options, options
from ridgeline.targets.tables import tables
from ridgeline.targets.target import Effect, Imported, Unread

OTHER = "other"  # the decision of an option whose name speaks of none
PARENTS = {
    "megatron-deepspeed": ("megatron", "deepspeed"),
    "nemo": ("megatron-bridge",),
    "primus": ("primus", "megatron"),
}
OFF = re.compile(r"(use|enable|enabled|load-in|do)\b.*", re.IGNORECASE)


def judge_unread(found: Imported) -> Imported:
    """The run with the effect of every option that was not read, and the decision it may touch."""
    weighed = found.settings.get("workload", {}).get("kind") == "rl"  # by the tables of its software, in reading
    return replace(found, unread=tuple(_judge_option(part, found.target, weighed) for part in found.unread))


def _judge_option(part: Unread, target: str, weighed: bool) -> Unread:
    decision = decision_of(part.option)
    if weighed:
        return replace(part, effect="changes" if part.matters else part.effect, decision=decision)
    return replace(part, effect=_effect(part, target, decision), decision=decision)


def _effect(part: Unread, target: str, decision: str) -> Effect:
    if part.matters:
        return "changes"
    name = plain_name(part.option)
    if name in tables("unread")["older"].get(target, ()):
        return "none"
    explained = part.why != STRANGE and not part.why.startswith("no option")
    if explained and any(fnmatchcase(name, pattern) for pattern in tables("unread")["beside"].get(target, ())):
        return "none"
    if not is_documented(part.option, target) and (part.why == STRANGE or has_recorded_options(target)):
        return "may change"
    is_off = str(part.value).lower() in ("false", "none", "null") and OFF.match(name.rpartition(".")[2]) is not None
    if decision == OTHER or is_off or is_quiet(name) or (explained and not has_recorded_options(target)):
        return "none"
    return "may change"


def plain_name(option: str) -> str:
    """An option without the dashes before it, its words joined by dashes, without the table of its kind of file.

    >>> plain_name("--Micro_Batch-size"), plain_name("train.lora_alpha")
    ('micro-batch-size', 'lora-alpha')
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", option.lstrip("-")).replace("_", "-").lower()
    return re.sub(r"^(train|accelerate|overrides|deepspeed)\.", "", name)


def decision_of(option: str) -> str:
    """The decision that the words of a name speak of: the first in the order of the table; `other` without any.

    >>> [decision_of(name) for name in ("--moe-num-experts", "grad_checkpointing", "seed", "MaxSeqLen", "n_gpu_tp")]
    ['experts', 'recompute', 'other', 'length', 'mesh']
    """
    words = set(re.split(r"[^a-z0-9]+", plain_name(option)))
    return next((decision for decision, marks in _decision_words() if words & marks), OTHER)


@cache
def _decision_words() -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((decision, frozenset(words.split())) for decision, words in tables("unread")["words"].items())


def is_quiet(name: str) -> bool:
    """Whether a documented option leaves the work of a step as it is."""
    last = name.rpartition(".")[2]
    return any(fnmatchcase(name, pattern) or fnmatchcase(last, pattern) for pattern in _quiet_patterns())


@cache
def _quiet_patterns() -> tuple[str, ...]:
    return tuple(pattern for patterns in tables("unread")["quiet"].values() for pattern in patterns)


def is_documented(option: str, target: str) -> bool:
    """Whether the software's recorded list has the option, or the table that it stands in.

    >>> is_documented("--lr", "megatron"), is_documented("--moe-num-experts", "megatron")
    (True, False)
    """
    lists = PARENTS.get(target, (target, "deepspeed"))
    names = frozenset().union(*(_documented_names(name) for name in lists if has_recorded_options(name)))
    parts = option.lstrip("-").replace("_", "-").split(".")
    above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return any(name in names and name not in ROOTS for name in above)


ROOTS = frozenset(("train", "accelerate", "deepspeed", "overrides", "model", "trainer", "data", "optim", "training"))


@cache
def _documented_names(target: str) -> frozenset[str]:
    known = options(target)
    names = {name.replace("_", "-") for name in (*known.values, *known.flags, *known.aliases)}
    return frozenset(names | {f"deepspeed.{name}" for name in names} if target == "deepspeed" else names)
