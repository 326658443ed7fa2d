"""Whether a condition of a shell script holds, what a scheduler tells it, and what a branch would set."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from ridgeline.targets.shell_expand import Script, arithmetic, known, mark, shown, told_by_running
from ridgeline.targets.shell_lexer import Word
from ridgeline.targets.shell_parse import Case, Chain, Command, For, Group, If, Statement, While

ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]{0,80})\])?(\+?)=")
OURS = frozenset({"cuda", "gpu", "nvidia", "GPU"})  # what a script that asks for its own device is taken to run on
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-lt": operator.lt,
    "-ge": operator.ge,
    "-le": operator.le,
}


def asked(text: str) -> dict[str, str]:
    """What Slurm tells a script that asks it for nodes."""
    found: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH\s+(.{1,200})$", text, re.MULTILINE):
        nodes = re.match(r"(?:--nodes[= ]|-N ?)(\d{1,5})\b", line)
        each = re.match(r"--(?:gres[= ]gpu:(?:[\w.-]+:)?|gpus-per-node[= ](?:[\w.-]+:)?)(\d{1,3})\b", line)
        tasks = re.match(r"--(?:n?tasks-per-node)[= ](\d{1,3})\b", line)
        if tasks:
            found["SLURM_NTASKS_PER_NODE"] = tasks.group(1)
        if nodes:
            found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes.group(1))
        if each:
            found |= dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), each.group(1))
    return found


def compared(script: Script, raw: list[str]) -> bool | None:
    unsure = any(told_by_running(text) for text in raw)
    match [known(text) for text in raw]:
        case ["-z", value]:
            return None if unsure else not value
        case ["-n", value] | [value]:
            return None if unsure else bool(value)
        case [("-f" | "-d" | "-e" | "-s" | "-x" | "-r" | "-L" | "-w"), _]:
            return False
        case [("-v"), name]:
            return name in script.variables
        case ["-z" | "-n" as how]:
            return how == "-z"
        case [left, ("=" | "==" | "!=") as how, right]:
            if unsure and not (right in OURS or left in OURS):
                script.notes.append(f"whether {shown(' '.join(raw))[:60]} holds")
                return None
            same = True if unsure else left == right or ("*" in right and fnmatchcase(left, right))
            return same is (how != "!=")
        case [left, "=~", right]:
            return None if unsure else matches(script, left, right)
        case [("=" | "==" | "!=") as how, right]:  # an unquoted variable that is not set
            return (right == "") is (how != "!=")
        case [left, how, right] if how in _COMPARE:
            numbers = [arithmetic(script, text) if text else None for text in (left, right)]
            if numbers[0] is None or numbers[1] is None:
                return None if unsure else False
            return _COMPARE[how](numbers[0], numbers[1])
        case _:
            script.notes.append(f"whether {shown(' '.join(raw))[:60]} holds")
            return None


def matches(script: Script, left: str, right: str) -> bool | None:
    """A pattern of plain characters, anchors, groups and alternatives; others are not followed."""
    if re.fullmatch(r"[\w /=-]{1,80}", right):
        return right in left
    nested = re.search(r"[+*]\)[+*{]", right)
    if not re.fullmatch(r"[\w^$|().\-/ \[\]+*?:,=]{1,80}", right) or nested or len(left) > 300:
        return None
    try:
        found = re.search(right, left)
    except re.error:
        return None
    if found is not None:
        script.variables["BASH_REMATCH"] = [found.group(0), *(group or "" for group in found.groups())]
    return found is not None


def calculated(script: Script, text: str) -> int | None:
    """What an arithmetic command is worth, variables set on the way; None where that is left open.

    >>> script = Script(variables={"N": ["3"]})
    >>> calculated(script, "N += 2"), calculated(script, "M = N * 2, M > 9"), script.variables["M"]
    (5, 1, ['10'])
    """
    worth: int | None = None
    for part in re.split(r",(?![^(]*\))", text[:1000]):
        steps = re.fullmatch(r"\s*(?:(\w+)\s*(\+\+|--)|(\+\+|--)\s*(\w+))\s*", part)
        sets = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.+)", part, re.DOTALL)
        if steps:
            name, sign = steps.group(1) or steps.group(4), (steps.group(2) or steps.group(3))[0]
            before = arithmetic(script, name) if name in script.variables else 0
            after = None if before is None else before + (1 if sign == "+" else -1)
            worth = after if steps.group(3) else before
            script.variables[name] = [mark(name) if after is None else str(after)]
        elif sets:
            name, sign, other = sets.groups()
            worth = arithmetic(script, f"{name} {sign} ({other})" if sign else other)
            script.variables[name] = [mark(name) if worth is None else str(worth)]
        else:
            worth = arithmetic(script, part) if part.strip() else 1
    return worth


def assigned_in(statements: Iterable[Statement], depth: int) -> set[str]:
    """Names that statements give a value."""
    found: set[str] = set()
    for statement in statements if depth < 10 else ():
        match statement:
            case Command(words=words):
                for word in words:
                    text = word.parts[0].text if isinstance(word, Word) and word.parts else ""
                    assigns = ASSIGN.match(text)
                    found |= {assigns.group(1)} if assigns else set()
            case Chain(parts=parts):
                found |= assigned_in((part for _, part in parts), depth + 1)
            case If(arms=arms, otherwise=otherwise):
                found |= assigned_in((one for _, body in arms for one in body), depth + 1)
                found |= assigned_in(otherwise, depth + 1)
            case Case(arms=choices):
                found |= assigned_in((one for _, body in choices for one in body), depth + 1)
            case For(body=body) | While(body=body) | Group(body=body):
                found |= assigned_in(body, depth + 1)
            case _:
                pass
    return found
