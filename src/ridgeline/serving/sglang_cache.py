"""SGLang's KV cache as its scheduler uses it: free tokens, and a radix tree that holds what may be hit again."""

from __future__ import annotations

from ridgeline.serving.radix_cache import Node, RadixCache, Runs, cut
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.step import RequestState


class SglangCache:
    """A pool of tokens in pages. What requests hold is in the tree and locked, or their own."""

    def __init__(self, settings: SglangSettings) -> None:
        self.settings = settings
        self.tree = RadixCache(settings.page_size)
        self.free_tokens = settings.max_total_tokens // settings.page_size * settings.page_size

    def occupancy(self) -> float:
        """Share of the cache that requests hold."""
        free = self.free_tokens + (0 if self.settings.disable_radix_cache else self.tree.evictable)
        return 1 - free / self.settings.max_total_tokens

    def close(self) -> None:
        self.tree.close()

    def text(self, state: RequestState, tokens: int) -> Runs:
        """The first tokens of prompt and answer."""
        request = state.request
        runs = tuple((piece.seed, piece.start, piece.tokens) for piece in request.prompt if piece.tokens)
        if tokens <= state.prompt_tokens:
            return cut(runs, tokens)[0]
        return (*runs, (request.output_seed, state.prompt_tokens, tokens - state.prompt_tokens))

    def _pages(self, tokens: int) -> int:
        page = self.settings.page_size
        return -(-tokens // page) * page

    def _make_room(self, tokens: int) -> None:
        if not self.settings.disable_radix_cache and tokens > self.free_tokens:
            self.free_tokens += self.tree.evict(tokens - self.free_tokens)

    def _keep(self, state: RequestState, tokens: int) -> None:
        """Enter what a request has computed into the tree and hold it there; what was there twice is freed."""
        if self.settings.disable_radix_cache:
            return
        key = self.text(state, tokens)
        present, _ = self.tree.insert(key)
        if tokens > state.prompt_tokens:  # a leaf of its own for the answer, which is then dropped before the prompt
            self.tree.insert(self.text(state, state.prompt_tokens))
        self.free_tokens += max(present - state.held, 0)
        held, node = self.tree.match(key)
        assert isinstance(state.node, Node)
        self.tree.unlock(state.node)
        self.tree.lock(node)
        state.held, state.node = held, node

    def _give_back(self, state: RequestState) -> None:
        self.free_tokens += self._pages(state.computed) - state.held
        assert isinstance(state.node, Node)
        self.tree.unlock(state.node)
        state.held, state.node = 0, self.tree.root
