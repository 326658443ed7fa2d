"""Turn the words of a shell script into what they become: variables, defaults, arithmetic, output of plain commands."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.imports.python_values import ARITHMETIC, ORDER
from ridgeline.targets.imports.reading_budget import ReadingBudget, replaced_length
from ridgeline.targets.imports.run_files import Checkout
from ridgeline.targets.imports.shell_pattern import match_ends
from ridgeline.targets.imports.shell_syntax import Chain, Command, Word, closing_at

LARGEST = 2**53
OVERFLOW = 2**63  # where the shell's numbers begin again
_WHOLE = {**ARITHMETIC, ast.Div: operator.floordiv}  # whole numbers alone


def evaluate_arithmetic(text: str) -> int | None:
    """What an expression of numbers is worth; None for what is none.

    >>> (evaluate_arithmetic("2 ** 22 / 1024"),
    ...  evaluate_arithmetic("(4 > 3 && !0) ? 5 : 6"),
    ...  evaluate_arithmetic("import os"),)
    (4096, 5, None)
    """
    chosen = re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", text)  # C's choice, which Python spells otherwise
    python_text = f"({chosen.group(2)}) if ({chosen.group(1)}) else ({chosen.group(3)})" if chosen else text
    python_text = re.sub(r"!(?!=)", " not ", python_text.replace("&&", " and ").replace("||", " or "))
    python_text = re.sub(r"(?<![\w.])0+(?=\d)", "", python_text)
    try:
        return _evaluate(ast.parse(python_text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < LARGEST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
        operand = _evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return int(operand == 0)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _evaluate(node.left), _evaluate(node.right)
        if abs(base) <= 2**20 and 0 <= power <= 64 and abs(base) ** power < LARGEST:
            return int(base**power)
    if isinstance(node, ast.BinOp) and type(node.op) in _WHOLE:
        result = int(_WHOLE[type(node.op)](_evaluate(node.left), _evaluate(node.right)))
        if abs(result) < OVERFLOW:
            return result
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in ORDER:
        return int(ORDER[type(node.ops[0])](_evaluate(node.left), _evaluate(node.comparators[0])))
    if isinstance(node, ast.IfExp):
        return _evaluate(node.body if _evaluate(node.test) else node.orelse)
    if isinstance(node, ast.BoolOp):
        truths = [_evaluate(value) != 0 for value in node.values]
        return int(all(truths) if isinstance(node.op, ast.And) else any(truths))
    raise ValueError("not whole-number arithmetic")


# what a hostile script may cost: lengths are bounded so that text made of nothing but openings is read in linear time
MOST_WORDS = 20_000  # of all commands, and of one array
LONGEST = 1_000_000  # characters of one variable
DEEPEST = 20  # expansions inside expansions
EXPAND_WORK = 20  # of expanding a word, or one thing in it
SPLIT_WORK = 5  # of splitting a text into words, for each character
SUM_WORK = 10  # of reading a sum, for each character
SUM_ITEMS = 3
WINDOW = 4000  # characters of ${...}, $(...), $((...)) and backquotes
OPENS, CLOSES, BLANK, DOLLAR = "\ue000", "\ue001", "\ue002", "\ue003"
# operators inside a mark, which a text that is parsed again must not be split at
HIDDEN = {ord(sign): chr(0xE010 + at) for at, sign in enumerate("()|&;<>$#{}[]")}
SHOWN = {ord(hidden): chr(sign) for sign, hidden in HIDDEN.items()}
_MARK = re.compile(f"{OPENS}([^{CLOSES}]*){CLOSES}")
_EXPANSION = re.compile(r"[$`]")
_NAME = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?!$]")
_BRACED = re.compile(r"(!?)(#?)(\w+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)


@dataclass(slots=True)
class Script:
    """What was learnt of a script.

    variables   by name, an array as several words
    commands    as words, in order; what is left open reads as it was written (`$NAME`)
    notes       what was left out
    texts       files that the script writes: names as it spells them, and their text
    arguments   the words it was called with
    asked       numbers of words that it takes no default for and was not called with
    slurm_variables   what Slurm is asked for by the first script that is handed to it
    budget      what following it may still cost
    inside      functions and other scripts that are being followed, whose words are not the script's
    capture     what a command of plain tools and the script's functions would print; None where nobody can tell
    """

    variables: dict[str, list[str]] = field(default_factory=dict)
    exported_names: set[str] = field(default_factory=set)
    commands: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    asked: set[int] = field(default_factory=set)
    inside: int = 0
    budget: ReadingBudget = field(default_factory=ReadingBudget)
    slurm_variables: dict[str, str] = field(default_factory=dict)
    capture: Callable[[str], str | None] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Exported variables and their values."""
        return {name: display_word(" ".join(self.variables.get(name, []))) for name in self.exported_names}


def mark(name: str) -> str:
    """The mark of something left open: one word without quotes, whatever it says, also when it is parsed again."""
    plain = re.sub(r"[\"'\\`]", "", re.sub(r"\s+", BLANK, name))
    return f"{OPENS}{plain.translate(HIDDEN)}{CLOSES}"


def display_word(text: str) -> str:
    """A text as it was written, where something in it is left open.

    >>> display_word("a" + mark("B"))
    'a$B'
    """
    return _MARK.sub(lambda match: f"${match.group(1)}", text).replace(BLANK, " ").translate(SHOWN)


def strip_marks(text: str) -> str:
    """A text with nothing in place of what is left open."""
    return _MARK.sub("", text)


def is_open(text: str) -> bool:
    """Whether something in a text is left open."""
    return OPENS in text


def told_by_running(text: str) -> bool:
    """Whether what is left open in a text is the output of a command or a sum of such, not a variable without value."""
    return OPENS in text and HIDDEN[ord("(")] in text


def expand(script: Script, word: Word, split: bool = True, depth: int = 0) -> list[str]:
    """The words a word becomes: variables filled in, unquoted ones split at blanks."""
    if depth > DEEPEST:
        return []
    match = re.fullmatch(r"\$\{(\w+|@)(?:\[[@*]\])?\}|\$([@*])", word.text) if split else None
    if match and (word.text.endswith(("[@]}", "[*]}")) or match.group(1) == "@" or match.group(2)):
        values = script.arguments if match.group(1) in ("@", None) else script.variables.get(match.group(1), [])
        is_quoted = bool(word.parts) and word.parts[0].quote == "double"
        script.budget.spend_items(len(values))
        return list(values) if is_quoted else [piece for value in values for piece in split_words(script, value)]
    pieces = [""]
    script.budget.spend(EXPAND_WORK)
    for part in word.parts:
        script.budget.spend_text(len(part.text))
        if part.quote == "single":
            pieces[-1] += part.text
            continue
        text = _strip_escapes(part.text) if part.quote == "double" else part.text
        filled_text = fill(script, text, depth).replace(DOLLAR, "$")
        if part.quote == "double" or not split or filled_text == text:
            script.budget.spend_text(len(pieces[-1]) + len(filled_text))
            pieces[-1] += filled_text
        else:
            inner = split_words(script, filled_text)
            pieces[-1] += inner[0] if inner else ""
            pieces += inner[1:]
    keep = any(part.quote != "plain" for part in word.parts)
    return pieces if keep or not split else [piece for piece in pieces if piece]


def parsed_again(script: Script, word: Word) -> str:
    """A word of `eval`: quotes inside values stay for the second reading, lines of unquoted ones are joined."""
    text = "".join(expand(script, word, split=False))
    return " ".join(text.split()) if all(part.quote == "plain" for part in word.parts) else text


def _strip_escapes(text: str) -> str:
    """A double-quoted text without the backslashes that the shell takes away; a dollar behind one is marked plain."""
    plain = {"\n": " ", "$": DOLLAR}
    return re.sub(r'\\([\n"\\$])', lambda match: plain.get(match.group(1), match.group(1)), text)


def split_words(script: Script, text: str) -> list[str]:
    """Blank-separated words, quotes inside a value taken as quotes (scripts rely on `eval` for that, or err)."""
    script.budget.spend_text(len(text), SPLIT_WORK)
    script.budget.spend_items(len(text) // 2)
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def fill(script: Script, text: str, depth: int = 0) -> str:
    """The text with variables, arithmetic and defaults filled in."""
    if "$" not in text and "`" not in text:
        return text
    if depth > DEEPEST:
        return mark(text[:40])
    pieces: list[str] = []
    at = 0
    while begins := _EXPANSION.search(text, at):
        piece, end = _fill_braces(script, text, begins.start(), depth)
        script.budget.spend(EXPAND_WORK)
        script.budget.spend_text(len(piece))
        pieces += (text[at : begins.start()], piece)
        at = end
    return "".join(pieces) + text[at:]


def _fill_braces(script: Script, text: str, start: int, depth: int) -> tuple[str, int]:
    """What stands for the expansion that begins here, and where the text goes on."""
    if text[start] == "`":
        end = text.find("`", start + 1, start + WINDOW)
        return (_output(script, text[start + 1 : end], depth), end + 1) if end > 0 else ("", len(text))
    for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}")):
        if text.startswith(opening, start):
            end = closing_at(text, start + 1, opening[1], WINDOW)
            if end < 0:
                script.notes.append(f"{text[start : start + 40]}, which never closes")
                return "", len(text)
            inner = text[start + len(opening) : end]
            if closing == "))" and text[end - 1] == ")":
                return _sum(script, inner[:-1], depth), end + 1
            if opening == "$((":
                return _output(script, text[start + 2 : end], depth), end + 1
            how = _output if closing == ")" else _parameter
            return how(script, inner, depth), end + 1
    name = _NAME.match(text, start + 1)
    if name is None:
        return "$", start + 1
    word = name.group(0)
    if word.isdigit():  # ${10} needs braces
        return _argument(script, word[0]), start + 2
    return _value(script, word), name.end()


def _argument(script: Script, number: str, default: bool = False) -> str:
    index = int(number[:4])
    if index == 0:
        return "script.sh"
    if index <= len(script.arguments):
        return script.arguments[index - 1]
    if not default and not script.inside:
        script.asked.add(index)
    return mark(number)


def _value(script: Script, name: str) -> str:
    if name == "#":
        return str(len(script.arguments))
    if name in "?!$":
        return "0"
    if name.isdigit():
        return _argument(script, name)
    values = script.arguments if name in "@*" else script.variables.get(name)
    if values is None:
        return script.given.get(name, mark(name))
    script.budget.spend_texts(values)
    return " ".join(values)


def _parameter(script: Script, text: str, depth: int) -> str:
    """`${...}`: a variable, what stands in for it, a part of it."""
    match = _BRACED.fullmatch(text)
    if match is None:
        script.notes.append(f"${{{text[:40]}}}")
        return mark(text[:40])
    indirect, length, name, key, operation = match.groups()
    if indirect:
        name = strip_marks(_value(script, name)) or name
    if key is not None and key not in ("@", "*", "0") and not length:
        at = strip_marks(fill(script, key, depth + 1)).strip("\"'")
        values = script.variables.get(name, [])
        number = int(at) if at.lstrip("-").isdigit() and len(at) < 6 else None
        if number is not None and -len(values) <= number < len(values):
            text_value = values[number]
        else:
            text_value = _value(script, f"{name}[{at}]") if f"{name}[{at}]" in script.variables else ""
        text_value = text_value or mark(f"{name}[{at}]")
    elif key == "0":
        text_value = (script.variables.get(name) or [mark(name)])[0]
    elif name.isdigit():
        text_value = _argument(script, name, default=re.match(r":?[-=+]", operation) is not None)
    else:
        text_value = _value(script, name)
    if length:
        values = script.arguments if name in "@*" else script.variables.get(name, [])
        return str(len(values) if key is not None else len(strip_marks(text_value)))
    return _change_value(script, text_value, operation, (name, depth)) if operation else text_value


def _change_value(script: Script, value: str, operation: str, place: tuple[str, int]) -> str:
    """A default, an alternative, or a part of a value."""
    name, depth = place
    match = re.match(r":?[-=+?]", operation)
    if match:
        sign, default_text = match.group(0)[-1], operation[match.end() :]
        unset = not strip_marks(value)
        if sign == "+":
            return "" if unset else fill(script, _strip_quotes(default_text), depth + 1)
        if not unset:
            return value
        default = mark(name) if sign == "?" else fill(script, _strip_quotes(default_text), depth + 1)
        if sign == "=":
            script.variables[name] = [default]
        return default
    script.budget.spend_text(len(value) + len(operation), 2)
    if is_open(value):
        return value
    cut = re.fullmatch(r":(\s*-?\d{1,6})(?::(\d{1,6}))?", operation)
    if cut:
        start = int(cut.group(1))
        return value[start:] if cut.group(2) is None else value[start:][: int(cut.group(2))]
    if operation in ("^^", ",,", "^", ","):
        return {"^^": value.upper(), ",,": value.lower(), "^": value[:1].upper() + value[1:]}.get(operation, value)
    swap = re.fullmatch(r"(//?)([^/]*)(?:/(.*))?", operation, re.DOTALL)
    if swap:
        old, new = fill(script, swap.group(2), depth + 1), fill(script, swap.group(3) or "", depth + 1)
        old = old.replace("\\", "").strip("\"'") if len(old) > 1 else old
        return replace_text(script, value, (old, new), -1 if swap.group(1) == "//" else 1) if old else value
    trim = re.fullmatch(r"(##?|%%?)(.*)", operation, re.DOTALL)
    return _trim_pattern(script, value, trim.group(1), fill(script, trim.group(2), depth + 1)) if trim else value


def replace_text(script: Script, text: str, swap: tuple[str, str], count: int = -1) -> str:
    """A text with the one of two pieces replaced by the other."""
    script.budget.spend_text(len(text))
    script.budget.spend_text(replaced_length(text, *swap, count))
    return text.replace(*swap, count)


def _strip_quotes(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _trim_pattern(script: Script, value: str, sign: str, pattern: str) -> str:
    """A value without the shortest or longest beginning or end that a pattern matches."""
    is_front = sign[0] == "#"
    ends = filter(None, match_ends(script.budget, value, pattern, backwards=not is_front))
    cut = next(ends, 0) if len(sign) == 1 else max(ends, default=0)
    return value[cut:] if is_front else value[: len(value) - cut]


def _sum(script: Script, text: str, depth: int) -> str:
    """Whole-number arithmetic; bare names are variables."""
    filled_text = fill(script, text, depth + 1)
    for _ in range(3):
        filled_text = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda name: f"({_value(script, name.group(0))})", filled_text)
        script.budget.spend_text(len(filled_text), SUM_WORK)
        script.budget.spend_items(len(filled_text) * SUM_ITEMS)
    worth = evaluate_arithmetic(filled_text) if not is_open(filled_text) else None
    if worth is not None:
        return str(worth)
    script.notes.append(f"the value of $(({display_word(text)[:60]}))")
    return mark(f"(({display_word(text)[:60]}))")


def arithmetic(script: Script, text: str) -> int | None:
    """What an arithmetic expression is worth; None where that is left open."""
    total = _sum(script, text, 0)
    return int(total) if re.fullmatch(r"-?\d{1,18}", total) else None


def _output(script: Script, command: str, depth: int) -> str:
    """What a command would print, where that is plain; else a mark."""
    text = command.strip()
    script.budget.spend_text(len(text), 4)
    if re.match(r"(cd|dirname|pwd|readlink|realpath|git rev-parse --show-toplevel)\b", text):
        return "."
    first = text.split(" ", 1)
    plain = not re.search(r"[|;&<>]", text)
    if first[0] in ("echo", "basename") and plain and len(first) > 1:
        words = split_words(script, fill(script, first[1], depth + 1))
        words = [word for word in words if word not in ("-n", "-e")]
        if first[0] == "basename" and words:
            return words[0].rstrip("/").split("/")[-1].removesuffix(words[1] if len(words) > 1 else "\0")
        return " ".join(words)
    if first[0] == "expr" and plain and len(first) > 1:
        return _sum(script, first[1].replace("\\*", "*").replace("'*'", "*"), depth + 1)
    if first[0] == "date":
        return "date"
    sums = re.fullmatch(r"echo\s+[\"']?([^\"'|]*)[\"']?\s*\|\s*bc(?:\s+-l)?", text)
    if sums:
        return _sum(script, sums.group(1), depth + 1)
    if first[0] == "yq" and ".MODEL_ARGS" in text and "to_entries" in text:
        return _model_args(script, fill(script, text, depth + 1))
    printed_text = script.capture(text) if script.capture is not None else None
    if printed_text is not None:
        return printed_text
    script.notes.append(f"the output of {display_word(text)[:60]}")
    return mark(f"({display_word(text)[:60]})")


def _model_args(script: Script, text: str) -> str:
    """The options below MODEL_ARGS of a file that the script filled in, as words."""
    texts = (content for name, content in script.texts.items() if strip_marks(name) and strip_marks(name) in text)
    _, _, inner = next(texts, "").partition("MODEL_ARGS:")
    pairs = re.findall(r"^[ \t]+(--[\w-]+):[ \t]*(.*?)[ \t]*(?:#.*)?$", inner, re.MULTILINE)
    words = [(name, value.strip("\"'")) for name, value in pairs if value.strip("\"'").lower() != "false"]
    return " ".join(name if value.lower() in ("true", "") else f"{name} {value}" for name, value in words)


def expand_range(word: str) -> Iterable[str]:
    """`{2..5}` as the numbers that it stands for; another word as itself.

    >>> list(expand_range("{2..4}")), expand_range("a")
    (['2', '3', '4'], ['a'])
    """
    span = re.fullmatch(r"\{(\d{1,4})\.\.(\d{1,4})\}", word)
    return map(str, range(int(span.group(1)), int(span.group(2)) + 1)) if span else [word]


def bound_values(values: list[str]) -> list[str]:
    """The values, unless a script that doubles a variable again and again has made them too long."""
    if len(values) > MOST_WORDS or sum(map(len, values)) > LONGEST:
        expected_text = f"at most {LONGEST} characters in a variable"
        raise InputError(Problem(path="", given="a variable that grows without end", expected=expected_text))
    return values


@dataclass(frozen=True, slots=True)
class ShellTexts:
    """Texts that a script makes, kept in `script.texts` by the name it gives them, and files that it names."""

    script: Script
    checkout: Checkout

    def pipe(self, chain: Chain) -> None:
        """`sed s/A/B/ template | sed ... > file` and the like: how scripts fill in a configuration."""
        text: str | None = None
        for joint, statement in chain.parts:
            if joint not in ("", "|") or not isinstance(statement, Command):
                return
            text = self.text_of(statement, text)
            if text is None:
                return
            self.write(statement, text)

    def text_of(self, command: Command, given: str | None) -> str | None:
        """What `echo`, `cat` or a plain `sed` prints."""
        here = command.input_word("<<", "<<-")
        words = [value for word in command.words if isinstance(word, Word) for value in expand(self.script, word)]
        if not words:
            return None
        if words[0] == "echo":
            self.script.budget.spend_texts(words)
            return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
        if words[0] == "cat":
            if here is not None:
                return "".join(expand(self.script, here, split=False))
            return given if len(words) == 1 else self.nearby(words[1])
        if words[0] == "sed":
            return self.sed(words[1:], given)
        if words[0] == "envsubst":
            source = command.input_word("<")
            text = self.nearby("".join(expand(self.script, source, split=False))) if source is not None else given
            return None if text is None else re.sub(r"\$\{?(\w+)\}?", self.substitute_variable, text)
        return None

    def substitute_variable(self, match: re.Match[str]) -> str:
        self.script.budget.spend(EXPAND_WORK)
        return strip_marks(_value(self.script, match[1])) if match[1] in self.script.variables else match[0]

    def sed(self, words: Sequence[str], given: str | None) -> str | None:
        swap_words = [word for word in words if re.match(r"s\W", word) and word.count(word[1]) > 2]
        swaps = [word.split(word[1], 4) for word in swap_words]
        files = [word for word in words if word not in swap_words and not word.startswith("-")]
        text = self.nearby(files[0]) if files else given
        for swap in swaps if text is not None else ():
            if len(swap) != 4 or swap[3] not in ("", "g") or not swap[1].replace("\\", ""):
                return None
            text = replace_text(self.script, text or "", (swap[1].replace("\\", ""), swap[2]))
        return text if swaps else None

    def write(self, command: Command, text: str) -> None:
        for sign, word in command.redirections:
            if sign in (">", ">>", "&>"):
                name = display_word("".join(expand(self.script, word, split=False)))
                before = self.script.texts.get(name, "") if sign == ">>" else ""
                self.script.budget.spend_text(len(before) + len(text))
                self.script.texts[name] = bound_values([before + text])[0]

    def read(self, values: Sequence[str], command: Command) -> bool | None:
        """`IFS=, read -ra NAME <<< "$LIST"`: a text split into an array or into names; None for other input."""
        here = command.input_word("<<<", "<<", "<<-")
        ends = {at + 1 for at, word in enumerate(values) if word.startswith("-") and word.endswith("d")}
        names = [word for at, word in enumerate(values) if at and not word.startswith("-") and at not in ends]
        names = [name for name in names if name.isidentifier()]
        sign = "".join(self.script.variables.get("IFS", [""])).strip(" ") or None
        text = "".join(expand(self.script, here, split=False)) if here is not None else None
        self.script.budget.spend_items(len(text or "") // 2)
        if text is None or is_open(text) or (sign is not None and len(sign) != 1):
            self.script.variables |= {name: [mark(name)] for name in names}
        elif any(word.startswith("-") and "a" in word for word in values[1:]):
            self.script.variables |= {name: bound_values(text.split(sign)) for name in names[:1]}
        else:
            parts = text.split(sign, len(names) - 1) if len(names) > 1 else [text.strip()]
            self.script.variables |= {name: [part] for name, part in zip(names, parts, strict=False)}
        return None if here is None else True

    def nearby(self, name: str) -> str | None:
        """The text of a file that the script names: one it wrote, or one of its checkout."""
        if display_word(name) in self.script.texts:
            return self.script.texts[display_word(name)]
        return self.checkout.named(display_word(name))
