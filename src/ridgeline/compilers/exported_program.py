"""Turn a program of `torch.export.save` into the op graph: the JSON inside the archive, without torch or pickle.

A `.pt2` file is a zip whose `models/*.json` (older ones: `serialized_exported_program.json`) lists nodes, tensors and
the signature. Weights, constants and sample inputs are never opened. Symbolic sizes take the hint they were traced at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.compilers.aten_ops import IGNORED, AtenCall, emit_aten
from ridgeline.compilers.build_graph import GraphBuilder
from ridgeline.compilers.element_types import exported_format
from ridgeline.compilers.program_text import ProgramSource, archive_text, refuse_program
from ridgeline.core.documents import JsonMapping, JsonValue
from ridgeline.core.files import finite_json
from ridgeline.ir.op_graph import OpGraph, TensorRole

OLD_MEMBER = "serialized_exported_program.json"
_ROLES: Mapping[str, TensorRole] = {
    "parameter": "weight", "buffer": "state", "tensor_constant": "constant", "user_input": "input",
}  # fmt: skip


def recognises(source: ProgramSource) -> bool:
    if not source.text:
        return bool(program_member(source.head.split("\n")))
    return source.text[:1] == "{" and '"graph_module"' in source.text and '"schema_version"' in source.text


def program_member(members: list[str]) -> str:
    """The member of an archive that holds a program."""
    models = [name for name in members if name.endswith(".json") and "/models/" in f"/{name}"]
    return (models or [name for name in members if name.rsplit("/", 1)[-1] == OLD_MEMBER] or [""])[0]


def read(source: ProgramSource) -> OpGraph:
    """The graph of the program's forward."""
    member = program_member(source.head.split("\n")) if not source.text else ""
    text = archive_text(source.path, member) if member else source.text
    try:
        document = finite_json(text)
    except (ValueError, RecursionError) as wrong:
        raise refuse_program(
            source.path, f"JSON that cannot be read ({str(wrong)[:80]})", "what torch.export wrote"
        ) from None
    if not isinstance(document, dict):
        raise refuse_program(source.path, "a JSON list", "what torch.export wrote", "write it with torch.export.save")
    graph_module = table(document, "graph_module")
    graph = table(graph_module, "graph")
    version = document.get("torch_version")
    label = f"torch.export, torch {version}" if isinstance(version, str) else "torch.export"
    reading = _ExportReading(
        GraphBuilder(source.path, label[:80]), table(graph, "tensor_values"), table(graph, "sym_int_values")
    )
    reading.roles(table(graph_module, "signature"))
    nodes = rows(graph, "nodes")
    if not nodes:
        raise refuse_program(source.path, "a program without nodes", "what torch.export wrote", "write it again")
    for node in nodes:
        reading.node(node)
    return reading.builder.graph()


def table(parent: JsonMapping, key: str) -> JsonMapping:
    """The object at a key; empty where there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def rows(parent: JsonMapping, key: str) -> list[JsonMapping]:
    """The objects of a list at a key."""
    value = parent.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


@dataclass(slots=True)
class _ExportReading:
    """What is known while the nodes of one program are read."""

    builder: GraphBuilder
    metas: JsonMapping
    symbols: JsonMapping
    numbers: dict[str, int] = field(default_factory=dict)

    def roles(self, signature: JsonMapping) -> None:
        """Tensors of the program's inputs, with what each is for."""
        for spec in rows(signature, "input_specs"):
            for kind, role in _ROLES.items():
                if kind not in spec:
                    continue
                body = table(spec, kind)
                argument = table(body, "arg")
                name = argument.get("name", table(argument, "as_tensor").get("name"))
                label = next((body[key] for key in body if key.endswith("_name")), name)
                if isinstance(name, str) and isinstance(self.metas.get(name), dict):
                    self.numbers[name] = self.tensor(name, role=role, label=str(label))

    def tensor(self, name: str, *, role: TensorRole = "activation", label: str = "") -> int:
        """A tensor by the name that the program gives it; known ones keep their number."""
        if name not in self.numbers:
            meta = table(self.metas, name)
            sizes = meta.get("sizes")
            shape = [self.size(size) for size in sizes] if isinstance(sizes, list) else []
            self.numbers[name] = self.builder.tensor(shape, exported_format(meta.get("dtype")), role=role, name=label)
        return self.numbers[name]

    def size(self, value: JsonValue) -> int:
        """A size; a symbolic one is what it was when the program was traced."""
        if not isinstance(value, dict):
            return 1
        number = value.get("as_int")
        if number is None:
            expression = table(value, "as_expr")
            number = table(expression, "hint").get("as_int")
            self.builder.note(f"the size {str(expression.get('expr_str'))[:40]} is taken as {number}, as it was traced")
        if not isinstance(number, int) or not 0 <= number < 10**15:
            raise self.builder.refuse(
                f"a size of {str(number)[:40]}", "a whole number", "export it with example inputs"
            )
        return number

    def node(self, node: JsonMapping) -> None:
        """One node: its tensors and what else it is given."""
        target = str(node.get("target", ""))
        parts = target.removeprefix("torch.ops.").split(".")
        namespace, word = (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
        if word in IGNORED:
            return
        inputs: list[int] = []
        words: dict[str, JsonValue] = {}
        for row in rows(node, "inputs"):
            argument = table(row, "arg")
            inputs += [self.tensor(name) for name in tensor_names(argument)]
            key, value = next(iter(argument.items()), ("", None))
            if key in ("as_int", "as_bool", "as_string", "as_float"):
                words[str(row.get("name"))] = value
        names = [name for output in rows(node, "outputs") for name in tensor_names(output)]
        self.builder.module = module_of(node)
        known_values = [self.tensor(name) for name in names]
        if self.builder.module and not known_values and not inputs:
            return
        emit_aten(
            self.builder, AtenCall(word=word, inputs=inputs, outputs=known_values, words=words, namespace=namespace)
        )


def tensor_names(argument: JsonMapping) -> list[str]:
    """Names of the tensors of an argument or an output: one, a list, or none."""
    matches: list[str] = []
    for key, value in argument.items():
        if key == "as_tensor" and isinstance(value, dict):
            matches.append(str(value.get("name", "")))
        elif key in ("as_tensors", "as_optional_tensors", "as_nested_tensors") and isinstance(value, list):
            for part in value:
                inner = part.get("as_tensor", part) if isinstance(part, dict) else None
                if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                    matches.append(inner["name"])
    return matches


def module_of(node: JsonMapping) -> str:
    """The dotted path of the module that a node stands in: the last of its stack."""
    stack = table(node, "metadata").get("nn_module_stack")
    if not isinstance(stack, str):
        return ""
    parts = stack[-2000:].rsplit(";", 1)[-1].split(",")
    return parts[1] if len(parts) > 1 else ""
