"""Which words of Megatron mean what: modules, number formats, sharding strategies, positions."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ridgeline.targets.tables import names, words
from ridgeline.targets.target import refusal

ID = "megatron"

# a part of a layer -> the module that is recomputed
MODULES = words("megatron", "modules")
# of optimizer states
STATES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8-e4m3": "fp8"}
# of Megatron-FSDP
STRATEGIES = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
# (format, what shares a scale) -> Transformer Engine's recipe
RECIPES = {("fp8-e4m3", "tensor"): "tensorwise", ("fp8-e4m3", "block"): "blockwise", ("mxfp8", "block"): "mxfp8"}
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none", "alibi": "alibi"}
LONGEST = 4_000  # characters of a layout or a pattern
MOST = 20_000  # characters it may stand for
# options that change the step; the rest of what is not read decides nothing about it
CHANGES = names("megatron", "changes")
HARMLESS_VALUES = frozenset({"False", "None", "0", "0.0", "''", "", "[]", "none", "'no_shard'"})


def layout_of(placement: tuple[int, ...], mtp: int = 0) -> str:
    """The layout string of a placement.

    >>> layout_of((1, 2, 2, 1), mtp=1)
    'Et|t*2|t*2|tmL'
    """
    stages = ["" if count == 0 else "t" if count == 1 else f"t*{count}" for count in placement]
    stages[0] = "E" + stages[0]
    stages[-1] += ("" if mtp == 0 else "m" if mtp == 1 else f"m*{mtp}") + "L"
    return "|".join(stages)


def placement_of(layout: str) -> tuple[int, ...]:
    """Layers of each virtual stage that a layout string spells.

    >>> placement_of("Et*2|(tt|)*3t|mL")
    (2, 2, 2, 2, 1, 0)
    """
    text = re.sub(r"[\s,]", "", layout[: LONGEST + 1])
    text = re.sub(r"([EtmL])\*(\d{1,4})", lambda found: found.group(1) * int(found.group(2)), text)
    while len(layout) <= LONGEST and len(text) <= MOST:
        match = re.search(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text)
        if match is None:
            break
        text = text[: match.start()] + match.group(1) * int(match.group(2) or 1) + text[match.end() :]
    if re.search(r"[^EtmL|]", text) or len(text) > MOST or len(layout) > LONGEST:
        expected_text = "a pipeline layout such as 'Et*2|(tt|)*3L'"
        raise refusal(repr(layout[:60]), expected_text, path="--pipeline-model-parallel-layout")
    return tuple(stage.count("t") for stage in text.split("|"))


def pattern_of(flags: tuple[bool, ...]) -> str:
    """A list of ones and zeros as a Python expression, equal neighbours joined.

    >>> pattern_of((False, True, True))
    '([0]*1+[1]*2)'
    """
    runs: list[tuple[bool, int]] = []
    for flag in flags:
        if runs and runs[-1][0] == flag:
            runs[-1] = (flag, runs[-1][1] + 1)
        else:
            runs.append((flag, 1))
    return "(" + "+".join(f"[{int(flag)}]*{count}" for flag, count in runs) + ")"


def flags_of(pattern: str, layers: int) -> tuple[bool, ...]:
    """What a frequency means for each layer: N is one in N (the first), a list says it of each.

    >>> flags_of("2", 4), flags_of("([0]*1+[1]*2)", 3)
    ((True, False, True, False), (False, True, True))
    """
    text = re.sub(r"[\s'\"]", "", pattern)
    if re.fullmatch(r"[1-9]\d{0,3}", text):
        return tuple(layer % int(text) == 0 for layer in range(layers))
    before = ""
    while text != before and len(pattern) <= LONGEST and len(text) <= MOST:
        before = text
        text = re.sub(r"\[([\d,]*)\]\*(\d{1,4})", lambda at: f"[{','.join([at[1]] * min(int(at[2]), MOST))}]", text)
        text = text.replace("]+[", ",")
        text = re.sub(r"\(\[([\d,]*)\]\)", r"[\1]", text)
    match = re.fullmatch(r"\[([01](?:,[01])*)\]", text)
    if match is None or len(match.group(1).split(",")) != layers:
        raise refusal(repr(pattern[:60]), f"a number, or a list of {layers} ones and zeros", path="frequency")
    return tuple(flag == "1" for flag in match.group(1).split(","))


def changes_step(option: str, value: str = "True") -> bool:
    """Whether an option that was not read changes what a step costs.

    >>> changes_step("swap-attention"), changes_step("lr"), changes_step("model.freeze_vision_model", "False")
    (True, False, False)
    """
    return value not in HARMLESS_VALUES and any(fnmatchcase(option, pattern) for pattern in CHANGES)
