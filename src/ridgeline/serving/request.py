"""What is asked of an engine: requests, and the text of their prompts as far as caches can tell it apart."""

from __future__ import annotations

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens `start .. start + tokens` of an endless text named by `seed`: equal seed and place, equal token."""

    seed: int
    tokens: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and its answer.

    `output_tokens` is the true length of the answer, `max_new_tokens` what the client allowed: schedulers see the
    second, the engine finds out the first. `after` names the request whose answer precedes this one in a session:
    it is sent `arrival_s` after that answer's last token instead of `arrival_s` after the start.
    `remote_tokens` of the prompt were computed by another engine and their cache has been sent here.
    """

    id: str
    arrival_s: float
    prompt: tuple[Piece, ...]
    output_tokens: int
    max_new_tokens: int
    priority: int = 0
    output_seed: int = 0
    after: str | None = None
    remote_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        prompt = self.prompt
        return prompt[0].tokens if len(prompt) == 1 else sum(piece.tokens for piece in prompt)

    def sent_at(self, arrival_s: float) -> Request:
        """The same request at another time: `replace` of one field, at half its cost where there are many."""
        return Request(
            id=self.id, arrival_s=arrival_s, prompt=self.prompt, output_tokens=self.output_tokens,
            max_new_tokens=self.max_new_tokens, priority=self.priority, output_seed=self.output_seed, after=self.after,
            remote_tokens=self.remote_tokens,
        )  # fmt: skip

    @property
    def answer(self) -> Piece:
        """The answer's text: what a later prompt of the session quotes."""
        return Piece(seed=self.output_seed, tokens=self.output_tokens, start=self.prompt_tokens)


def plain_request(*, index: int, arrival_s: float, prompt_tokens: int, output_tokens: int) -> Request:
    """A request that shares no token with any other."""
    return Request(
        id=f"r{index}",
        arrival_s=arrival_s,
        prompt=(Piece(seed=2 * index, tokens=prompt_tokens),),
        output_tokens=output_tokens,
        max_new_tokens=output_tokens,
        output_seed=2 * index + 1,
    )
