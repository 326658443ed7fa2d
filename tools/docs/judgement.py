"""Write the tables of docs/concepts/trace-judgement.md: the first finding of every trace, and whether it is right.

    python -m tools docs judgement                  planted traces anew; shared ones anew where ../shared/traces is
    python -m tools docs judgement --h200 FOLDER    and those that benchmarks/judgement_h200.py wrote into a folder
    python -m tools docs judgement --check          fail when the page says something else than the rows

Rows are kept in docs/judgement.json, so that a machine without the traces can write the page. What is right was settled
before: for planted traces by who planted them (`expected`), for others by hand (`VERDICTS`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.pages import DOCS, ROOT, replace_block, write_or_check

sys.path.insert(0, str(ROOT / "tests"))

from planted import CASES, Case, write_case
from planted_again import AGAIN
from planted_blind import BLIND
from planted_held_back import HELD_BACK

import ridgeline
from ridgeline.trace.findings.finding import Finding

PAGE, ROWS = DOCS / "concepts" / "trace-judgement.md", DOCS / "judgement.json"
SHARED = ROOT.parent / "shared" / "traces"
LITTLE = 0.05  # of the span: a healthy step may have findings below
Row = dict[str, Any]
VERDICTS: dict[str, tuple[str, str, float | None]] = {
    # trace: what an expert names first, words the first finding must have, gain measured elsewhere
    "kineto/a100_nccl_rank0of2.json.gz": ("launches too slow: idle 76 %", "idle, host", None),
    "kineto/a100_rank0of16.json.gz": ("idle 64 %, of what the file does not tell", "dependency|does not show", None),
    "kineto/a100_rank3of8_control.json.gz": ("exposed all-to-all, and unfused work", "chains|exposed", None),
    "kineto/dlrm_8ranks": ("launches too slow: 16 samples a rank", "idle, host", None),
    "kineto/h100_qwen05b.json.gz": ("norms, rotary and activations op by op", "chains", None),
    "kineto/h200_llama1b_train_eager.json.gz": ("not compiled", "chains", 0.148),
    "kineto/h200_llama1b_train_compiled.json.gz": ("near its roofs: nothing large", "", None),
    "kineto/mi300_qwen05b.json.gz": ("norms, rotary and activations op by op", "chains", None),
    "kineto/mi300_sglang_qwen3_8b_decode.json.gz": ("a hole of 463 ms in the capture", "longest 463", None),
    "kineto/sampled_rank0of128.json.gz": (
        "idle 55 %, kernels left out by sampling",
        "does not show|idle, pauses",
        None,
    ),
    "kineto/sampled_rank1of128.json.gz": (
        "idle 53 %, kernels left out by sampling",
        "does not show|idle, pauses",
        None,
    ),
    "kineto/v100_rank1of2.json.gz": ("launches too slow: idle 42 %", "idle, host", None),
    "kineto/v100_resnet_torch19_worker0.json.gz": ("a loader without workers", "data loading", 0.196),
    "kineto/vllm_prefilldecode_graph.json.gz": ("busy all the time in fused kernels: nothing large", "", None),
    "nsys/cloverleaf_cuda.sqlite.gz": ("waits after every kernel group", "synchronisation", None),
    "nsys/mfu_2gpu_before.sqlite.gz": ("eager: norms and activations op by op", "chains", None),
    "nsys/mfu_2gpu_after.sqlite.gz": ("eager: norms and activations op by op", "chains|idle, host", None),
    "ascend/trace_view.json.gz": ("idle 84 %", "idle", None),
    "ascend/PROF_alexnet": ("all-reduce that nothing hides", "exposed communication", None),
    "xplane/mi300_jax_conv.xplane.pb": ("idle 97 %: the host", "idle", None),
}


def row_of(path: Path, id: str, cause: str, expected: tuple[str, ...], measured: float | None) -> Row:
    """One line: the first finding of a trace, and whether it says what was settled before."""
    findings = ridgeline.analyze(path).findings
    first = findings[0] if findings else None
    return {
        "id": id, "cause": cause, "first": short(first), "right": is_right(first, expected),
        "promised": first.predicted_gain if first else 0.0, "measured": measured,
    }  # fmt: skip


def short(first: Finding | None) -> str:
    return "nothing" if first is None else re.split(r"[;(]", first.what)[0].strip()[:150]


def is_right(first: Finding | None, expected: tuple[str, ...]) -> bool:
    if not expected:
        return first is None or first.predicted_gain < LITTLE
    return first is not None and any(re.search(pattern, first.what) for pattern in expected)


def planted_rows(cases: dict[str, Case]) -> Iterator[Row]:
    """Planted traces; the gain is that of the mended run."""
    with tempfile.TemporaryDirectory() as folder:
        for case in cases.values():
            before, after = (write_case(case, Path(folder), is_mended) for is_mended in (False, True))
            spans = [ridgeline.analyze(path).breakdown.total.span_ns for path in (before, after)]
            gain = 1 - spans[1] / spans[0] if case.expected else None
            yield row_of(before, case.id, case.cause, case.expected, gain)


def shared() -> Iterator[Row]:
    for name, (cause, expected_words, gain) in VERDICTS.items():
        if (SHARED / name).exists():
            yield row_of(SHARED / name, name, cause, (expected_words,) if expected_words else (), gain)


EXPECTED = {
    "items": ("synchronisation",), "tf32": ("matrix unit",), "attention": ("attention.*unfused",),
    "copies": ("copies host to device, pageable",), "elementwise": ("chains",), "optimizer": ("optimizer",),
    "layout": ("layout changes",), "launches": ("idle, host",), "loader": ("data loading",), "padding": ("50,257",),
    "retries": ("alloc",),
}  # fmt: skip


def h200(folder: Path) -> Iterator[Row]:
    """Own runs before and after a fix; the gain is that of steps without a profiler."""
    cases = json.loads((folder / "measured.json").read_text(encoding="utf-8"))["cases"]
    for name, case in cases.items():
        if "after_s" in case:
            gain = 1 - case["after_s"] / case["before_s"]
            row = row_of(folder / f"{name}-before.json.gz", name, case["what"].rstrip("."), EXPECTED[name], gain)
            findings_after = ridgeline.analyze(folder / f"{name}-after.json.gz").findings
            first = findings_after[0] if findings_after else None
            still = first is not None and is_right(first, EXPECTED[name])
            gone = f"{short(first)}, {first.predicted_gain:.1%}" if first else "nothing"
            yield row | {"after": f"**still** {gone}" if still else gone}


def table(rows: list[Row]) -> str:
    """Traces with their first finding; a wrong one in bold."""
    if not rows:
        return "No rows yet."
    after = "after" in rows[0]
    lines = [
        f"| trace | what limits it | first finding | promised | measured |{' after the fix |' * after}",
        f"|---|---|---|---|---|{'---|' * after}",
    ]
    for row in rows:
        gain = "" if row["measured"] is None else f"{row['measured']:.1%}"
        first = row["first"].partition(":")[0].replace("|", "\\|")  # its kind; `analyze` says the rest
        first = first if row["right"] else f"**wrong: {first}**"
        after_cell = f" {row['after'].partition(':')[0]} |" if after else ""
        lines.append(f"| {row['id']} | {row['cause']} | {first} | {row['promised']:.1%} | {gain} |{after_cell}")
    good = sum(row["right"] for row in rows)
    return "\n".join([*lines, "", f"{good} of {len(rows)} right."])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--h200", type=Path, metavar="FOLDER")


def run(arguments: argparse.Namespace) -> int:
    """Judge the traces again and write the page, or check the page against the stored rows."""
    rows: dict[str, list[Row]] = json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else {}
    if not arguments.check:
        for key, cases in (("planted", CASES), ("held back", HELD_BACK), ("blind", BLIND), ("again", AGAIN)):
            rows[key] = list(planted_rows(cases))
        rows["shared"] = list(shared()) or rows.get("shared", [])
        rows["h200"] = list(h200(arguments.h200)) if arguments.h200 else rows.get("h200", [])
        ROWS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        for key, key_rows in rows.items():
            print(f"{key}: {sum(row['right'] for row in key_rows)} of {len(key_rows)} right")
    text = PAGE.read_text(encoding="utf-8")
    for key, key_rows in rows.items():
        text = replace_block(text, key, table(key_rows))
    return write_or_check(PAGE, text, check=arguments.check, command="docs judgement")
