"""Turn layers by virtual stage into Megatron's words for them, and back.

A layout string spells every virtual stage: E the embedding, t a layer, m a layer of multi-token prediction, L the
output; `|` ends a stage, `t*3` and `(tt|)*3` repeat, commas are for the eye.
"""

from __future__ import annotations

import re

from ridgeline.core.errors import InputError, Problem

LONGEST = 4_000  # characters of a layout or a pattern
MOST = 20_000  # characters it may stand for


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
        found = re.search(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text)
        if found is None:
            break
        text = text[: found.start()] + found.group(1) * int(found.group(2) or 1) + text[found.end() :]
    if re.search(r"[^EtmL|]", text) or len(text) > MOST or len(layout) > LONGEST:
        expected = "a pipeline layout such as 'Et*2|(tt|)*3L'"
        raise InputError(Problem(path="--pipeline-model-parallel-layout", given=repr(layout[:60]), expected=expected))
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
        text = re.sub(r"\[([\d,]*)\]\*(\d{1,4})", _repeated, text)
        text = text.replace("]+[", ",")
        text = re.sub(r"\(\[([\d,]*)\]\)", r"[\1]", text)
    found = re.fullmatch(r"\[([01](?:,[01])*)\]", text)
    if found is None or len(found.group(1).split(",")) != layers:
        expected = f"a number, or a list of {layers} ones and zeros"
        raise InputError(Problem(path="frequency", given=repr(pattern[:60]), expected=expected))
    return tuple(flag == "1" for flag in found.group(1).split(","))


def _repeated(found: re.Match[str]) -> str:
    return "[" + ",".join([found.group(1)] * min(int(found.group(2)), MOST)) + "]"
