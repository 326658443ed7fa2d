"""Turn an op graph into DOT text, for Graphviz and its kin: ops as boxes in clusters of modules, tensors as edges."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.ir.op_graph import GraphOp, OpGraph

COLOURS = {"product": "#4477aa", "attention": "#aa3377", "view": "#eeeeee", "collective": "#ccbb44"}
PLAIN = "#66ccee"


def dot_text(graph: OpGraph) -> str:
    """A digraph of every op that is no view.

    >>> from ridgeline.graph.region_table import region
    >>> dot_text(region("swiglu", 16, 16).graph).splitlines()[0]
    'digraph "swiglu" {'
    """
    lines = [f'digraph "{_label_text(graph.name)}" {{', "  node [shape=box, style=filled, fontname=sans];"]
    modules: dict[str, list[GraphOp]] = {}
    for op in graph.ops:
        if op.kind != "view":
            modules.setdefault(op.module, []).append(op)
    for place, (module, ops) in enumerate(modules.items()):
        lines.append(f'  subgraph cluster_{place} {{ label="{_label_text(module)}";')
        lines += [f"    {_node(op)}" for op in ops]
        lines.append("  }")
    lines += [f"  {edge}" for edge in _edges(graph)]
    return "\n".join([*lines, "}"]) + "\n"


def _node(op: GraphOp) -> str:
    times = f" x{op.count}" if op.count > 1 else ""
    label = f"{op.name.rpartition('.')[2]}{times}\\n{op.phase}"
    return f'n{op.id} [label="{_label_text(label)}", fillcolor="{COLOURS.get(op.kind, PLAIN)}"];'


def _edges(graph: OpGraph) -> Iterator[str]:
    """From the op that last wrote memory to the ops that read it."""
    wrote: dict[int, int] = {}
    for op in graph.ops:
        if op.kind == "view":
            continue
        for tensor in dict.fromkeys(op.inputs):
            source = wrote.get(graph.storage(tensor))
            if source is not None:
                shape = "x".join(str(size) for size in graph.tensors[tensor].shape)
                yield f'n{source} -> n{op.id} [label="{shape}"];'
        wrote.update({graph.storage(tensor): op.id for tensor in op.outputs})


def _label_text(text: str) -> str:
    return text.replace('"', "'")
