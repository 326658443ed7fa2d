"""One engine step as a scheduler decides it, the state of a request inside an engine, and what a policy must offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeline.core.records import dataclass
from ridgeline.serving.engine.prefix_index import Span
from ridgeline.serving.request import Request


class RequestState:
    """A request inside an engine: what it holds, how far it is, and when things happened to it.

    While it decodes, its computed tokens are `offset + clock`, where the clock counts the engine's decode steps: a
    step moves every decoding request without touching any.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "computed",
        "decoding",
        "first_hit_tokens",
        "first_scheduled_s",
        "first_token_s",
        "held",
        "hit_tokens",
        "known",
        "last_token_s",
        "node",
        "offset",
        "order",
        "preempted_s",
        "preemptions",
        "prefilled_s",
        "priority",
        "prompt_tokens",
        "quotes_answer",
        "remote",
        "request",
        "sent_s",
        "slots",
        "spans",
        "stalled_mark_s",
        "stalled_s",
        "target",
        "transfer_s",
    )

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.priority = request.priority
        self.prompt_tokens = request.prompt_tokens
        self.known = self.prompt_tokens
        self.computed = 0
        self.offset = 0
        self.decoding = False
        self.order = 0
        self.target = 0
        self.blocks: list[int] = []
        self.spans: list[Span] = []
        self.quotes_answer = False
        self.slots = 0
        self.held = 0  # tokens that a radix tree holds for it
        self.node: object = None
        self.hit_tokens = 0
        self.remote = 0  # tokens whose cache another engine sent
        self.preemptions = 0
        self.first_scheduled_s = -1.0
        self.first_token_s = -1.0
        self.last_token_s = 0.0
        self.sent_s = 0.0
        self.first_hit_tokens = 0
        self.preempted_s = 0.0
        self.stalled_mark_s = 0.0
        self.stalled_s = 0.0
        self.prefilled_s = 0.0  # spent on another engine's prefill
        self.transfer_s = 0.0


@dataclass(slots=True)
class Chunk:
    """Prompt tokens of one request computed in one step, after `context` tokens already in the cache."""

    state: RequestState
    tokens: int
    context: int
    last: bool
    """Whether the prompt is complete after it, so that the step samples a token for this request."""


class Step:
    """What one engine step executes.

    chunks     prompt tokens, request by request in order
    admitted   requests that begin with this step, again after a preemption
    decodes    requests that compute one token each
    kv_tokens  tokens these read from the cache, all together (their new one included)
    wasted     those of them that compute past the end of their answer (an end not known yet)
    joined     those of them that did not decode in the last decode step
    decoded    all of them in order, where the policy walked them one by one
    idle       running requests that compute nothing, for lack of budget or because they wait for their result
    preempted  requests that lost their cache and wait again
    finishing  requests whose last token this step computes
    """

    __slots__ = (
        "admitted", "chunks", "decoded", "decodes", "finishing", "idle", "joined", "kv_tokens", "preempted", "wasted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.admitted: list[RequestState] = []
        self.decodes = 0
        self.kv_tokens = 0
        self.wasted = 0
        self.joined: list[RequestState] = []
        self.decoded: list[RequestState] | None = None
        self.idle: list[RequestState] = []
        self.preempted: list[RequestState] = []
        self.finishing: list[RequestState] = []

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks


class Policy(Protocol):
    """A scheduler as a state machine: requests enter, steps leave, results come back."""

    depth: int
    """Steps scheduled before the result of the first is known: 1, or 2 with asynchronous scheduling."""

    def add(self, request: Request) -> RequestState: ...

    def schedule(self) -> Step: ...

    def update(self, step: Step) -> Sequence[RequestState]:
        """Take back the result of a step; the requests that are finished by it."""

    def decode_room(self, limit: int) -> int:
        """How many of the next `limit` steps are pure decode of the same requests, whatever time they take."""

    def decode_load(self) -> tuple[int, int]:
        """How many requests decode, and how many tokens of theirs are in the cache."""

    def decode_run(self, steps: int) -> Step:
        """That many steps at once, as the last of them: `decode_room` said that they are alike."""

    def load(self) -> tuple[int, int]:
        """How many requests wait, and how many run."""

    def occupancy(self) -> float:
        """Share of the KV cache that requests hold; what only waits to be hit again is free."""

    @property
    def has_unfinished(self) -> bool: ...

    def become_idle(self) -> None:
        """Nothing is left to do before the next arrival."""

    def close(self) -> None:
        """No step follows: part what refers to itself in a circle, so that it is freed without being looked for."""
