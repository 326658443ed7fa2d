"""Whether a condition of a shell script holds, what a scheduler tells it, and what a branch would set."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from itertools import chain

from ridgeline.targets.imports.reading_budget import ReadingBudget
from ridgeline.targets.imports.shell_expand import Script, arithmetic, display_word, mark, strip_marks, told_by_running
from ridgeline.targets.imports.shell_pattern import matches_pattern
from ridgeline.targets.imports.shell_syntax import Case, Chain, Command, For, Group, If, Statement, While, Word

ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]{0,80})\])?(\+?)=")
OURS = frozenset({"cuda", "gpu", "nvidia", "GPU"})  # what a script that asks for its own device is taken to run on
FILE_TESTS = frozenset({"-f", "-d", "-e", "-s", "-x", "-r", "-L", "-w"})
_COMPARE = frozenset({"-eq", "-ne", "-gt", "-lt", "-ge", "-le"})  # as functions of `operator` are called


_SBATCH = {  # an option of Slurm -> the variables that it sets
    r"--n?tasks-per-node[= ](\d{1,3})\b": ("SLURM_NTASKS_PER_NODE",),
    r"(?:--nodes[= ]|-N ?)(\d{1,5})\b": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    r"--(?:gres[= ]gpu:|gpus-per-node[= ])(?:[\w.-]+:)?(\d{1,3})\b": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


def sbatch_options(text: str) -> dict[str, str]:
    """What Slurm tells a script that asks it for nodes."""
    variables: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH\s+(.{1,200})$", text, re.MULTILINE):
        for pattern, names in _SBATCH.items():
            if match := re.match(pattern, line):
                variables |= dict.fromkeys(names, match.group(1))
    return variables


def compare_words(script: Script, raw: list[str]) -> bool | None:
    unsure = any(told_by_running(text) for text in raw)
    match [strip_marks(text) for text in raw]:
        case ["-z", value]:
            return None if unsure else not value
        case ["-n", value] | [value]:
            return None if unsure else bool(value)
        case [how, _] if how in FILE_TESTS:
            return False
        case [("-v"), name]:
            return name in script.variables
        case ["-z" | "-n" as how]:
            return how == "-z"
        case [left, ("=" | "==" | "!=") as how, right]:
            if unsure and not (right in OURS or left in OURS):
                script.notes.append(f"whether {display_word(' '.join(raw))[:60]} holds")
                return None
            same = True if unsure else left == right or ("*" in right and matches_pattern(script.budget, left, right))
            return same is (how != "!=")
        case [left, "=~", right]:
            return None if unsure else matches(script, left, right)
        case [("=" | "==" | "!=") as how, right]:  # an unquoted variable that is not set
            return (right == "") is (how != "!=")
        case [left, how, right] if how in _COMPARE:
            numbers = [arithmetic(script, text) if text else None for text in (left, right)]
            if None in numbers:
                return None if unsure else False
            return bool(getattr(operator, how[1:])(*numbers))
        case _:
            script.notes.append(f"whether {display_word(' '.join(raw))[:60]} holds")
            return None


def matches(script: Script, left: str, right: str) -> bool | None:
    """A pattern of plain characters, anchors, groups and alternatives; others are not followed."""
    if re.fullmatch(r"[\w /=-]{1,80}", right):
        return right in left
    repeats_group = re.search(r"\)[+*]", right) and re.search(r"[|?]|[+*].*[+*]", right)  # may try every split
    if not re.fullmatch(r"[\w^$|().\-/ \[\]+*?:,=]{1,80}", right) or repeats_group or len(left) > 300:
        return None
    script.budget.spend(len(left) ** (1 + len(re.findall(r"[+*]", right))) // 10)
    try:
        match = re.search(right, left)
    except re.error:
        return None
    if match is not None:
        script.variables["BASH_REMATCH"] = [match.group(0), *(group or "" for group in match.groups())]
    return match is not None


def calculate_let(script: Script, text: str) -> int | None:
    """What an arithmetic command is worth, variables set on the way; None where that is left open.

    >>> script = Script(variables={"N": ["3"]})
    >>> calculate_let(script, "N += 2"), calculate_let(script, "M = N * 2, M > 9"), script.variables["M"]
    (5, 1, ['10'])
    """
    worth: int | None = None
    script.budget.spend(len(text[:1000]) ** 2 // 10)
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
            name, sign, operand = sets.groups()
            worth = arithmetic(script, f"{name} {sign} ({operand})" if sign else operand)
            script.variables[name] = [mark(name) if worth is None else str(worth)]
        else:
            worth = arithmetic(script, part) if part.strip() else 1
    return worth


def assigned_in(budget: ReadingBudget, statements: Iterable[Statement], depth: int = 0) -> set[str]:
    """Names that statements give a value."""
    names: set[str] = set()
    for statement in statements if depth < 10 else ():
        budget.spend(20)
        match statement:
            case Command(words=words):
                budget.spend_items(len(words), 10)
                for word in words:
                    text = word.parts[0].text if isinstance(word, Word) and word.parts else ""
                    assigns = ASSIGN.match(text)
                    names |= {assigns.group(1)} if assigns else set()
            case Chain(parts=parts):
                names |= assigned_in(budget, (part for _, part in parts), depth + 1)
            case If() | Case():
                bodies = [body for _, body in statement.arms]
                bodies += [statement.otherwise] if isinstance(statement, If) else []
                names |= assigned_in(budget, chain.from_iterable(bodies), depth + 1)
            case For(body=body) | While(body=body) | Group(body=body):
                names |= assigned_in(budget, body, depth + 1)
            case _:
                pass
    return names


MOST = 1000  # numbers of `seq`
_FORM = re.compile(r"%(0?\d{0,2})([sd])")


def sequence_output(words: Sequence[str]) -> str | None:
    """What a command prints that reads nothing.

    >>> (sequence_output(["seq", "2", "4"]),
    ...  sequence_output(["printf", "%02d", "3"]),
    ...  sequence_output(["echo", "-n", "a b"]),)
    ('2\\n3\\n4', '03', 'a b')
    """
    if words[0] == "echo":
        return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
    if words[0] == "seq":
        numbers = [int(word) for word in words[1:] if re.fullmatch(r"-?\d{1,6}", word)]
        if len(numbers) != len(words) - 1 or not 1 <= len(numbers) <= 3:
            return None
        first, step, last = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers)) or numbers
        numbers_between = range(first, last + (1 if step > 0 else -1), step) if step else range(0)
        return "\n".join(map(str, numbers_between)) if len(numbers_between) <= MOST else None
    if words[0] == "printf" and len(words) > 1:
        return _format_output(words[1], list(words[2:]))
    return None


def _format_output(form: str, values: list[str]) -> str | None:
    pieces = _FORM.findall(form)
    plain = all(
        kind == "s" or re.fullmatch(r"-?\d{1,15}", value) for (_, kind), value in zip(pieces, values, strict=False)
    )
    if len(pieces) != len(values) or not plain or "%" in _FORM.sub("", form):
        return None
    values_left = iter(values)

    def fill_directive(found: re.Match[str]) -> str:
        value = next(values_left)
        return format(int(value), f"{found.group(1)}d") if found.group(2) == "d" else value

    return _FORM.sub(fill_directive, form).replace("\\n", "\n").rstrip("\n")


def filter_output(words: Sequence[str], text: str) -> str | None:
    """What a filter prints of its input.

    >>> filter_output(["tr", ",", "\\\\n"], "0,1,2").split(), filter_output(["wc", "-l"], "a\\nb")
    (['0', '1', '2'], '2')
    >>> filter_output(["cut", "-d,", "-f2"], "a,b"), filter_output(["awk", "-F:", "{print $1}"], "a:b")
    ('b', 'a')
    """
    name, arguments = words[0], list(words[1:])
    lines = text.split("\n")
    if name == "wc" and arguments in (["-l"], ["-w"]):
        return str(len(text.split() if arguments == ["-w"] else lines if text else []))
    if name in ("head", "tail") and (match := re.fullmatch(r"(?:-n ?|-)?(\d{1,4})?", " ".join(arguments))):
        count = int(match.group(1) or 10)
        return "\n".join(lines[:count] if name == "head" else lines[-count:])
    if name == "tr":
        return _translate_characters(arguments, text)
    if name == "cut":
        return _cut(arguments, lines)
    if name == "awk":
        return _awk(arguments, lines)
    return text.strip() if name in ("xargs", "cat") and not arguments else None


def _awk(rest: list[str], lines: Sequence[str]) -> str | None:
    column = re.fullmatch(r"\{ ?print \$(\d|NF) ?;? ?\}", rest[-1]) if rest else None
    split = re.fullmatch(r"(?:-F ?(\S))?", " ".join(rest[:-1]))
    if column is None or split is None:
        return None
    output_lines = []
    for line in lines:
        parts = line.split(split.group(1))
        number = len(parts) if column.group(1) == "NF" else int(column.group(1))
        output_lines.append(_field(parts, number) if number else line)
    return "\n".join(output_lines)


def _field(parts: Sequence[str], number: int) -> str:
    return parts[number - 1] if 1 <= number <= len(parts) else ""


def _translate_characters(rest: list[str], text: str) -> str | None:
    signs = {"\\n": "\n", "[:upper:]": "A-Z", "[:lower:]": "a-z", "[:space:]": " \n\t"}
    if len(rest) == 2 and rest[0] == "-d":
        gone = signs.get(rest[1], rest[1])
        return "".join(char for char in text if char not in gone) if len(gone) <= 3 else None
    old, new = (signs.get(word, word) for word in rest) if len(rest) == 2 else ("", "")
    if (old, new) in (("A-Z", "a-z"), ("a-z", "A-Z")):
        return text.lower() if new == "a-z" else text.upper()
    return text.replace(old, new) if len(old) == len(new) == 1 else None


def _cut(rest: list[str], lines: Sequence[str]) -> str | None:
    text = " ".join(rest)
    split = re.search(r"-d ?(\S| )", text)
    column = re.search(r"-f ?(\d)$|-f ?(\d) ", text)
    if split is None or column is None:
        return None
    return "\n".join(_field(line.split(split.group(1)), int(column.group(1) or column.group(2))) for line in lines)
