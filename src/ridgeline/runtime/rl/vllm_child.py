"""The process that vLLM runs in: `python -m ridgeline.runtime.rl.vllm_child SETTINGS`, a line of JSON each way.

    {"call": "load"}                       weights of the folder, into an engine that is made with the first ones
    {"call": "add", "requests": [...]}     sequences to go on with: name, tokens, seed, most
    {"call": "step", "most": 8}            engine steps until a sequence ends, or so many: the tokens that were drawn
    {"call": "drop"}                       all that has not ended is forgotten

It is a process of its own because vLLM makes a process group, threads and signals of its own, where a training rank has
them already. It ends when nobody writes to it any more, and takes its folder along.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from ridgeline.core.documents import JsonObject

if TYPE_CHECKING:
    import torch
    from vllm import LLM

FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Of the rank that started it: vLLM is a world of one."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
QUIET |= {"VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "WARNING"}
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # GiB; threads stay where they are


def leave_weights_in_place() -> None:
    """vLLM's linear layers on a CPU pack their weights away, where new ones cannot be loaded."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def dispatch(layer: torch.nn.Module, **_: object) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = dispatch


class VllmProcess:
    """An engine and the sequences it works on."""

    def __init__(self, settings: JsonObject) -> None:
        self.settings, self.folder = settings, settings["arguments"]["model"]
        self.engine: LLM | None = None
        self.open: set[str] = set()

    @property
    def llm(self) -> LLM:
        """The engine, behind the first weights."""
        assert self.engine is not None
        return self.engine

    def load(self) -> JsonObject:
        """Weights that lie in the folder; blocks that older ones filled are forgotten."""
        if self.engine is None:
            from vllm import LLM

            self.engine = LLM(**self.settings["arguments"])
            return {}
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": self.folder})
        return {"forgotten": bool(self.llm.reset_prefix_cache())}

    def add(self, requests: list[JsonObject]) -> JsonObject:
        """Sequences to go on with."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        for request in requests:
            sampling = SamplingParams(
                temperature=self.settings["temperature"], seed=request["seed"], max_tokens=request["most"], logprobs=0,
                stop_token_ids=[self.settings["stop"]], ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            self.llm.llm_engine.add_request(request["name"], {"prompt_token_ids": request["tokens"]}, sampling)
            self.open.add(request["name"])
        return {}

    def step(self, most: int | None) -> JsonObject:
        """What was drawn until a sequence ended, or in so many steps: name, tokens, log-probabilities, its end."""
        pieces: list[tuple[str, list[int], list[float], bool]] = []
        steps, has_ended = 0, False
        while self.open and not has_ended and (most is None or steps < most):
            steps += 1
            for output in self.llm.llm_engine.step():
                piece = output.outputs[0]
                tokens = list(piece.token_ids)
                log_probs = [row[token].logprob for token, row in zip(tokens, piece.logprobs or (), strict=True)]
                pieces.append((output.request_id, tokens, log_probs, output.finished))
                has_ended = has_ended or output.finished
                if output.finished:
                    self.open.discard(output.request_id)
        return {"pieces": pieces, "steps": steps}

    def drop(self) -> JsonObject:
        """All that has not ended."""
        self.llm.llm_engine.abort_request(list(self.open))
        self.open.clear()
        return {}


def answer_calls(process: VllmProcess, calls: TextIO, answers: TextIO) -> None:
    """One behind the other, until there are no more."""
    for line in calls:
        call = json.loads(line)
        method: Callable[..., JsonObject] = getattr(process, call.pop("call"))
        answers.write(json.dumps(method(**call)) + "\n")
        answers.flush()


def main() -> None:
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what vLLM prints is no answer
    for name in FOREIGN:
        os.environ.pop(name, None)
    for name, value in (QUIET | (ON_CPU if settings["device"] == "cpu" else {})).items():
        os.environ.setdefault(name, value)
    try:
        if settings["device"] == "cpu":
            leave_weights_in_place()
        answer_calls(VllmProcess(settings), sys.stdin, answers)
    finally:
        shutil.rmtree(settings["arguments"]["model"], ignore_errors=True)


if __name__ == "__main__":
    main()
