"""Turn a program of sends and receives into an MSCCL algorithm file, within the limits of msccl's or RCCL's parser."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from ridgeline.comm.formats.program import Instruction, Place, Program

COLLECTIVE = {"reducescatter": "reduce_scatter"}
MOST_BYTES = 2**40  # sizes that the file is offered for; without the attribute msccl takes 128 MiB


def msccl_text(program: Program, protocol: str = "Simple") -> str:
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


def _gpu(program: Program, rank: int, blocks: tuple[tuple[Instruction, ...], ...]) -> list[str]:
    places = [place for block in blocks for step in block for place in _reach(step)]
    scratch = 1 + max((place[2] for place in places if place[1] == "s"), default=-1)
    sizes = {"id": rank, "i_chunks": program.inputs, "o_chunks": program.outputs, "s_chunks": scratch}
    lines = [f"  <gpu {_attributes(sizes)}>"]  # type: ignore[arg-type]
    followed = {told for block in blocks for step in block for told in step.after}
    for index, block in enumerate(blocks):
        send = next((step.pushes[1] for step in block if step.pushes), -1)
        recv = next((step.pops[0] for step in block if step.pops), -1)
        channel = next((_channel(step) for step in block if step.pops or step.pushes), 0)
        lines.append(f"    <tb {_attributes({'id': index, 'send': send, 'recv': recv, 'chan': channel})}>")
        lines += [_step(number, step, (index, number) in followed) for number, step in enumerate(block)]
        lines.append("    </tb>")
    return [*lines, "  </gpu>"]


def _reach(step: Instruction) -> list[Place]:
    """The last place that each of an instruction's ranges touches."""
    return [(rank, buffer, offset + step.count - 1) for rank, buffer, offset in (*step.reads, *step.writes)]


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
