"""Turn a program of sends and receives into an MSCCL algorithm file, within the limits of msccl's or RCCL's parser.

Turn an MSCCL algorithm file (XML, for msccl or RCCL) into a Program, or say which step breaks its parser's rules.

    algo    name proto nchannels nchunksperloop ngpus coll inplace [outofplace minBytes maxBytes nthreads]
    gpu     id i_chunks o_chunks s_chunks
    tb      id send recv chan
    step    s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep  [round: ours, other parsers pass it by]

What a stranger wrote is checked, not trusted: no document types, no entities, sizes and depth are capped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from ridgeline.comm.contract import Collective
from ridgeline.comm.formats.program import (
    LIMITS,
    MOST_CHUNKS,
    MOST_INSTRUCTIONS,
    MOST_MOVES,
    MOST_RANKS,
    Instruction,
    Place,
    RankProgram,
    Wrong,
    refuse_too_large,
    whole_number,
)

COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        "allreduce": "allreduce", "allgather": "allgather", "reduce": "reduce", "broadcast": "broadcast",
        "alltoall": "alltoall", "reduce_scatter": "reducescatter",
    }
)  # fmt: skip
PROTOCOLS = ("Simple", "LL", "LL128")
TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "ra", "nop")
SLOTS = 8  # messages that a connection holds: NCCL_STEPS
NESTED = ("algo", "gpu", "tb", "step")


MOST_COUNT = 71
MOST_PEERS = 32  # of one channel
DEPENDENT = ("send", "recv")


@dataclass(slots=True)
class _XmlNode:
    tag: str
    line: int
    attributes: dict[str, str]
    children: list[_XmlNode]


def read_msccl(path: Path, text: bytes, profile: str = "") -> RankProgram:
    """The program of an XML file; `profile` holds it against msccl's or RCCL's limits, else against the wider."""
    wrong = Wrong(str(path))
    root = _parse_xml(wrong, text)
    return _MscclReader(wrong, root, profile or "msccl").program()


def _parse_xml(wrong: Wrong, text: bytes) -> _XmlNode:
    parser = expat.ParserCreate()
    stack: list[_XmlNode] = []
    roots: list[_XmlNode] = []
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if len(stack) >= len(NESTED) or tag != NESTED[len(stack)]:
            expected_text = f"<{NESTED[len(stack)]}>" if len(stack) < len(NESTED) else "nothing inside a step"
            raise wrong(f"line {line}", f"<{tag[:40]}>", expected_text)
        if count > MOST_INSTRUCTIONS:
            raise wrong(f"line {line}", "more elements", f"at most {MOST_INSTRUCTIONS}")
        node = _XmlNode(tag, line, attributes, [])
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)

    def refuse(*_: object) -> None:
        raise wrong(f"line {parser.CurrentLineNumber}", "a document type or entity", "plain elements")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as broken:
        raise wrong(f"line {broken.lineno}", expat.ErrorString(broken.code), "XML") from None
    if not roots:
        raise wrong("", "no element", "<algo>")
    return roots[0]


class _MscclReader:
    """One file being read: numbers are within limits before anything is built."""

    def __init__(self, wrong: Wrong, root: _XmlNode, profile: str) -> None:
        self.wrong, self.root, self.limits, self.profile = wrong, root, LIMITS[profile], profile
        self.moves = 0

    def _number(self, node: _XmlNode, name: str, least: int, most: int, default: int | None = None) -> int:
        if name not in node.attributes and default is not None:
            return default
        return whole_number(self.wrong, f"line {node.line}: {name}", node.attributes.get(name, ""), least, most)

    def _word(self, node: _XmlNode, name: str, known: tuple[str, ...]) -> str:
        word = node.attributes.get(name, "")
        if word not in known:
            raise self.wrong(f"line {node.line}: {name}", repr(word[:40]), f"one of {', '.join(known)}")
        return word

    def program(self) -> RankProgram:
        root = self.root
        for name in self.limits.needed:
            if name not in root.attributes:
                raise self.wrong(f"line {root.line}", f"no {name}", f"{name}, which {self.profile} needs")
        coll = self._word(root, "coll", (*COLLECTIVES, "custom"))
        if coll == "custom":
            raise self.wrong(f"line {root.line}: coll", "custom", "a collective whose outcome is known")
        self._word(root, "proto", PROTOCOLS)
        self.channels = self._number(root, "nchannels", 1, 256)
        self.ranks = self._number(root, "ngpus", 2, MOST_RANKS)
        loop = self._number(root, "nchunksperloop", 1, MOST_CHUNKS)
        self.collective = COLLECTIVES[coll]
        n = self.ranks
        if self.collective in ("allgather", "reducescatter", "alltoall") and loop % n:
            raise self.wrong("nchunksperloop", str(loop), f"a multiple of {n} ranks for {self.collective}")
        sizes = {"allgather": (loop // n, loop), "reducescatter": (loop, loop // n)}
        inputs, outputs = sizes.get(self.collective, (loop, loop))
        refuse_too_large(self.wrong, self.ranks, inputs, outputs)
        inside = self._number(root, "inplace", 0, 1)
        outside = self._number(root, "outofplace", 0, 1, default=1 - inside)
        modes = tuple(mode for mode, is_allowed in ((True, inside), (False, outside)) if is_allowed)
        if not modes:
            raise self.wrong(f"line {root.line}", "neither inplace nor outofplace", "one of them")
        if len(root.children) != self.ranks:
            raise self.wrong("gpu", f"{len(root.children)} of them", f"{self.ranks}, as ngpus says")
        self.sizes = {"i": inputs, "o": outputs}
        blocks: list[tuple[tuple[Instruction, ...], ...]] = [()] * self.ranks
        ids_seen: set[int] = set()
        for node in root.children:
            rank = self._number(node, "id", 0, self.ranks - 1)
            if rank in ids_seen:
                raise self.wrong(f"line {node.line}: gpu id", str(rank), "each rank once")
            ids_seen.add(rank)
            blocks[rank] = self._gpu(node, rank, loop)
        return RankProgram(
            name=root.attributes.get("name", "")[:80], target="rccl" if self.profile == "rccl" else "msccl",
            collective=self.collective, ranks=self.ranks, inputs=inputs, outputs=outputs, root=0, in_place=modes,
            slots=SLOTS, blocks=tuple(blocks),
        )  # fmt: skip

    def _gpu(self, node: _XmlNode, rank: int, loop: int) -> tuple[tuple[Instruction, ...], ...]:
        buffer_chunks = {buffer: self._number(node, f"{buffer}_chunks", 0, MOST_CHUNKS) for buffer in "ios"}
        for buffer in "io":
            if buffer_chunks[buffer] not in (0, self.sizes[buffer]):
                expected_text = f"{self.sizes[buffer]} (or 0), as nchunksperloop {loop} asks for"
                raise self.wrong(f"line {node.line}: {buffer}_chunks", str(buffer_chunks[buffer]), expected_text)
        self.sizes["s"] = buffer_chunks["s"]
        if len(node.children) > self.limits.blocks:
            given_text, limit_text = f"{len(node.children)} blocks", f"at most {self.limits.blocks} in {self.profile}"
            raise self.wrong(f"line {node.line}: gpu {rank}", given_text, limit_text)
        self._lengths = [len(block.children) for block in node.children]
        peers: dict[tuple[str, int], set[int]] = {}
        blocks = []
        for index, block in enumerate(node.children):
            self._number(block, "id", index, index)
            blocks.append(self._block(block, rank, index, peers))
        return tuple(blocks)

    def _block(
        self, node: _XmlNode, rank: int, index: int, peers: dict[tuple[str, int], set[int]]
    ) -> tuple[Instruction, ...]:
        channel = self._number(node, "chan", 0, self.channels - 1)
        ends = {side: self._number(node, side, -1, self.ranks - 1) for side in DEPENDENT}
        for side, peer in ends.items():
            if peer == rank:
                raise self.wrong(f"line {node.line}: {side}", f"rank {rank} itself", "another rank")
            if peer >= 0:
                peers_used = peers.setdefault((side, channel), set())
                if peer in peers_used:
                    raise self.wrong(
                        f"line {node.line}: {side}",
                        f"peer {peer} on channel {channel} twice",
                        "one block a peer and channel",
                    )
                peers_used.add(peer)
                if len(peers_used) > MOST_PEERS:
                    raise self.wrong(
                        f"line {node.line}: chan",
                        f"{len(peers_used)} peers on channel {channel}",
                        f"at most {MOST_PEERS}",
                    )
        if len(node.children) >= self.limits.steps:
            raise self.wrong(
                f"line {node.line}: block {index}",
                f"{len(node.children)} steps",
                f"fewer than {self.limits.steps} in {self.profile}",
            )
        instructions = []
        for number, step in enumerate(node.children):
            self._number(step, "s", number, number)
            instructions.append(self._step(step, rank, index, ends, channel))
        return tuple(instructions)

    def _after(self, node: _XmlNode, index: int) -> tuple[tuple[int, int], ...]:
        block = self._number(node, "depid", -1, len(self._lengths) - 1)
        self._number(node, "hasdep", 0, 1)
        if block < 0:
            return ()
        if block == index:
            raise self.wrong(f"line {node.line}: depid", f"its own block {index}", "another block")
        return ((block, self._number(node, "deps", 0, self._lengths[block] - 1)),)

    def _step(self, node: _XmlNode, rank: int, index: int, ends: dict[str, int], channel: int) -> Instruction:
        kind = self._word(node, "type", TYPES)
        after = self._after(node, index)
        if kind == "nop":
            return Instruction(name="nop", after=after)
        if kind == "ra":
            raise self.wrong(
                f"line {node.line}: type", "ra", "s r rcs rrs rrc rrcs cpy re nop", "what it adds is not in the file"
            )
        count = self._number(node, "cnt", 1, MOST_COUNT)
        self.moves += count
        if self.moves > MOST_MOVES:
            raise self.wrong(f"line {node.line}", "more chunks moved", f"at most {MOST_MOVES}")
        receives, sends = kind in ("r", "rcs", "rrs", "rrc", "rrcs"), kind in ("s", "rcs", "rrs", "rrcs")
        for is_needed, side in ((sends, "send"), (receives, "recv")):
            if is_needed and ends[side] < 0:
                raise self.wrong(f"line {node.line}: {kind}", f"a block without {side} peer", f"a {side} peer")
        source = self._place(node, rank, "src", count) if kind in ("s", "rrs", "rrc", "rrcs", "cpy", "re") else None
        target = self._place(node, rank, "dst", count) if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re") else None
        reads = (target, source) if kind == "re" else (source,)
        return Instruction(
            name=kind, after=after, count=count,
            pops=(ends["recv"], rank, channel) if receives else None,
            pushes=(rank, ends["send"], channel) if sends else None,
            reads=tuple(place for place in reads if place is not None),
            writes=(target,) if target is not None else (),
            round=self._number(node, "round", 0, MOST_INSTRUCTIONS, default=-1),
        )  # fmt: skip

    def _place(self, node: _XmlNode, rank: int, side: str, count: int) -> Place:
        buffer = self._word(node, f"{side}buf", ("i", "o", "s"))
        return rank, buffer, self._number(node, f"{side}off", 0, self.sizes[buffer] - count)


COLLECTIVE = {"reducescatter": "reduce_scatter"}
MOST_BYTES = 2**40  # sizes that the file is offered for; without the attribute msccl takes 128 MiB


def msccl_text(program: RankProgram, protocol: str = "Simple") -> str:
    """The file's text."""
    inside, outside = int(True in program.in_place), int(False in program.in_place)
    loop = program.outputs if program.collective == "allgather" else program.inputs
    channels = 1 + max((_channel(step) for rank in program.blocks for block in rank for step in block), default=0)
    head = {
        "name": program.name, "proto": protocol, "nchannels": channels, "nchunksperloop": loop,
        "ngpus": program.ranks, "coll": COLLECTIVE.get(program.collective, program.collective), "inplace": inside,
        "outofplace": outside, "minBytes": 0, "maxBytes": MOST_BYTES,
    }  # fmt: skip
    lines = [f"<algo {_attributes(head)}>"]
    for rank, blocks in enumerate(program.blocks):
        lines += _gpu(program, rank, blocks)
    return "\n".join([*lines, "</algo>"]) + "\n"


def _attributes(values: dict[str, object]) -> str:
    return " ".join(f"{name}={quoteattr(str(value))}" for name, value in values.items())


def _channel(step: Instruction) -> int:
    connection = step.pops or step.pushes
    return connection[2] if connection else 0


def _gpu(program: RankProgram, rank: int, blocks: tuple[tuple[Instruction, ...], ...]) -> list[str]:
    steps = [step for block in blocks for step in block]
    ends = [offset + step.count for step in steps for _, buffer, offset in (*step.reads, *step.writes) if buffer == "s"]
    scratch = max(ends, default=0)
    sizes = {"id": rank, "i_chunks": program.inputs, "o_chunks": program.outputs, "s_chunks": scratch}
    lines = [f"  <gpu {_attributes(sizes)}>"]  # type: ignore[arg-type]
    dependencies = {step_after for step in steps for step_after in step.after}
    for index, block in enumerate(blocks):
        send = next((step.pushes[1] for step in block if step.pushes), -1)
        recv = next((step.pops[0] for step in block if step.pops), -1)
        channel = next((_channel(step) for step in block if step.pops or step.pushes), 0)
        lines.append(f"    <tb {_attributes({'id': index, 'send': send, 'recv': recv, 'chan': channel})}>")
        lines += [_step(number, step, (index, number) in dependencies) for number, step in enumerate(block)]
        lines.append("    </tb>")
    return [*lines, "  </gpu>"]


def _step(number: int, step: Instruction, followed: bool) -> str:
    source = step.reads[0] if step.reads else None
    target = step.writes[0] if step.writes else None
    block, after = step.after[0] if step.after else (-1, -1)
    nothing = step.name == "nop"
    start, end = source or target or (0, "i", -1), target or source or (0, "o", -1)
    values: dict[str, object] = {
        "s": number, "type": step.name,
        "srcbuf": start[1], "srcoff": start[2], "dstbuf": end[1], "dstoff": end[2],
        "cnt": 0 if nothing else step.count, "depid": block, "deps": after, "hasdep": int(followed),
    }  # fmt: skip
    if step.round >= 0:
        values["round"] = step.round
    return f"      <step {_attributes(values)}/>"
