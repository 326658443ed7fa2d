"""Turn XLA's HLO text into computations and instructions: what `compile().as_text()` and `--xla_dump_to` write.

An instruction is one line: `%name = shape opcode(operands), attribute=value, ...`. Literals that are printed out are
cut; nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ridgeline.compilers.program_text import ProgramSource, refuse_program

MOST_INSTRUCTIONS = 1_000_000
LONGEST_LINE = 100_000  # characters of an instruction that are looked at
DEEPEST_SHAPE = 24  # tuples in tuples
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.$-]+)\s*(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.$-]+)\s*=\s*")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{[^}]*\})?")
_OPCODE = re.compile(r"\s*([\w-]+)\(")
_COMMENT = re.compile(r"/\*[^*]{0,80}\*/")
_OPERAND = re.compile(r"%?([A-Za-z_][\w.$-]*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """A shape of one array."""

    element: str
    dims: tuple[int, ...]


Shape = ArrayShape | tuple["Shape", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HloInstruction:
    """One line of a computation.

    argument    the text between the brackets, for parameters and constants
    attributes  the text behind the brackets
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    argument: str
    attributes: str
    line: int
    is_root: bool = False

    def called_computation(self, key: str) -> str:
        """The computation that an attribute names; empty where it names none."""
        match = re.search(rf"\b{key}=\{{?%?([\w.$-]+)", self.attributes)
        return match.group(1) if match else ""

    def numbers(self, key: str) -> tuple[int, ...]:
        """The numbers of an attribute such as `dimensions={0,2}`."""
        match = re.search(rf"\b{key}=\{{([\d,\s]*)\}}", self.attributes)
        return tuple(int(number) for number in re.findall(r"\d{1,12}", match.group(1))) if match else ()

    @property
    def arrays(self) -> tuple[ArrayShape, ...]:
        """Arrays of its shape, those of a tuple in order."""
        return tuple(arrays_of(self.shape))


@dataclass(slots=True)
class Computation:
    """Instructions in order; the root is what it returns."""

    name: str
    instructions: list[HloInstruction] = field(default_factory=list)

    @property
    def root(self) -> HloInstruction | None:
        roots = [instruction for instruction in self.instructions if instruction.is_root]
        return roots[-1] if roots else self.instructions[-1] if self.instructions else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HloModule:
    """All computations by name, and which one the program begins with."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    head: str


def arrays_of(shape: Shape) -> Iterator[ArrayShape]:
    """Arrays of a shape, in order, without recursion."""
    stack: list[Shape] = [shape]
    while stack:
        part = stack.pop()
        if isinstance(part, ArrayShape):
            yield part
        else:
            stack.extend(reversed(part))


def parse_hlo(source: ProgramSource) -> HloModule:
    """The computations of a text; one that begins none is refused."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry, count, head = "", 0, ""
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.startswith("HloModule"):
            if head:  # only the first module of a file is read
                break
            head = line[:LONGEST_LINE]
            continue
        if line.startswith("}"):
            current = None
            continue
        if not line[:1].isspace() and line.rstrip().endswith("{"):
            begin = _COMPUTATION.match(line[:LONGEST_LINE].rstrip())
            if begin:
                current = computations.setdefault(begin.group(2), Computation(begin.group(2)))
                entry = begin.group(2) if begin.group(1) else entry
            continue
        if current is not None and (instruction := _instruction(source, line, number)):
            count += 1
            if count > MOST_INSTRUCTIONS:
                raise refuse_program(source.path, f"more than {MOST_INSTRUCTIONS:,} instructions", "one program")
            current.instructions.append(instruction)
    if not computations:
        raise refuse_program(source.path, "HLO text without a computation", "ENTRY and its instructions", "was it cut?")
    name = re.match(r"HloModule\s+([\w.$-]+)", head)
    return HloModule(
        name=name.group(1) if name else "", computations=computations, entry=entry or list(computations)[-1], head=head
    )


def _instruction(source: ProgramSource, raw: str, number: int) -> HloInstruction | None:
    line = _COMMENT.sub("", raw[:LONGEST_LINE])
    begin = _INSTRUCTION.match(line)
    if begin is None:
        return None
    shape, at = read_shape(source, line, begin.end(), number)
    opcode = _OPCODE.match(line, at)
    if opcode is None:
        return None
    end = _closing(line, opcode.end() - 1)
    argument = line[opcode.end() : end]
    return HloInstruction(
        name=begin.group(2), shape=shape, opcode=opcode.group(1), operands=_operands(argument, opcode.group(1)),
        argument=argument, attributes=line[end + 1 :], line=number, is_root=bool(begin.group(1)),
    )  # fmt: skip


def _operands(argument: str, opcode: str) -> tuple[str, ...]:
    """Names of operands; in old dumps each has its shape before it."""
    if opcode in ("parameter", "constant", "iota"):
        return ()
    names: list[str] = []
    for piece in _pieces(argument):
        match = _OPERAND.search(piece)
        if match:
            names.append(match.group(1))
    return tuple(names)


def _pieces(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _closing(text: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`; the text's end where none does."""
    depth, in_quotes = 0, False
    for at in range(start, len(text)):
        character = text[at]
        if character == '"':
            in_quotes = not in_quotes
        elif not in_quotes and character in "([{":
            depth += 1
        elif not in_quotes and character in ")]}":
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def read_shape(source: ProgramSource, line: str, at: int, number: int) -> tuple[Shape, int]:
    """The shape that stands at a place of a line, and where it ends; tuples by a stack."""
    stack: list[list[Shape]] = []
    while True:
        while at < len(line) and line[at] in " ,":
            at += 1
        character = line[at : at + 1]
        if character == "(":
            if len(stack) >= DEEPEST_SHAPE:
                raise refuse_program(source.path, "tuples in tuples", f"at most {DEEPEST_SHAPE} levels", "", number)
            stack.append([])
            at += 1
            continue
        if character == ")" and stack:
            done: Shape = tuple(stack.pop())
            at += 1
        else:
            match = _ARRAY.match(line, at)
            if match is None:
                return (tuple(stack[0]) if stack else ()), at if not stack else len(line)
            done, at = ArrayShape(element=match.group(1), dims=_dims(match.group(2))), match.end()
        if not stack:
            return done, at
        stack[-1].append(done)


def _dims(text: str) -> tuple[int, ...]:
    """Dims; `<=8` is a bound on a dim of unknown size, which is what is reserved for it."""
    return tuple(int(dim) for dim in re.findall(r"\d{1,18}", text))
