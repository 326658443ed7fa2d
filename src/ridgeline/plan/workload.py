"""What is asked of the machine: one training step, one prefill, one decode step, requests under load, or a step of
post-training (`rl_workload`).

[workload]
kind = "serve"
arrivals = { kind = "poisson", rate = 12 }      # or a trace file: arrivals = "azure.csv.gz"
requests = 2000
isl = 1024
osl = 211
objective = { ttft = "500 ms", tpot = "30 ms", percentile = 99 }
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, QuantityUnit, Size, Via
from ridgeline.plan.optimizer import Lora, Optimizer, optimizer_table
from ridgeline.plan.quantities import Seconds, Tokens, read_count
from ridgeline.plan.rl_workload import Rl

Rate = Annotated[float, AtLeast(0), Doc("requests per second")]
USUAL_REQUESTS = 1000
MOST_REQUESTS = 2_000_000


EncoderPositions = Annotated[Count | None, Via(read_count), Doc("positions that the encoder of one sequence reads")]
Height = Annotated[Count | None, Doc("pixels of an image's or video's height, where it is not the model's own")]
Width = Annotated[Count | None, Doc("pixels of its width; absent: as its height")]
Frames = Annotated[Count, Doc("frames of one video, seen or made")]
ImageTokens = Annotated[Count | None, Doc("tokens of one image, instead of height and width")]
SoundSeconds = Annotated[float | None, AtLeast(0), Doc("seconds of sound of one sequence")]
LongestSeconds = Annotated[float | None, QuantityUnit("s"), AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Requests of a file: Azure CSV, Mooncake lines, CSV of lengths, a detailed `vllm bench serve` result.

    rate   requests per second to which its times are rescaled; needed where it holds lengths alone
    """

    kind: Literal["trace"] = "trace"
    file: Annotated[str, Doc("path of the trace")]
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Open loop with exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Open loop with Gamma gaps, as `vllm bench serve --burstiness`: 1 is Poisson, less is burstier."""

    kind: Literal["gamma"] = "gamma"
    rate: Rate
    burstiness: Annotated[float, AtLeast(0)] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Open loop, evenly spaced."""

    kind: Literal["constant"] = "constant"
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Poisson during windows, silence between them."""

    kind: Literal["on-off"] = "on-off"
    rate: Annotated[float, AtLeast(0), Doc("requests per second while on")]
    on: Annotated[float, QuantityUnit("s"), AtLeast(0), Doc("length of a window")]
    off: Annotated[float, QuantityUnit("s"), AtLeast(0), Doc("silence between two")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """So many users, each sends its next request when its answer is there and it has thought."""

    kind: Literal["closed-loop"] = "closed-loop"
    concurrency: Annotated[Count, Doc("requests in the system at once")]
    think: Annotated[float, QuantityUnit("s"), AtLeast(0), Doc("mean think time, exponential")] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations that begin Poisson; every prompt repeats what was said before, `isl` is a question's length."""

    kind: Literal["sessions"] = "sessions"
    rate: Annotated[float, AtLeast(0), Doc("conversations per second")]
    turns: Count = 4
    system_tokens: Annotated[Size, Doc("prompt that all conversations begin with")] = 0
    think: Seconds = 0.0


Arrivals = TraceFile | Poisson | Gamma | Constant | OnOff | ClosedLoop | Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A service-level objective: the longest each may take at a percentile of requests; absent: it does not matter.

    TTFT, TPOT, ITL, E2E as `vllm bench serve` defines them. Goodput counts requests that keep all of them.
    """

    ttft: LongestSeconds = None
    tpot: LongestSeconds = None
    itl: LongestSeconds = None
    e2e: LongestSeconds = None
    percentile: Annotated[float, AtLeast(0), Doc("of requests that must keep it")] = 99.0

    @property
    def limits(self) -> dict[str, float]:
        """What is limited, in seconds."""
        names = ("ttft", "tpot", "itl", "e2e")
        return {name: limit for name in names if (limit := getattr(self, name)) is not None}

    def problems(self) -> Iterable[Problem]:
        if not 0 < self.percentile <= 100:
            yield Problem(path="percentile", given=f"{self.percentile:g}", expected="above 0, at most 100")
        for name, limit in self.limits.items():
            if limit <= 0:
                yield Problem(path=name, given=f"{limit:g} s", expected="a time above 0", todo="leave it out")


def _arrivals(value: object) -> object:
    """`"azure.csv.gz"`: the trace in that file."""
    return {"kind": "trace", "file": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Requests under load, and the objective they should keep.

    isl, osl         prompt and output tokens of a request; a trace file brings its own
    range_ratio      lengths are uniform within this share of isl and osl, as `vllm bench serve --random-range-ratio`
    prefix           tokens at the start of isl that all prompts share
    lengths          CSV of prompt and output tokens, used in turn (ShareGPT-like)
    max_new_tokens   what clients allow, where answers end before; absent: as long as they are
    seed             of everything random
    """

    kind: Literal["serve"] = "serve"
    arrivals: Annotated[Arrivals, Via(_arrivals)]
    requests: Annotated[Count | None, Doc("how many; absent: 1000, or all of a trace")] = None
    isl: Annotated[Tokens | None, Doc("prompt tokens of a request")] = None
    osl: Annotated[Tokens | None, Doc("output tokens of a request")] = None
    range_ratio: Annotated[float, AtLeast(0)] = 0.0
    prefix: Size = 0
    lengths: Annotated[str, Doc("path of a CSV of prompt and output tokens")] = ""
    max_new_tokens: Count | None = None
    objective: Objective = Objective()
    seed: Size = 0

    @property
    def seq(self) -> int:
        """Tokens of a whole request, as far as the description tells."""
        return (self.isl or 1) + (self.osl or 1)

    @property
    def sequences(self) -> int:
        """Requests asked for."""
        return self.requests or USUAL_REQUESTS

    @property
    def tokens(self) -> int:
        """Output tokens asked for, as far as the description tells."""
        return self.sequences * (self.osl or 1)

    def problems(self) -> Iterable[Problem]:
        own_lengths = isinstance(self.arrivals, TraceFile) or bool(self.lengths)
        for name, tokens in (("isl", self.isl), ("osl", self.osl)):
            if tokens is None and not own_lengths:
                yield Problem(path=name, given="nothing", expected="tokens of a request", todo="or give lengths = FILE")
            elif tokens is not None and own_lengths:
                yield Problem(path=name, given=str(tokens), expected="none: the file brings its lengths")
        if (self.requests or 0) > MOST_REQUESTS:
            yield Problem(path="requests", given=str(self.requests), expected=f"at most {MOST_REQUESTS:,}")
        if self.range_ratio >= 1:
            yield Problem(path="range_ratio", given=f"{self.range_ratio:g}", expected="a share from 0 up to 1")
        if self.isl and self.prefix >= self.isl:
            yield Problem(path="prefix", given=str(self.prefix), expected=f"less than isl ({self.isl})")
        rate = getattr(self.arrivals, "rate", None)
        if rate is not None and rate <= 0:
            yield Problem(path="arrivals.rate", given=f"{rate:g}", expected="requests per second, above 0")
        if isinstance(self.arrivals, Gamma) and self.arrivals.burstiness <= 0:
            given_text = f"{self.arrivals.burstiness:g}"
            yield Problem(path="arrivals.burstiness", given=given_text, expected="above 0; 1 is Poisson")
        if isinstance(self.arrivals, OnOff) and self.arrivals.on <= 0:
            yield Problem(path="arrivals.on", given=f"{self.arrivals.on:g} s", expected="a window longer than 0 s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """One optimizer step. The global batch is given in sequences, or in tokens that divide into them.

    packed     several documents fill a sequence and do not see each other; otherwise it holds one document
               and padding
    document   tokens of one document, on average; absent: a document fills its sequence
    task       pretrain and finetune update all weights; lora only its adapters
    encoder_seq  positions that the encoder reads for a sequence: source tokens, frames of sound; absent: as many as the
               sequence, or what an encoder of sound was made for
    images, videos, audio_s  what encoders of images and sound read for a sequence; what becomes of it stands in `seq`
    towers     frozen: encoders of images and sound run forward alone; what projects their output is trained
    """

    kind: Literal["train"] = "train"
    seq: Annotated[Count, Via(read_count), Doc("tokens of one sequence")]
    global_batch: Annotated[Count | None, Doc("sequences of one step over the whole system")] = None
    tokens_per_batch: Annotated[Count | None, Doc("tokens of one step, instead of global_batch")] = None
    task: Literal["pretrain", "finetune", "lora"] = "pretrain"
    lora: Lora | None = None
    optimizer: Annotated[Optimizer, Via(optimizer_table)] = Optimizer()
    packed: bool = True
    document: Annotated[Count | None, Doc("tokens of one document; absent: a document fills its sequence")] = None
    images: Annotated[float, AtLeast(0), Doc("images of one sequence, for a model that sees")] = 0.0
    videos: Annotated[float, AtLeast(0), Doc("videos of one sequence, of `frames` frames each")] = 0.0
    encoder_seq: EncoderPositions = None
    height: Height = None
    width: Width = None
    frames: Frames = 1
    image_tokens: ImageTokens = None
    audio_s: SoundSeconds = None
    towers: Annotated[Literal["trained", "frozen"], Doc("whether encoders of images and sound are trained")] = "trained"

    @property
    def sequences(self) -> int:
        """Sequences of one step."""
        return self.global_batch or (self.tokens_per_batch or self.seq) // self.seq

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.sequences * self.seq

    @property
    def document_tokens(self) -> int:
        """Tokens of a sequence that see each other: of one document, at most of the sequence."""
        return min(self.document or self.seq, self.seq)

    @property
    def useful_tokens(self) -> int:
        """Tokens of one step that are not padding.

        >>> padded = Train(seq=4096, global_batch=8, document=1024, packed=False)
        >>> padded.tokens, padded.useful_tokens
        (32768, 8192)
        """
        return self.tokens if self.packed else self.sequences * self.document_tokens

    def problems(self) -> Iterable[Problem]:
        if (self.global_batch is None) == (self.tokens_per_batch is None):
            given = "neither" if self.global_batch is None else "both"
            todo = "give the sequences of one step as global_batch"
            yield Problem(path="global_batch", given=given, expected="global_batch or tokens_per_batch", todo=todo)
        elif self.tokens_per_batch is not None and self.tokens_per_batch % self.seq:
            given, expectation = str(self.tokens_per_batch), f"a multiple of seq ({self.seq})"
            yield Problem(path="tokens_per_batch", given=given, expected=expectation)
        if self.lora is not None and self.task != "lora":
            yield Problem(
                path="lora", given="adapters", expected=f"none for task {self.task!r}", todo='set task = "lora"'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Reading prompts: `batch` sequences of `seq` tokens through the model once, filling the cache.

    cached   tokens of each sequence that the prefix cache already holds
    chunk    tokens of one step (chunked prefill); absent: the engine's max_num_batched_tokens; 0: all in one step
    """

    kind: Literal["prefill"] = "prefill"
    seq: Annotated[Count, Via(read_count), Doc("prompt tokens of one sequence")]
    batch: Annotated[Count, Doc("sequences over the whole system")] = 1
    cached: Annotated[Size, Via(read_count), Doc("tokens of a sequence that the prefix cache holds")] = 0
    chunk: Annotated[Size | None, Via(read_count), Doc("tokens of one step; absent: as the engine does; 0: all")] = None
    encoder_seq: EncoderPositions = None
    images: Annotated[float, AtLeast(0), Doc("images of one prompt, for a model that sees")] = 0.0
    videos: Annotated[float, AtLeast(0), Doc("videos of one prompt, of `frames` frames each")] = 0.0
    height: Height = None
    width: Width = None
    frames: Frames = 1
    image_tokens: ImageTokens = None
    audio_s: SoundSeconds = None

    @property
    def sequences(self) -> int:
        """Sequences in flight."""
        return self.batch

    @property
    def tokens(self) -> int:
        """Tokens read."""
        return self.batch * (self.seq - self.cached)

    def problems(self) -> Iterable[Problem]:
        if self.cached >= self.seq:
            expectation = f"less than seq ({self.seq}): the last token is always computed"
            yield Problem(path="cached", given=str(self.cached), expected=expectation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Writing one token for each of `batch` sequences that already hold `context` tokens."""

    kind: Literal["decode"] = "decode"
    context: Annotated[Count, Via(read_count), Doc("tokens already in the cache of one sequence")]
    batch: Annotated[Count, Doc("sequences over the whole system")] = 1
    encoder_seq: EncoderPositions = None
    audio_s: SoundSeconds = None

    @property
    def seq(self) -> int:
        """Tokens of a sequence that attention sees."""
        return self.context

    @property
    def sequences(self) -> int:
        """Sequences in flight."""
        return self.batch

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return self.batch


Workload = Train | Prefill | Decode | Serve | Rl
