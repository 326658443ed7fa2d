"""Tell a collective's file by what stands in it, read and verify it; write an algorithm as a library's file.

    ridgeline   its own JSON               msccl, rccl   XML                    mscclpp   execution plan JSON
    nccl-tuner  rules by size, CSV         hccl          HCCL_ALGO=...

Nothing is written that its target would not take: the text is read back and executed first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Steps, steps_of
from ridgeline.comm.contract import PLAIN_COLLECTIVES, contract
from ridgeline.comm.formats.lower import lower_algorithm
from ridgeline.comm.formats.msccl import msccl_text, read_msccl
from ridgeline.comm.formats.mscclpp import mscclpp_text, read_mscclpp
from ridgeline.comm.formats.program import RankProgram, Wrong, execute
from ridgeline.comm.formats.settings_files import NAME, HcclSetting, Rule, read_hccl, read_tuner
from ridgeline.comm.graph import refusal
from ridgeline.comm.verify import AlgorithmVerification, verify_algorithm
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import finite_json, write_text

ALGORITHM_TARGETS = ("ridgeline", "msccl", "rccl", "mscclpp")
CHOICE_TARGETS = ("nccl-tuner", "hccl")
TARGETS = (*ALGORITHM_TARGETS, *CHOICE_TARGETS)
BIGGEST = 256 * 2**20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveFile:
    """What a file holds: an algorithm with its verification, or a library's settings, which were checked.

    format     ridgeline, msccl, mscclpp, nccl-tuner or hccl
    problems   the first steps and outputs that are wrong, each with its rank; none where `verified`
    settings   of a tuner's or environment file, which hold no algorithm: what each rule says
    warnings   rules that the library reads and passes by, each with why
    """

    JSON = """
        kind='verification' format collective algorithm=algorithm_name ranks rounds steps verified problems
        settings=rule_texts warnings
    """
    format: str
    algorithm: Algorithm | None = None
    verification: AlgorithmVerification | None = None
    rules: tuple[Rule, ...] = ()
    settings: tuple[HcclSetting, ...] = ()

    @property
    def collective(self) -> str:
        return self.algorithm.contract.collective if self.algorithm else ""

    @property
    def algorithm_name(self) -> str:
        return self.algorithm.name if self.algorithm else ""

    @property
    def ranks(self) -> int:
        return self.algorithm.ranks if self.algorithm else 0

    @property
    def rounds(self) -> int:
        return self.algorithm.rounds if self.algorithm else 0

    @property
    def steps(self) -> int:
        return self.verification.steps if self.verification else 0

    @property
    def verified(self) -> bool:
        return self.verification.ok if self.verification else True

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.verification.problems) if self.verification else ()

    @property
    def rule_texts(self) -> tuple[str, ...]:
        return (*map(str, self.rules), *map(str, self.settings))

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(rule.without_effect for rule in self.rules if rule.without_effect)


def read_collective(path: Path, profile: str = "") -> CollectiveFile:
    """The content of any such file; `InputError` where it breaks a rule of its format.

    profile   rccl: hold an XML file against RCCL's narrower limits
    """
    wrong = Wrong(str(path))
    raw = _bytes(path, wrong)
    head = raw[:4096].lstrip()
    if head.startswith(b"<"):
        return _executed_file("msccl", read_msccl(path, raw, profile))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise wrong("", "bytes that are not UTF-8", "a text file") from None
    if head.startswith((b"{", b"[")):
        return _json(path, text, wrong)
    if NAME in text[:4096]:
        return CollectiveFile(format="hccl", settings=read_hccl(path, text))
    return CollectiveFile(format="nccl-tuner", rules=read_tuner(path, text))


def _bytes(path: Path, wrong: Wrong) -> bytes:
    try:
        if path.is_char_device() or path.is_block_device():
            raise wrong("", "a device", f"a file of at most {BIGGEST} bytes")
        with path.open("rb") as file:
            raw = file.read(BIGGEST + 1)
    except OSError as broken:
        raise wrong("", broken.strerror or str(broken), "a file that can be read") from None
    if len(raw) > BIGGEST:
        raise wrong("", f"more than {BIGGEST} bytes", f"at most {BIGGEST}")
    return raw


def _json(path: Path, text: str, wrong: Wrong) -> CollectiveFile:
    try:
        data = finite_json(text)
    except (ValueError, RecursionError) as broken:
        raise wrong("", str(broken)[:160], "JSON in UTF-8") from None
    if isinstance(data, dict) and data.get("format") == FORMAT:
        read = read_algorithm(path)
        return CollectiveFile(format="ridgeline", algorithm=read, verification=verify_algorithm(read))
    if isinstance(data, dict) and "gpus" in data:
        return _executed_file("mscclpp", read_mscclpp(path, data))
    raise wrong("", "another kind of JSON", f'"format": "{FORMAT}", or an execution plan with "gpus"')


def _executed_file(format: str, program: RankProgram) -> CollectiveFile:
    algorithm, verification = execute(program)
    return CollectiveFile(format=format, algorithm=algorithm, verification=verification)


def target_text(algorithm: Algorithm, target: str) -> str:
    """An algorithm as the text of a library's file, read back and executed; `InputError` where that fails."""
    if target in ("msccl", "rccl"):
        text = msccl_text(lower_algorithm(algorithm, "rccl" if target == "rccl" else "msccl"))
        program = read_msccl(Path(f"<{target}>"), text.encode(), target)
    else:
        text = mscclpp_text(algorithm)
        program = read_mscclpp(Path(f"<{target}>"), json.loads(text))
    _, verification = execute(program)
    if not verification.ok:
        first = verification.problems[0]
        raise refusal(f"--to {target}: {first.path}", first.given, first.expected)
    return text


def write_collective(algorithm: Algorithm, path: Path, target: str) -> None:
    """Write an algorithm as a library's file, at once or not at all."""
    if target not in ALGORITHM_TARGETS:
        raise InputError(not_among("--to", target, ALGORITHM_TARGETS))
    if target == "ridgeline":
        write_algorithm(algorithm, path)
    else:
        write_text(path, target_text(algorithm, target))


FORMAT = "ridgeline-collective"
COLUMNS = ("round", "source", "target", "chunk", "op", "channel")
BIGGEST_FILE = 2**30  # bytes
MOST_PLACES = 2**26  # nodes times chunks


def write_algorithm(algorithm: Algorithm, path: Path) -> None:
    """Write an algorithm of equal chunks as JSON, at once or not at all."""
    contract = algorithm.contract
    if contract.collective not in PLAIN_COLLECTIVES:
        raise _wrong(path, contract.collective, "a collective of equal chunks: " + ", ".join(PLAIN_COLLECTIVES))
    steps = {name: getattr(algorithm.steps, name).tolist() for name in COLUMNS}
    head = {"format": FORMAT, "version": 1, "name": algorithm.name, "collective": contract.collective}
    sizes = {"ranks": contract.ranks, "nodes": algorithm.nodes, "chunks": contract.chunks, "root": contract.root}
    write_text(path, json.dumps({**head, **sizes, "steps": steps}) + "\n")


def read_algorithm(path: Path) -> Algorithm:
    """The algorithm in a file, or an `InputError` that says where the file is wrong."""
    try:
        size = path.stat().st_size
        if size > BIGGEST_FILE:
            raise _wrong(path, f"{size} bytes", f"at most {BIGGEST_FILE}")
        data = finite_json(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise _wrong(path, wrong.strerror or str(wrong), "a file that can be read") from None
    except (ValueError, RecursionError) as wrong:
        raise _wrong(path, str(wrong)[:200], "JSON in UTF-8") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _wrong(path, "another kind of file", f'"format": "{FORMAT}", as `ridgeline collective -o FILE` writes')
    return _decode_algorithm(path, data)


def _decode_algorithm(path: Path, data: JsonObject) -> Algorithm:
    name = data.get("collective")
    if name not in PLAIN_COLLECTIVES:
        raise InputError(not_among("collective", str(name), PLAIN_COLLECTIVES))
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
    columns: JsonObject = {}
    for name in COLUMNS:
        if not all(type(value) is int and -(2**31) <= value < 2**31 for value in table[name]):
            raise _wrong(path, f"steps.{name} with something else in it", "whole numbers")
        columns[name] = np.array(table[name], np.int64)
    if len({len(column) for column in columns.values()}) > 1:
        raise _wrong(path, "columns of different lengths", "one entry a step in each")
    for name in ("op", "channel"):
        if len(columns[name]) and (columns[name].min() < 0 or columns[name].max() > 127):
            raise _wrong(path, f"steps.{name} outside 0 to 127", "op 0 (copy) or 1 (reduce), channels from 0")
    return steps_of(**columns)


def _wrong(path: Path, given: str, expected: str) -> InputError:
    return InputError(Problem(path="", given=given, expected=expected, where=str(path)))
