"""Write which types of transformers' models are read and captured: docs/concepts/architectures.md. Needs transformers.

    python -m tools docs architectures                  every type; forwards recorded before are used again
    python -m tools docs architectures --only TYPE ...  these rows anew, the others as the page has them
    python -m tools docs architectures --fresh          without what an earlier call recorded
    python -m tools docs architectures --jobs N         recordings side by side; as many as there are cores
    python -m tools docs architectures --check          fails where the page lacks a type, or where a reader or the
                                                        capture of a small type gives another row

A type is read when its reader's count equals the parameters of the model that transformers builds from the type's
default config on the meta device, and captured when one forward of that model is recorded with the same count.
Recordings are kept in build/architectures.json by the versions of transformers and torch and the code that records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import tomllib
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

from tools.pages import ROOT

warnings.filterwarnings("ignore")
PAGE = ROOT / "docs" / "concepts" / "architectures.md"
KEPT = ROOT / "build" / "architectures.json"
GIVEN = tomllib.loads((ROOT / "docs" / "architectures.toml").read_text(encoding="utf-8"))
NEEDS = {kind: library for library, kinds in GIVEN.pop("needs").items() for kind in kinds}
KINDS = {"CAUSAL_LM": "causal", "IMAGE_TEXT_TO_TEXT": "image-text", "MULTIMODAL_LM": "multimodal"}
LONGEST_S = 300
SAMPLE = ("gpt2", "git")  # small ones, the second with an image encoder
RECORDS = ("runtime/capture/*.py",)  # code that recordings are made by
HEAD = """# Which architectures are read and captured

`ridgeline` reads the config.json of a model without weights, network or transformers, where it has a reader for the
type. It captures any other type: transformers builds it on the meta device and one forward is recorded
([capture your own model](../how-to/capture.md)). `python -m tools docs architectures` writes this page. It does both
for every causal, image-text and multimodal type of transformers {version}, with its default config.

- **read**: `exact` where the reader's parameters are those of the built model, `yes` where nothing could be built to
  compare with, `differs` where transformers' causal class builds the decoder of a two-stack model alone, or has
  matrices that nothing reads (`longcat_flash`). `tests/real/test_transformers_params.py` compares published sizes.
- **captured**: one forward over text is recorded with all parameters; vision types also get one image. `whole`: every
  layer is made of known parts; `parts`: something is priced op by op; `mixes`: tokens meet in a way that no known part
  has, so that tensor ranks do not split those layers.
- **note**: why the other way is closed; `given`: keys that the default config lacks, published or assumed
  (`docs/architectures.toml`); `needs`: what transformers builds the type with.

{summary}

| types | task | read | captured | note |
|---|---|---|---|---|
"""


class Recorded(NamedTuple):
    """How a type was captured and with how many parameters; or why it was not."""

    how: str = ""
    total: int = 0
    refused: str = ""


class Row(NamedTuple):
    """One row of the page, behind type and task."""

    read: str
    captured: str
    note: str


@cache
def types() -> Mapping[str, str]:
    """Every type with the tasks that transformers lists it under."""
    from transformers.models.auto import modeling_auto

    tasks_of: dict[str, list[str]] = {}
    for name, word in KINDS.items():
        for kind in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES"):
            tasks_of.setdefault(kind, []).append(word)
    return {kind: ", ".join(words) for kind, words in sorted(tasks_of.items())}


def config_of(kind: str) -> dict[str, Any]:
    """A type's default config as transformers saves it, with what it is given."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class, given_keys = CONFIG_MAPPING[kind], GIVEN.get(kind, {})
    try:
        config = config_class()
    except Exception:
        config = config_class(**given_keys)
    data = _merge(json.loads(config.to_json_string(use_diff=False)), given_keys)
    config = config_class.from_dict(data) if given_keys else config
    return json.loads(config.to_json_string(use_diff=False)) | {"model_type": kind} | _classes(given_keys)


def _classes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key == "architectures"}


def _merge(data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A table with other values given, table by table."""
    table = data if isinstance(data, dict) else {}
    return table | {
        key: _merge(table.get(key), value) if isinstance(value, dict) else value for key, value in given.items()
    }


def record_type(kind: str) -> Recorded:
    """A type's forward, recorded within a time limit."""
    import transformers

    from ridgeline.models.params import count
    from ridgeline.runtime.capture import capture_config

    def late(*_: object) -> None:
        raise TimeoutError(f"a forward that takes over {LONGEST_S} s")

    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST_S)
    try:
        spec = capture_config(config_of(kind))
        return Recorded(how=_how(spec), total=count(spec).total)
    except Exception as wrong:
        return Recorded(refused=_short(wrong))
    finally:
        signal.alarm(0)


def row_of(kind: str, found: Recorded) -> Row:
    """What the page says of a type whose forward was recorded, or not."""
    from ridgeline.core.errors import InputError
    from ridgeline.models.hf import READERS, from_config
    from ridgeline.models.params import count

    needs = [f"needs {NEEDS[kind]}"] if kind in NEEDS else []
    given_note = [f"given {_key_names(GIVEN[kind])}"] if kind in GIVEN else []
    note = found.refused or "; ".join((*needs, *given_note))
    if kind not in READERS:
        return Row("", found.how, note)
    try:
        ours = count(from_config(config_of(kind)))
    except InputError as wrong:
        return Row("not this config", found.how, found.refused or _short(wrong))
    if not found.how:
        return Row("yes", "", note)
    exact = found.total in (ours.total, ours.total - ours.vision)
    return Row("exact" if exact else "differs", found.how, note)


def _how(spec: Any) -> str:
    blocks = [block.captured for block in spec.blocks if block.captured]
    return "mixes" if any(part.mixes for part in blocks) else "parts" if blocks else "whole"


def _key_names(given: Mapping[str, Any], before: str = "") -> str:
    inner = [
        _key_names(value, f"{before}{key}.") if isinstance(value, dict) else f"`{before}{key}`"
        for key, value in given.items()
    ]
    return ", ".join(inner)


def _short(wrong: Exception) -> str:
    text = " ".join(str(wrong).split()).replace("|", "/")
    return re.sub(r"^(module|model|config): got ", "", text)[:140].strip()


def rows_of(text: str) -> dict[str, Row]:
    """The rows that a page has."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "types":
            rows |= dict.fromkeys(cells[0].split(", "), Row(*cells[2:]))
    return rows


def page(rows: Mapping[str, Row]) -> str:
    """The whole page."""
    all_types = types()
    rows = {kind: rows[kind] for kind in all_types if kind in rows}
    lines = []
    for word in KINDS.values():
        task_rows = [rows[kind] for kind, tasks in all_types.items() if word in tasks.split(", ") and kind in rows]
        read = [row.read in ("exact", "yes") for row in task_rows]
        is_captured = [bool(row.captured) for row in task_rows]
        either = sum(reader or capture for reader, capture in zip(read, is_captured, strict=True))
        lines.append(f"{len(task_rows)} {word} types: {sum(read)} read, {sum(is_captured)} captured, {either} either.")
    types_by_row: dict[tuple[str, Row], list[str]] = {}
    for kind, row in rows.items():
        types_by_row.setdefault((all_types[kind], row), []).append(kind)
    body = [f"| {', '.join(kinds)} | {tasks} | {' | '.join(row)} |\n" for (tasks, row), kinds in types_by_row.items()]
    return HEAD.format(version=version("transformers"), summary="  \n".join(lines)) + "".join(body)


@cache
def _code() -> str:
    """What recordings depend on beside their config: versions, and the code that records."""
    digest = hashlib.sha256(f"{version('transformers')} {version('torch')}".encode())
    for pattern in RECORDS:
        for file in sorted((ROOT / "src" / "ridgeline").glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _key(kind: str) -> str:
    given_text = json.dumps(GIVEN.get(kind, {}), sort_keys=True)
    return hashlib.sha256(f"{_code()} {kind} {given_text}".encode()).hexdigest()[:24]


def recordings(kinds: Collection[str], jobs: int, fresh: bool) -> Iterator[tuple[str, Recorded]]:
    """Every type with its recording, as they are made; those made before come first."""
    kept = {} if fresh or not KEPT.exists() else json.loads(KEPT.read_text(encoding="utf-8"))
    earlier = {kind: Recorded(*kept[_key(kind)]) for kind in kinds if _key(kind) in kept}
    yield from earlier.items()
    remaining = [kind for kind in kinds if kind not in earlier]
    KEPT.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(max_workers=max(1, min(jobs, len(remaining)))) as pool:
        jobs_by_future = {pool.submit(record_type, kind): kind for kind in remaining}
        for done in as_completed(jobs_by_future):
            kept[_key(jobs_by_future[done])] = done.result()
            KEPT.write_text(json.dumps(kept), encoding="utf-8")
            yield jobs_by_future[done], done.result()


def wrong_rows(old: Mapping[str, Row]) -> Iterator[str]:
    """Types whose row is not what their reader says now, and small ones that are captured otherwise."""
    for kind, row in old.items():
        if kind in NEEDS:
            continue
        total = -1 if row.read == "differs" else 0
        if kind in SAMPLE:
            now = row_of(kind, record_type(kind))
        else:
            now = row_of(kind, Recorded(how=row.captured, total=total))
            if {now.read, row.read} <= {"exact", "differs"} or {now.read, row.read} <= {"yes", "exact"}:
                now = row  # a count that only a recording tells
            now = now._replace(note=row.note)
        if now != row:
            yield f"{kind}: {' | '.join(now)}"


def check() -> str:
    """What is out of date in the page; nothing where it is not."""
    old = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    missing = sorted(set(old) ^ set(types()))
    wrong = missing or list(wrong_rows(old))
    if not wrong and page(old) != PAGE.read_text(encoding="utf-8"):
        wrong = ["its head"]
    return f"{PAGE.name} is out of date in {', '.join(wrong)}: python -m tools docs architectures" if wrong else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="TYPE", default=[])
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)


def run(arguments: argparse.Namespace) -> int:
    """Write the page, some rows of it, or check it."""
    import transformers

    transformers.logging.set_verbosity_error()
    if arguments.check:
        problem = check()
        print(problem or f"{PAGE.relative_to(ROOT)} is up to date")
        return int(bool(problem))
    unknown = [kind for kind in arguments.only if kind not in types()]
    if unknown:
        print(f"no causal, image-text or multimodal type of transformers: {', '.join(unknown)}")
        return 2
    rows = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    lacking = {kind for kind, library in NEEDS.items() if find_spec(library) is None}
    for kind in sorted(lacking & set(arguments.only or types())):
        print(f"{kind}: {NEEDS[kind]} is not installed, so that its row stays", file=sys.stderr)
    kinds = [kind for kind in arguments.only or types() if kind not in lacking]
    for kind, recording in recordings(kinds, arguments.jobs, arguments.fresh):
        rows[kind] = row_of(kind, recording)
        print(kind, *rows[kind], file=sys.stderr, flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")
    return 0
