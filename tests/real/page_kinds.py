"""Write every kind of page that a verb writes, by name; each once a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from page_traces import ranks

from ridgeline.cli.main import main
from ridgeline.report import page

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*words: str) -> None:
    """A command line, which must end well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, words


def command(*words: str) -> Callable[[Path], None]:
    """A page that a command line writes; `{}` stands for the file."""
    return lambda path: run(*(word.replace("{}", str(path)) for word in words))


def traced(count: int) -> Callable[[Path], None]:
    """The page of a trace of so many ranks."""

    def write(path: Path) -> None:
        traces = ranks(path.with_suffix(".traces"), 3000 * count, count)
        run("analyze", str(traces), "--what-if", "matmul x2", "--html", str(path))

    return write


def bringup_pages() -> Mapping[str, Callable[[Path], None]]:
    """Pages of bring-up, of results that are put together here: a real one takes minutes."""
    bringup = pytest.importorskip("ridgeline.runtime.bringup", reason="bring-up needs torch")
    from ridgeline.runtime.bringup.findings import BringUp, Check, Fingerprint, OpFinding

    wrong = [
        OpFinding(op=f"aten.{op}.default", module=f"layers.{place}.mixer.query", phase="forward", dtype="float32",
                  statistic="power", measured=116863.2, limit=4.0, times=66)
        for place, op in enumerate(("mm", "bmm", "addmm"))
    ]  # fmt: skip
    ops = ", ".join(finding.op for finding in wrong)
    ladder = [
        Check(name="whole model", format="fp32", verdict="fail", statistic="power", measured=874871.0, limit=6.05,
              where="gradient of layers.1.mixer_norm.weight", op=ops),
        Check(name="logits", format="bf16", verdict="pass", statistic="divergence", measured=7.9e-7, limit=3.7e-6),
        Check(name="compiled", format="bf16", verdict="not run", reason="torch has no compiler for the fake device"),
    ]  # fmt: skip
    found = BringUp(
        model="llama3.2-1b", device="ridge", findings=tuple(wrong), ops={"aten.mm.default": 80}, signatures=916,
        probed=1674, ladder=tuple(ladder), invariances=tuple(ladder), fault="tf32_products", fired=12,
        fingerprint=Fingerprint(), environment={"device": "a fake device", "torch": "2.13.0"},
    )  # fmt: skip
    right = replace(found, findings=(), fault="no_fault", fired=0)
    faults = bringup.FaultsReport(faults=(found, right))
    dump = bringup.ImportedDump(
        folder="dump_path", framework="pytorch", tasks=("tensor",), dumps=3, calls=1200, findings=tuple(wrong),
        replayed=1000, by_statistics=100, unjudged={"torch.rand": 40}, unreadable={},
    )  # fmt: skip
    results: dict[str, object] = {
        "bringup": found,
        "bringup-right": right,
        "bringup-faults": faults,
        "bringup-dump": dump,
    }
    return {name: _writer(result) for name, result in results.items()}


def _writer(result: object) -> Callable[[Path], None]:
    text = page(result, "ridgeline bringup llama3.2-1b --device ridge --html page.html")
    return lambda path: path.write_text(text, encoding="utf-8") and None


SERVED = ("--rate", "20", "--isl", "2000", "--osl", "300", "--ttft", "500ms", "--tpot", "40ms")
KINDS: Mapping[str, Callable[[Path], None]] = {
    "plan": command("plan", "llama3-8b", "--on", "8xh100-sxm", "--html", "{}", "--json"),
    "plan-systems": command(
        "plan", "llama3.1-405b", "--on", "1024xh200-sxm,1024xmi355x,1024xtpu-v7x", "--html", "{}", "--json"
    ),
    "plan-sizes": command(
        "plan", "llama3-8b", "--on", "h100-sxm", "--chips", "8..32", "--set", "plan.pp=1", "--html", "{}", "--json"
    ),
    "plan-serve": command("plan", "llama3.1-8b", "--on", "8xh100-sxm", "--serve", *SERVED, "--html", "{}", "--json"),
    "timeline-step": command("timeline", str(EXAMPLES / "llama3.2-1b-1xh200.toml"), "--html", "{}"),
    "timeline-deployment": command("timeline", str(EXAMPLES / "serve-llama3.1-8b-1xh100.toml"), "--html", "{}"),
    "timeline-disaggregated": command(
        "timeline", str(EXAMPLES / "serve-disaggregated-llama3.1-70b.toml"), "--set", "workload.requests=200",
        "--html", "{}",
    ),
    "roofline": command("roofline", "llama3-8b", "--on", "h200-sxm", "-o", "{}", "--json"),
    "roofline-decode": command(
        "roofline", "deepseek-v3", "--on", "h200-sxm", "--phase", "decode", "--batch", "64", "-o", "{}", "--json"
    ),
    "analyze-one-rank": traced(1),
    "analyze-ranks": traced(3),
    "diff": command("diff", str(EXAMPLES / "llama3.2-1b-1xh200.toml"), "--set", "workload.seq=4096", "--html", "{}"),
    "collective": command(
        "collective", "reduce", "--topology", "torus:4x4", "--size", "64MB", "--without", "link:3-7", "--synthesize",
        "--by-size", "--picture", "{}", "--json",
    ),
    "validate": command("validate", "--where", "source=h200,tpu", "--html", "{}", "--json"),
}  # fmt: skip
