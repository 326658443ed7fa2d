"""Turn the words of a plain text tool (`tr`, `cut`, `wc`, `seq`, `printf` ...) and its input into what it prints.

Only forms whose answer is certain are known; for others the answer is None and whoever asked leaves it open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST = 1000  # numbers of `seq`
_FORM = re.compile(r"%(0?\d{0,2})([sd])")


def made(words: Sequence[str]) -> str | None:
    """What a command prints that reads nothing.

    >>> made(["seq", "2", "4"]), made(["printf", "%02d", "3"]), made(["echo", "-n", "a b"])
    ('2\\n3\\n4', '03', 'a b')
    """
    if words[0] == "echo":
        return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
    if words[0] == "seq":
        numbers = [int(word) for word in words[1:] if re.fullmatch(r"-?\d{1,6}", word)]
        if len(numbers) != len(words) - 1 or not 1 <= len(numbers) <= 3:
            return None
        first, step, last = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers)) or numbers
        found = range(first, last + (1 if step > 0 else -1), step) if step else range(0)
        return "\n".join(map(str, found)) if len(found) <= MOST else None
    if words[0] == "printf" and len(words) > 1:
        return _printed(words[1], list(words[2:]))
    return None


def _printed(form: str, values: list[str]) -> str | None:
    pieces = _FORM.findall(form)
    plain = all(
        kind == "s" or re.fullmatch(r"-?\d{1,15}", value) for (_, kind), value in zip(pieces, values, strict=False)
    )
    if len(pieces) != len(values) or not plain or "%" in _FORM.sub("", form):
        return None
    left = iter(values)

    def one(found: re.Match[str]) -> str:
        value = next(left)
        return format(int(value), f"{found.group(1)}d") if found.group(2) == "d" else value

    return _FORM.sub(one, form).replace("\\n", "\n").rstrip("\n")


def filtered(words: Sequence[str], text: str) -> str | None:
    """What a filter prints of its input.

    >>> filtered(["tr", ",", "\\\\n"], "0,1,2").split(), filtered(["wc", "-l"], "a\\nb")
    (['0', '1', '2'], '2')
    >>> filtered(["cut", "-d,", "-f2"], "a,b"), filtered(["awk", "-F:", "{print $1}"], "a:b")
    ('b', 'a')
    """
    name, rest = words[0], list(words[1:])
    lines = text.split("\n")
    if name == "wc" and rest in (["-l"], ["-w"]):
        return str(len(text.split() if rest == ["-w"] else lines if text else []))
    if name in ("head", "tail") and (found := re.fullmatch(r"(?:-n ?|-)?(\d{1,4})?", " ".join(rest))):
        count = int(found.group(1) or 10)
        return "\n".join(lines[:count] if name == "head" else lines[-count:])
    if name == "tr":
        return _translated(rest, text)
    if name == "cut":
        return _cut(rest, lines)
    if name == "awk":
        return _awk(rest, lines)
    return text.strip() if name in ("xargs", "cat") and not rest else None


def _awk(rest: list[str], lines: Sequence[str]) -> str | None:
    column = re.fullmatch(r"\{ ?print \$(\d|NF) ?;? ?\}", rest[-1]) if rest else None
    split = re.fullmatch(r"(?:-F ?(\S))?", " ".join(rest[:-1]))
    if column is None or split is None:
        return None
    found = []
    for line in lines:
        parts = line.split(split.group(1))
        number = len(parts) if column.group(1) == "NF" else int(column.group(1))
        found.append(_field(parts, number) if number else line)
    return "\n".join(found)


def _field(parts: Sequence[str], number: int) -> str:
    return parts[number - 1] if 1 <= number <= len(parts) else ""


def _translated(rest: list[str], text: str) -> str | None:
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
