"""The page that takes files: a trace, a config.json, a launch script, a scenario, a load generator's result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.core.units import DECIMAL
from ridgeline.report.pieces import terminal_text
from ridgeline.trace import Analysis
from ridgeline.web.blocks import (
    BarChart,
    BarLine,
    CodeText,
    DropZone,
    FigureItem,
    FigureRow,
    GridTable,
    LinkCell,
    PageBlock,
    PageView,
    TableCell,
    TaskButton,
    TextLines,
)
from ridgeline.web.figures import ExplainedNumber, explain_number, given_input
from ridgeline.web.jobs import Tell
from ridgeline.web.scenarios import Shelf, file_of, is_scenario_file
from ridgeline.web.state import PageState
from ridgeline.web.studies import is_study_file

SECONDS = 120  # that a file may take to read
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py", ".args", ".txt")
NANO = DECIMAL["n"]
GROUPS = {"compute": "compute", "communication": "network", "memory": "memory", "host": "host", "copy": "memory"}
READS = (
    "a profiler's trace (PyTorch, JAX, Nsight Systems, Ascend, Chakra), or a folder of ranks",
    "a config.json of Hugging Face, or a model file",
    "a launch script or configuration of Megatron, DeepSpeed, torchtitan, vLLM, SGLang and others",
    "a scenario file, which opens on Predict",
    "the result of a load generator, hardware counters, or an allocator's snapshot",
)


def page_of_file(path: Path) -> str:
    """The page that shows a file: scenarios on Predict, configurations of models on Describe, all others here."""
    if is_study_file(path):
        return "design"
    if is_scenario_file(path):
        return "predict"
    return "describe" if is_model_file(path) else "files"


def is_model_file(path: Path) -> bool:
    """Whether a file is a model's configuration."""
    if path.suffix.lower() not in SUFFIXES:
        return False
    try:
        keys = read_table(path).data.keys()
    except InputError:
        return False
    return bool({"model_type", "architectures", "hidden_size"} & keys) or {"hidden", "layers"} <= keys


def files_view(state: PageState, shelf: Shelf) -> PageView:
    """Where files are dropped, those that are here, and what one of them says."""
    path = file_of(state, shelf)
    blocks: list[PageBlock] = []
    if path is not None:
        blocks.append(
            TaskButton(task="analyze", label="Read it again", automatic=True, note=f"{path.name}, {_size(path)}")
        )
    blocks.append(
        DropZone(title="Drop a file here, or choose one", note="it is read by this machine alone, never executed")
    )
    if shelf:
        blocks.append(_shelf_table(shelf))
    if path is None:
        blocks.append(TextLines(title="What is read", lines=READS))
    return PageView(
        page="files", title=f"What does {path.name} say?" if path is not None else "What does my file say?",
        answer="A trace is analysed, a configuration becomes a prediction, a script becomes a scenario.",
        blocks=tuple(blocks), url=state.url,
        command=shlex.join(["ridgeline", _verb_of(path), path.name]) if path is not None else "",
    )  # fmt: skip


def _verb_of(path: Path) -> str:
    return "import" if path.suffix.lower() in SCRIPTS else "analyze"


def _size(path: Path) -> str:
    return f"{path.stat().st_size / DECIMAL['M']:,.2f} MB" if path.is_file() else "a folder"


def _shelf_table(shelf: Shelf) -> GridTable:
    rows: list[tuple[TableCell, ...]] = []
    for key, path in shelf.items():
        page = page_of_file(path)
        link = LinkCell(text=path.name, href=PageState(page=page).choose(file=key).url)
        frame = LinkCell(text="in Perfetto", href=PageState(page="timeline").choose(file=key).url)
        rows.append((link, _size(path), page, frame if page == "files" else ""))
    return GridTable(
        name="files", title="Files of this session", head=("file", "size", "page", "timeline"), rows=tuple(rows),
        text=("file", "size", "page", "timeline"),
    )  # fmt: skip


# -- reading ----------------------------------------------------------------------------------------------------------


def analyze_task(state: PageState, shelf: Shelf, tell: Tell) -> tuple[PageBlock, ...]:
    """What a file says: as a scenario where it is a script, else as a trace, a result, counters or a snapshot."""
    path = file_of(state, shelf)
    if path is None:
        raise InputError(Problem(path="file", given="none", expected="a file", todo="drop one"))
    if path.suffix.lower() in SCRIPTS:
        return tuple(script_blocks(path, tell))
    until = time.monotonic() + SECONDS

    def progress(done: int, total: int, what: str = "", best: str = "") -> bool:
        del best
        return tell(f"{what or 'reading'} {done:,} of {total:,}" if total else what or "reading") and _in_time(until)

    import ridgeline

    result = ridgeline.analyze(path, progress=progress)
    return tuple(_analysis_blocks(state, result) if isinstance(result, Analysis) else _other_blocks(result))


def _in_time(until: float) -> bool:
    if time.monotonic() < until:
        return True
    todo = "`ridgeline analyze FILE` reads it without this limit"
    raise InputError(Problem(path="file", given=f"more than {SECONDS} s", expected="less to read", todo=todo))


def _other_blocks(result: object) -> Iterator[PageBlock]:
    yield CodeText(name="report", title="What it says", text=terminal_text(result), file="report.txt")


def _analysis_blocks(state: PageState, result: Analysis) -> Iterator[PageBlock]:
    total, policy = result.breakdown.total, result.breakdown.policy
    source = f"measured: {', '.join(Path(name).name for name in result.timeline.about.sources)}; {policy.statement}"

    def seconds(nanoseconds: float, formula: str) -> ExplainedNumber:
        inputs = [given_input("spans counted", f"{policy.counted:,}", "the trace"),
                  given_input("chips", f"{len(result.breakdown.chips):,}", "the trace")]  # fmt: skip
        return explain_number(nanoseconds * NANO, "s", formula, inputs, source)

    span = seconds(total.span_ns, "last end − first begin of what counts, the mean of chips")
    yield FigureRow(items=(
        FigureItem(name="of the trace", number=span),
        FigureItem(name="busy", number=seconds(total.busy_ns, "union of all spans of a chip")),
        FigureItem(name="idle", number=seconds(total.idle_ns, "span − busy")),
    ))  # fmt: skip
    classes = [entry for entry in result.breakdown.classes if entry.union_ns]
    yield GridTable(
        name="findings",
        title="What limits it, the most gain first",
        head=("finding", "gains", "do"),
        rows=tuple(
            (finding.what, _gain(finding.predicted_gain, source), finding.action) for finding in result.findings
        ),
        text=("finding", "do"),
    )
    rows = tuple(
        BarLine(name=entry.id, number=seconds(entry.union_ns, "union of its spans, the sum over chips"),
                colour=GROUPS.get(entry.group, "host"), meaning=entry.what)
        for entry in classes
    )  # fmt: skip
    if rows:
        longest = max(rows, key=lambda row: row.number.value).number
        yield BarChart(name="classes", title="Where the time went", rows=rows, total=longest, style="plain")
    yield CodeText(name="report", title="In full", text=terminal_text(result), file="report.txt")
    link = PageState(page="timeline").choose(file=state["file"]).url
    yield GridTable(name="next", title="Next", head=("look",), rows=((LinkCell(text="at its timeline", href=link),),),
                    text=("look",))  # fmt: skip


def _gain(share: float, source: str) -> ExplainedNumber:
    return explain_number(
        share, "share", "1 − time with the change / time, the smaller of formula and replay", (), source
    )


def script_blocks(path: Path, tell: Tell) -> Iterator[PageBlock]:
    import ridgeline
    from ridgeline.core.encode import toml_text
    from ridgeline.run_api import unread_lines

    tell(f"reading {path.name}")
    result = ridgeline.import_run(path)
    yield CodeText(name="scenario", title=f"As a scenario, read as {result.target}", text=toml_text(result.settings),
                   file=f"{path.stem}.toml")  # fmt: skip
    yield TextLines(title="Assumed", lines=result.assumptions)
    yield TextLines(title="Not read", lines=tuple(unread_lines(result)))
    chips = f"{result.chips} chips" if result.chips else "its chips"
    todo = "save the scenario, add the system where it names none, and drop it here: it opens on Predict"
    yield TextLines(title="Next", lines=(f"{todo} ({chips})",))
