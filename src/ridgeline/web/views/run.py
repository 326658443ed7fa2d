"""The page that hands over: files and command of the software that runs a plan, which is started only where allowed."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets import SERVE, TARGETS, check_lines
from ridgeline.web.blocks import CodeText, PageBlock, PageView, ProblemList, TaskButton, TextLines
from ridgeline.web.controls import SCENARIO, state_controls
from ridgeline.web.jobs import CONFIRMED, Tell
from ridgeline.web.scenarios import Shelf, file_command, scenario_file, scenario_table, state_scenario
from ridgeline.web.state import PageState

MOST_LINES = 400  # of a file that is shown, and of a log
STEPS = "20"
GRACE_S = 10


def run_view(state: PageState, shelf: Shelf) -> PageView:
    """The files of a target, with what they cannot say, and the dry run that may be started here."""
    if state["kind"] in ("prefill", "decode"):
        state = state.choose(kind="serve", seq="1024", rate="4")
    scenario = state_scenario(state, shelf)
    target = _target(state, scenario)
    return PageView(
        page="run", title=f"How do I start this with {target}?",
        answer="These are the files that Ridgeline writes, read again and predicted. Nothing is started from here "
        "unless the workbench was told that it may.",
        controls=state_controls(state, ("to", *SCENARIO)),
        blocks=(*_blocks(scenario, target), scenario_file(state, shelf)),
        command=f"{file_command('export')} --to {target} -o launch", url=state.url,
    )  # fmt: skip


def _target(state: PageState, scenario: Scenario) -> str:
    """The chosen software; of the other kind of work the first that does it."""
    serves = scenario.workload.kind in ("serve", "decode", "prefill")
    if serves and state["to"] not in SERVE:
        return "vllm" if "vllm" in SERVE else next(iter(SERVE))
    return state["to"] if state["to"] in TARGETS else "megatron"


def _blocks(scenario: Scenario, target: str) -> Iterator[PageBlock]:
    import ridgeline

    try:
        written = ridgeline.export(scenario, to=target)
    except InputError as wrong:
        yield ProblemList(title=f"{target} cannot be handed this plan", items=wrong.problems)
    else:
        lines = tuple(check_lines(written.check)) if written.check else ()
        yield TextLines(title="Read again and predicted", lines=lines)
        losses = tuple(f"{lost.path}: {lost.why}" for lost in written.lost)
        yield TextLines(title=f"What {target} cannot be told, or is yours", lines=losses)
        for name, text in written.files.items():
            short = "\n".join(text.splitlines()[:MOST_LINES])
            yield CodeText(name=name, title=name, text=short, file=Path(name).name)
    yield launch_button(scenario)


def launch_button(scenario: Scenario) -> TaskButton:
    """The run on this machine's own CPU or accelerator, for plans that are made for it."""
    refusal = ""
    if scenario.workload.kind not in ("train", "rl"):
        refusal = "Requests are served by the engine itself: its files are above."
    return TaskButton(
        task="launch", label="Run it here", confirm=CONFIRMED["launch"], refusal=refusal,
        note=f"`ridgeline run SCENARIO --steps {STEPS}` on this machine; needs `ridgeline open --allow-launch`.",
    )  # fmt: skip


def launch_task(state: PageState, shelf: Shelf, tell: Tell) -> tuple[PageBlock, ...]:
    """Run a scenario here in a process of its own; its log, whether it ended or was stopped."""
    from ridgeline.core.encode import toml_text
    from ridgeline.plan.scenario_file import self_contained

    state_scenario(state, shelf)
    with tempfile.TemporaryDirectory(prefix="ridgeline-run-") as folder:
        file = Path(folder) / "run.toml"
        file.write_text(toml_text(self_contained(scenario_table(state, shelf))), encoding="utf-8")
        words = [sys.executable, "-m", "ridgeline", "run", str(file), "--steps", STEPS]
        command = shlex.join(["ridgeline", "run", "run.toml", "--steps", STEPS])
        lines, code = follow_process(words, tell)
    log = CodeText(name="log", title=f"{command} ended with {code}", text="\n".join(lines), file="run.log")
    return (log,)


def follow_process(words: list[str], tell: Tell) -> tuple[list[str], int]:
    """The last lines of a process and its exit code; it is ended when whoever is told says so."""
    lines: list[str] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines = [*lines, line.rstrip()][-MOST_LINES:]
            if not tell(line.strip()[:120]):
                process.terminate()
                break
        try:
            code = process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    return lines, code
