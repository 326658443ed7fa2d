"""Turn HCCL's choice between servers into its environment variable, and such a setting into levels that are checked.

    HCCL_ALGO="level0:NA;level1:<algorithm>[;level2:<algorithm>]"      or of one operator: allreduce=level0:NA;...

In quotes, since a shell takes a semicolon for the end of a command; files without them are read too. Level 0, inside a
server, is HCCL's own choice: NA.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ridgeline.comm.formats.program import Wrong

NAME = "HCCL_ALGO"
ALGORITHMS = ("ring", "H-D_R", "NHR", "NB", "AHC", "pipeline", "pairwise")
OPERATORS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
_LINE = re.compile(rf"(?:export\s+)?{NAME}=(\"?)([^\"\n]{{1,400}})\1\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HcclSetting:
    """Algorithms by level, for all operators or for one."""

    operator: str
    levels: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        levels = ", ".join(f"level {level} {algorithm}" for level, algorithm in self.levels)
        return f"{self.operator or 'every operator'}: {levels}"


def hccl_text(algorithm: str) -> str:
    """The setting for one algorithm between servers; `mesh` and one server leave all to HCCL."""
    between = algorithm if algorithm in ALGORITHMS else "NA"
    return f'{NAME}="level0:NA;level1:{between}"\n'


def read_hccl(path: Path, text: str) -> tuple[HcclSetting, ...]:
    """The settings of a file, or an `InputError` that says what is wrong."""
    wrong = Wrong(str(path))
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = _LINE.fullmatch(bare)
        if match is None:
            raise wrong(f"line {number}", repr(bare[:60]), f"{NAME}=level0:NA;level1:<algorithm>")
        found += [_setting(wrong, f"line {number}", part) for part in match.group(2).split("/")]
    if not found:
        raise wrong("", "no setting", f"{NAME}=level0:NA;level1:<algorithm>")
    return tuple(found)


def _setting(wrong: Wrong, at: str, text: str) -> HcclSetting:
    operator, equals, rest = text.partition("=")
    if not equals:
        operator, rest = "", text
    elif operator not in OPERATORS:
        raise wrong(at, repr(operator[:40]), f"an operator: {', '.join(OPERATORS)}")
    levels = []
    for index, part in enumerate(rest.split(";")):
        level, _, algorithm = part.partition(":")
        if level != f"level{index}" or index > 2:
            raise wrong(at, repr(part[:40]), f"level{min(index, 2)}:<algorithm>")
        known = ("NA",) if index == 0 else ("NA", *ALGORITHMS)
        if algorithm not in known:
            raise wrong(f"{at}: level{index}", repr(algorithm[:40]), f"one of {', '.join(known)}")
        levels.append((index, algorithm))
    return HcclSetting(operator=operator, levels=tuple(levels))
