"""What `ridgeline validate RECORDING --json` prints of a replayed scheduler."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class DifferenceSheet(TypedDict):
    """The first decision that is not the recorded one.

    step       its place in the recording, counted from 0
    field      what differs, by the recording's own name
    recorded   what the real scheduler did
    simulated  what the simulated one did
    """

    step: int
    field: str
    recorded: Any
    simulated: Any


class ReplaySheet(TypedDict):
    """`validate RECORDING`: a simulated scheduler against the recorded decisions of a real one.

    engine            whose decisions were recorded: vllm, sglang
    version           of that engine, empty where the recording does not tell
    steps             recorded engine steps
    differing_steps   those in which any compared field differs, order included
    first_difference  null where every step is the same
    """

    kind: Literal["replay"]
    engine: str
    version: str
    requests: int
    steps: int
    differing_steps: int
    first_difference: DifferenceSheet | None
