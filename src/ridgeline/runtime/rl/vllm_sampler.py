"""vLLM as the rollout engine of a replica: the same prompts, limits and temperature, and tokens that vLLM draws.

Sequences live here and are lent to vLLM: behind the words of a tool, and behind new weights, a sequence is added again
with all it has. Weights go through a folder, as the Hugging Face files of the model.

    seed of a sequence = hash(seed, sample, its tokens so far)

The same seed gives the same run; its tokens are not those of the run's own sampler.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving_plan import VllmKnobs
from ridgeline.runtime.rl.sampler import Decoding, DraftAnswer, Reply, write_token
from ridgeline.runtime.rl.samples import Prompt, Sample
from ridgeline.runtime.rl.vllm_model import vllm_config, vllm_type
from ridgeline.runtime.train.hf_weights import hf_names, stored_tensors
from ridgeline.runtime.train.request import CONFIG, SINGLE, ForwardConstants, WorkerLost

PARALLEL_BLOCK = 32  # tokens: blocks of vLLM's CPU attention are a multiple of so many
LAST_WORDS = 2000  # characters of what a process that ended has printed


def draft_seed(seed: int, draft: DraftAnswer) -> int:
    """The seed of what a sequence goes on with: the run's, the sample's and the place's."""
    sample = draft.prompt.number * draft.prompt.samples + draft.index
    return int.from_bytes(blake2b(f"{seed}:{sample}:{len(draft.tokens)}".encode(), digest_size=4).digest())


def vllm_arguments(folder: Path, decoding: Decoding, knobs: VllmKnobs, device: str, dtype: str) -> JsonObject:
    """What an `LLM` is made with; its log-probabilities are of the distribution that was drawn from."""
    block = knobs.block_size
    arguments: JsonObject = {
        "model": str(folder), "dtype": dtype, "skip_tokenizer_init": True, "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs", "max_model_len": decoding.context + 1, "max_num_seqs": decoding.most,
        "max_num_batched_tokens": max(decoding.chunk, decoding.most, decoding.context + 1),
        "block_size": -(-block // PARALLEL_BLOCK) * PARALLEL_BLOCK if device == "cpu" else block,
        "enable_prefix_caching": knobs.enable_prefix_caching, "enforce_eager": device == "cpu",
        "disable_log_stats": True, "load_format": "safetensors",
    }  # fmt: skip
    more = {
        "num_gpu_blocks_override": knobs.num_gpu_blocks_override, "gpu_memory_utilization": knobs.gpu_memory_utilization
    }  # fmt: skip
    return arguments | {name: value for name, value in more.items() if value is not None}


class VllmSampler:
    """Prompts go in with `add`, `advance` gives the answers that end, `load` goes on with other weights."""

    def __init__(
        self, model: ModelSpec, constants: ForwardConstants, decoding: Decoding, engine: VllmConnection,
        reply: Reply | None = None,
    ) -> None:  # fmt: skip
        self.decoding, self.engine, self.reply = decoding, engine, reply
        self.names = hf_names(model, vllm_type(model) or "")
        self.drafts: dict[str, DraftAnswer] = {}
        self.version = 0
        config = vllm_config(model, constants, decoding.context + 1)
        (engine.folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights; unfinished answers go on with them."""
        from safetensors.torch import save_file

        if self.drafts:
            self.engine.call("drop")
        tensors = stored_tensors({name: weight.detach().cpu() for name, weight in weights.items()}, self.names)
        save_file({name: value.contiguous() for name, value in tensors.items()}, self.engine.folder / SINGLE)
        if not self.engine.call("load").get("forgotten", True):
            raise WorkerLost(0, "vLLM did not forget what older weights computed")
        self.version = version
        drafts = list(self.drafts.values())
        self.drafts.clear()
        self._lend(drafts)

    def add(self, prompts: Iterable[Prompt]) -> None:
        self._lend([
            DraftAnswer(prompt=prompt, index=index, tokens=list(prompt.tokens))
            for prompt in prompts
            for index in range(prompt.samples)
        ])  # fmt: skip

    def advance(self, steps: int | None = None) -> list[Sample]:
        """The answers that end within so many steps, or all of them."""
        samples: list[Sample] = []
        while self.drafts and (steps is None or steps > 0):
            answer = self.engine.call("step", most=steps)
            steps = None if steps is None else steps - int(answer["steps"])
            again: list[DraftAnswer] = []
            for name, tokens, log_probs, has_ended in answer["pieces"]:
                sample = self._write(self.drafts[name], tokens, log_probs)
                if has_ended:
                    draft = self.drafts.pop(name)
                    samples += [sample] if sample is not None else []
                    again += [draft] if sample is None else []
            self._lend(again)
        return samples

    def _write(self, draft: DraftAnswer, tokens: Sequence[int], log_probs: Sequence[float]) -> Sample | None:
        """Tokens as vLLM drew them; the answer where it ends with them."""
        sample: Sample | None = None
        for drawn in zip(tokens, log_probs, strict=True):
            sample = write_token(draft, drawn, self.version, self.decoding, self.reply)
        return sample

    def _lend(self, drafts: Sequence[DraftAnswer]) -> None:
        """Sequences that vLLM goes on with, each until its turn ends or its tokens are used up."""
        requests: list[JsonObject] = []
        for draft in drafts:
            name = f"{draft.prompt.number}.{draft.index}.{len(draft.tokens)}"
            room = min(self.decoding.longest - draft.written, self.decoding.context - len(draft.tokens))
            seed = draft_seed(self.decoding.seed, draft)
            requests.append({"name": name, "tokens": list(draft.tokens), "seed": seed, "most": room})
            self.drafts[name] = draft
        if requests:
            self.engine.call("add", requests=requests)


class VllmConnection:
    """The process that vLLM runs in, and the folder where it finds its model; both end with this object."""

    def __init__(self, decoding: Decoding, knobs: VllmKnobs, device: str, dtype: str) -> None:
        import ridgeline

        self.folder = Path(tempfile.mkdtemp(prefix="ridgeline-vllm-"))
        self.is_up = False
        arguments = vllm_arguments(self.folder, decoding, knobs, device, dtype)
        settings = {
            "device": device, "arguments": arguments, "temperature": decoding.temperature, "stop": decoding.stop
        }  # fmt: skip
        paths = (str(Path(ridgeline.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        if device.startswith("cuda:"):
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            index = int(device.partition(":")[2])
            environment["CUDA_VISIBLE_DEVICES"] = seen.split(",")[index] if seen else str(index)
        self.words = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ridgeline.runtime.rl.vllm_child", json.dumps(settings)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, env=environment,
        )  # fmt: skip
        weakref.finalize(self, _end_process, self.process, self.folder)

    def call(self, method: str, **values: object) -> JsonObject:
        """What the process answers; a `WorkerLost` where it ended, an `InputError` where it never came up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"call": method, **values}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if line:
            self.is_up = True
            answer: JsonObject = json.loads(line)
            return answer
        self.process.wait()
        size = self.words.seek(0, os.SEEK_END)
        self.words.seek(max(0, size - LAST_WORDS))
        said = self.words.read().decode(errors="replace").strip()
        if self.is_up:
            raise WorkerLost(0, f"vLLM ended with {self.process.returncode}", said)
        last_line = said.splitlines()[-1][:300] if said else f"ended with {self.process.returncode}"
        todo = "leave --rollout out, or mend the installation of vLLM"
        raise InputError(Problem(path="--rollout", given=last_line, expected="a vLLM that starts", todo=todo))


def _end_process(process: subprocess.Popen[str], folder: Path) -> None:
    """It ends when nobody writes to it, and removes its folder."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
