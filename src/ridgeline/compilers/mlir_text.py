"""Turn MLIR text into statements with their regions: StableHLO, linalg, TOSA, torch, IREE's and Triton's dialects.

Printers write one operation a line; a line that leaves a brace open begins a region, and the line that closes it may
go on with types or with another region. Statements nest by an explicit stack, so that depth costs memory and no
recursion. Attributes stay text: each reader takes what it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ridgeline.compilers.program_text import ProgramSource, refuse_program

DEEPEST = 200  # nested regions
MOST_STATEMENTS = 2_000_000
LONGEST_HEAD = 200_000  # characters of a statement that are looked at: constants written out are longer
_RESULTS = re.compile(r"\s*((?:%[\w.$#-]+(?::\d+)?)(?:\s*,\s*%[\w.$#-]+(?::\d+)?)*)\s*=\s*")
_NAME = re.compile(r'"?([A-Za-z_][\w.$-]*)"?')
_BLOCK = re.compile(r"\s*\^[\w.$-]+\s*(?:\((.*)\))?\s*:")
_CONTINUES = re.compile(
    r"\s*(?:cond|do|reducer|attributes|else|ins|outs|dimensions|permutation|->|:|,|\(|\)|<|>|\{|combiner)"
)
_LOCATION = re.compile(r'\s*loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
_SHAPED = re.compile(
    r"(tensor|vector|memref|memdesc|tensordesc)<((?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*)>|!torch\.v?tensor<\[([^\]]*)\],\s*([\w!.<>]+)>"
)
_SCALAR = re.compile(r"!?[A-Za-z_][\w.]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>)?")
_ALIAS = re.compile(r"^\s*(#[\w.$-]+)\s*=\s*(.*)$")


@dataclass(slots=True)
class Statement:
    """One operation.

    text      after its name, up to a region or the line's end, and what follows the regions, joined by a space
    regions   one list of statements for each, with the block arguments' text before them
    """

    name: str
    results: tuple[str, ...]
    text: str
    line: int
    regions: list[list[Statement]] = field(default_factory=list)
    block_arguments: list[str] = field(default_factory=list)
    values: tuple[str, ...] | None = None
    types: list[ShapedType] | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """Values it names, in order; looked up once, because a function may be called often."""
        if self.values is None:
            self.values = tuple(_VALUE.findall(_LITERAL.sub("", self.text)))
        return self.values

    def walk(self) -> Iterator[Statement]:
        """It and all statements below it, without recursion."""
        stack = [self]
        while stack:
            statement = stack.pop()
            yield statement
            for region in reversed(statement.regions):
                stack.extend(reversed(region))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedType:
    """A tensor type: its dims (-1 where the text leaves one open) and its element type."""

    shape: tuple[int, ...]
    element: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MlirModule:
    """Statements of the top level, and texts of `#alias = ...`."""

    statements: list[Statement]
    aliases: dict[str, str]

    def walk(self) -> Iterator[Statement]:
        for statement in self.statements:
            yield from statement.walk()


def parse_mlir(source: ProgramSource) -> MlirModule:
    """The statements of a text; one whose braces do not match, or that nests too deep, is refused."""
    reading = _MlirReading(source)
    for number, raw in enumerate(source.text.splitlines(), 1):
        line = _without_comment(raw)
        if line.startswith("{-#"):  # resources: bytes of constants
            break
        if line:
            reading.read_line(line, number)
    if reading.stack:
        owner, _ = reading.stack[0]
        problem = f"{len(reading.stack)} regions that nothing closes"
        raise refuse_program(source.path, problem, "a whole module", "was it cut off?", owner.line)
    return MlirModule(statements=reading.top, aliases=reading.aliases)


@dataclass(slots=True)
class _MlirReading:
    """The statements read so far, and the regions that are open."""

    source: ProgramSource
    top: list[Statement] = field(default_factory=list)
    stack: list[tuple[Statement, list[Statement]]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    count: int = 0

    @property
    def scope(self) -> list[Statement]:
        return self.stack[-1][1] if self.stack else self.top

    def read_line(self, line: str, number: int) -> None:
        """One line: an alias, a block's label, the end of regions, or a statement."""
        if line[0] in "#!":
            if (alias := _ALIAS.match(line[:LONGEST_HEAD])) is not None:
                self.aliases[alias.group(1)] = alias.group(2)
        elif line[0] == "^":
            block = _BLOCK.match(line[:LONGEST_HEAD])
            if self.stack and block:
                self.stack[-1][0].block_arguments.append(block.group(1) or "")
        elif line[0] == "}":
            if self._close_regions(line, number).endswith("{") and self.scope:
                self._open_region(self.scope[-1], number)
        else:
            self._begin(line, number)

    def _begin(self, line: str, number: int) -> None:
        statement = _begin_statement(line, number, self.scope)
        if statement is not None:
            self.count += 1
            if self.count > MOST_STATEMENTS:
                raise refuse_program(self.source.path, f"more than {MOST_STATEMENTS:,} operations", "one program")
            self.scope.append(statement)
        if line.endswith("{") and self.scope:
            self._open_region(self.scope[-1], number)

    def _open_region(self, owner: Statement, line: int) -> None:
        if len(self.stack) >= DEEPEST:
            problem, limit = "deeper nesting", f"at most {DEEPEST} regions in each other"
            raise refuse_program(self.source.path, problem, limit, "", line)
        region: list[Statement] = []
        owner.regions.append(region)
        self.stack.append((owner, region))

    def _close_regions(self, line: str, number: int) -> str:
        """Close as many regions as a line begins with braces; its rest goes to the owner of the last one."""
        owner = None
        while line.startswith("}"):
            if not self.stack:
                todo = "was it cut off?"
                raise refuse_program(self.source.path, "a closing brace", "a region that it closes", todo, number)
            owner, _ = self.stack.pop()
            line = line[1:].lstrip()
        if owner is not None and line:
            owner.text += " " + (line[:-1].rstrip() if line.endswith("{") else line)
        return line


def _without_comment(raw: str) -> str:
    """A line without its location and comment; a constant that is written out is cut."""
    line = raw.strip()
    if len(line) > LONGEST_HEAD:
        line = line[: LONGEST_HEAD // 2] + " " + line[-LONGEST_HEAD // 2 :]
    if "//" in line and '"' not in line.split("//", 1)[0]:
        line = line.split("//", 1)[0].rstrip()
    if "loc(" in line:
        line = _LOCATION.sub("", line).rstrip()
    return line


def _begin_statement(line: str, number: int, scope: list[Statement]) -> Statement | None:
    """The statement that a line begins; None where it goes on with the one before."""
    results = _RESULTS.match(line)
    at = results.end() if results else 0
    name = _NAME.match(line, at)
    if name is None or (results is None and _CONTINUES.match(line) and scope):
        if scope:
            scope[-1].text += " " + line.rstrip("{").rstrip()
        return None
    text = line[name.end() :]
    if line.endswith("{"):
        text = text[:-1].rstrip()
    return Statement(name.group(1), _result_names(results.group(1)) if results else (), text, number)


def _result_names(text: str) -> tuple[str, ...]:
    """Names of results: `%3:2` is `%3#0` and `%3#1`, of which the first is also `%3`."""
    names: list[str] = []
    for part in text.split(","):
        name, _, many = part.strip().partition(":")
        count = min(int(many), 10_000) if many.isdigit() else 0
        names += [f"{name}#{place}" for place in range(count)] if count else [name]
    return tuple(names)


def shaped_types(text: str) -> list[ShapedType]:
    """Tensor types in a text, in order.

    >>> shaped_types("(tensor<2x64xf32>, tensor<f32>) -> tensor<?x4xbf16, #layout>")[2]
    ShapedType(shape=(-1, 4), element='bf16')
    """
    matches: list[ShapedType] = []
    for match in _SHAPED.finditer(text):
        if match.group(1):
            matches.append(_shaped_type(match.group(2)))
        else:
            dims = tuple(int(dim) if dim.strip().isdigit() else -1 for dim in match.group(3).split(",") if dim.strip())
            matches.append(ShapedType(shape=dims, element=match.group(4)))
    return matches


def _shaped_type(inner: str) -> ShapedType:
    """The type inside the angle brackets: dims with an `x` behind each, then the element type."""
    shape: list[int] = []
    if (access := re.match(r"(?:readonly|writeonly|readwrite):(?:tensor|vector)<(.*)>$", inner)) is not None:
        inner = access.group(1)
    while match := re.match(r"\s*(\d{1,18}|\?)\s*x", inner):
        shape.append(-1 if match.group(1) == "?" else int(match.group(1)))
        inner = inner[match.end() :]
    element = _SCALAR.match(inner.strip())
    return ShapedType(shape=tuple(shape), element=element.group(0) if element else inner.strip()[:40])


def split_types(text: str) -> tuple[str, str]:
    """A statement's text before its types, and the types: what stands behind the last colon outside brackets.

    >>> split_types(" %0, %1 {axis = 1 : i32} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>")[1]
    '(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>'
    """
    depth, place = 0, len(text)
    for at in range(len(text) - 1, -1, -1):
        character = text[at]
        if character in ")]}" or (character == ">" and text[at - 1] != "-"):
            depth += 1
        elif character in "([{<":
            depth -= 1
        elif character == ":" and depth == 0 and text[at - 1 : at] != ":" and text[at + 1 : at + 2] != ":":
            place = at
            break
    return text[:place], text[place + 1 :].strip()


def result_types(statement: Statement) -> list[ShapedType]:
    """Types of its results: behind the arrow, `into` or `to`; the last ones where the text states one list."""
    if statement.types is None:
        statement.types = _result_types(statement)
    return statement.types


def _result_types(statement: Statement) -> list[ShapedType]:
    _, types = split_types(statement.text)
    for arrow in ("->", " into ", " to "):
        if arrow in types:
            return shaped_types(types.rsplit(arrow, 1)[1])
    if not types and "->" in statement.text and (behind := shaped_types(statement.text.rpartition("->")[2])):
        return behind
    if not types and "outs(" in statement.text:
        return shaped_types(statement.text.rpartition("outs(")[2])
    matches = shaped_types(types)
    return matches[-len(statement.results) :] if statement.results else matches


def bracketed_numbers(text: str, key: str) -> tuple[tuple[int, ...], ...]:
    """The bracketed lists of numbers behind a key: `batching_dims = [0, 1] x [0, 2]` gives two.

    >>> bracketed_numbers("%0, %1, contracting_dims = [2] x [0], precision = []", "contracting_dims")
    ((2,), (0,))
    """
    match = re.search(rf"\b{re.escape(key)}\s*=\s*((?:(?:array<i64\s*:?)?\s*[\[<]?[\d\s,:]*[\]>]\s*x?\s*)+)", text)
    if match is None:
        return ()
    lists = re.findall(r"[\[<:]\s*([\d\s,]*)[\]>]", match.group(1))
    return tuple(tuple(int(number) for number in re.findall(r"\d{1,12}", part)) for part in lists)
