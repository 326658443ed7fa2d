"""Turn an algorithm into a JSON file and such a file into an algorithm; what a stranger wrote is checked, not trusted.

    {"format": "ridgeline-collective", "version": 1, "name", "collective", "ranks", "nodes", "chunks", "root",
     "steps": {"round": [...], "source": [...], "target": [...], "chunk": [...], "op": [...], "channel": [...]}}

op: 0 copies, 1 reduces. Equal chunks only.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Steps, steps_of
from ridgeline.comm.contract import contract
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import write_text

FORMAT = "ridgeline-collective"
COLUMNS = ("round", "source", "target", "chunk", "op", "channel")
WHOLE = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
BIGGEST_FILE = 2**30  # bytes
MOST_PLACES = 2**26  # nodes times chunks


def write_algorithm(algorithm: Algorithm, path: Path) -> None:
    """Write an algorithm of equal chunks as JSON, at once or not at all."""
    contract = algorithm.contract
    if contract.collective not in WHOLE:
        raise _wrong(path, contract.collective, "a collective of equal chunks: " + ", ".join(WHOLE))
    root_places = contract.begins if contract.collective == "broadcast" else contract.ends
    root = int(root_places[0, 0]) if contract.collective in ("broadcast", "reduce") and root_places is not None else 0
    steps = {name: getattr(algorithm.steps, name).tolist() for name in COLUMNS}
    head = {"format": FORMAT, "version": 1, "name": algorithm.name, "collective": contract.collective}
    sizes = {"ranks": contract.ranks, "nodes": algorithm.nodes, "chunks": contract.chunks, "root": root}
    write_text(path, json.dumps({**head, **sizes, "steps": steps}) + "\n")


def read_algorithm(path: Path) -> Algorithm:
    """The algorithm in a file, or an `InputError` that says where the file is wrong."""
    try:
        size = path.stat().st_size
        if size > BIGGEST_FILE:
            raise _wrong(path, f"{size} bytes", f"at most {BIGGEST_FILE}")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise _wrong(path, wrong.strerror or str(wrong), "a file that can be read") from None
    except (ValueError, RecursionError) as wrong:
        raise _wrong(path, str(wrong)[:200], "JSON in UTF-8") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _wrong(path, "another kind of file", f'"format": "{FORMAT}", as `ridgeline collective -o FILE` writes')
    return _decode_algorithm(path, data)


def _decode_algorithm(path: Path, data: JsonObject) -> Algorithm:
    name = data.get("collective")
    if name not in WHOLE:
        raise InputError(not_among("collective", str(name), WHOLE))
    ranks, chunks = _count(path, data, "ranks", 1), _count(path, data, "chunks", 1)
    nodes, root = _count(path, data, "nodes", ranks), _count(path, data, "root", 0)
    if nodes * chunks > MOST_PLACES:
        raise _wrong(path, f"{nodes} nodes of {chunks} chunks", f"at most {MOST_PLACES} places")
    if name in ("allgather", "reducescatter") and chunks % ranks:
        raise _wrong(path, f"chunks {chunks}", f"a multiple of {ranks} ranks")
    if name == "alltoall" and chunks != ranks * ranks:
        raise _wrong(path, f"chunks {chunks}", f"{ranks * ranks}, one for each pair")
    if root >= ranks:
        raise _wrong(path, f"root {root}", f"0 to {ranks - 1}")
    label = str(data.get("name", ""))[:80]
    return Algorithm(name=label, contract=contract(name, ranks, chunks, root), nodes=nodes, steps=_steps(path, data))


def _count(path: Path, data: JsonObject, key: str, least: int) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise _wrong(path, f"{key} {value!r:.40}", f"a whole number from {least} on")
    return value


def _steps(path: Path, data: JsonObject) -> Steps:
    table = data.get("steps")
    if not isinstance(table, dict) or not all(isinstance(table.get(name), list) for name in COLUMNS):
        raise _wrong(path, "steps without a column", f"lists {', '.join(COLUMNS)}")
    columns = {}
    for name in COLUMNS:
        if not all(type(value) is int and -(2**31) <= value < 2**31 for value in table[name]):
            raise _wrong(path, f"steps.{name} with something else in it", "whole numbers")
        columns[name] = np.array(table[name], np.int64)
    if len({len(column) for column in columns.values()}) > 1:
        raise _wrong(path, "columns of different lengths", "one entry a step in each")
    for name in ("op", "channel"):
        if len(columns[name]) and (columns[name].min() < 0 or columns[name].max() > 127):
            raise _wrong(path, f"steps.{name} outside 0 to 127", "op 0 (copy) or 1 (reduce), channels from 0")
    return steps_of(
        columns["round"], columns["source"], columns["target"], columns["chunk"],
        columns["op"].astype(np.int8), columns["channel"].astype(np.int8),
    )  # fmt: skip


def _wrong(path: Path, given: str, expected: str) -> InputError:
    return InputError(Problem(path="", given=given, expected=expected, where=str(path)))
