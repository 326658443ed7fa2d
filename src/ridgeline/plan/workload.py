"""What is asked of the machine: one training step, one prefill, one decode step, or requests under load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from ridgeline.core.dtype import DType, dtype
from ridgeline.core.errors import Problem, UnitError
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Size, Via
from ridgeline.core.units import parse_count
from ridgeline.plan.serve import Serve

# states an optimizer keeps per parameter, apart from the master copy
STATES = {"adamw": 2, "adam": 2, "lion": 1, "muon": 1, "momentum": 1, "sgd": 0, "adafactor": 0}


def _name_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _no_master(value: Any) -> Any:
    return None if value == "none" else value


def _read_count(value: Any) -> Any:
    """`"128k"`: 131072; what is no count is told by whoever decodes it."""
    try:
        return parse_count(value) if isinstance(value, str) else value
    except UnitError:
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer and the formats of what it keeps. `master = "none"` updates the weights themselves."""

    name: Literal["adamw", "adam", "lion", "muon", "momentum", "sgd", "adafactor"] = "adamw"
    states: DType = dtype("fp32")
    master: Annotated[DType | None, Via(_no_master)] = dtype("fp32")

    @property
    def bytes_per_param(self) -> float:
        """Bytes of states and master copy for one parameter; adafactor's row and column sums are not counted.

        >>> Optimizer().bytes_per_param
        12.0
        """
        master = self.master.bytes_per_element if self.master else 0.0
        return STATES[self.name] * self.states.bytes_per_element + master


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on the named parts; everything else is frozen."""

    rank: Count = 16
    targets: tuple[Literal["qkv", "out", "up", "gate", "down", "router", "embedding", "head"], ...] = ("qkv", "out")


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
    seq: Annotated[Count, Via(_read_count), Doc("tokens of one sequence")]
    global_batch: Annotated[Count | None, Doc("sequences of one step over the whole system")] = None
    tokens_per_batch: Annotated[Count | None, Doc("tokens of one step, instead of global_batch")] = None
    task: Literal["pretrain", "finetune", "lora"] = "pretrain"
    lora: Lora | None = None
    optimizer: Annotated[Optimizer, Via(_name_table)] = Optimizer()
    packed: bool = True
    document: Annotated[Count | None, Doc("tokens of one document; absent: a document fills its sequence")] = None
    images: Annotated[float, AtLeast(0), Doc("images of one sequence, for a model that sees")] = 0.0
    videos: Annotated[float, AtLeast(0), Doc("videos of one sequence, of `frames` frames each")] = 0.0
    encoder_seq: Annotated[Count | None, Via(_read_count), Doc("positions that the encoder of one sequence reads")] = (
        None
    )
    height: Annotated[Count | None, Doc("pixels of an image's or video's height, where it is not the model's own")] = (
        None
    )
    width: Annotated[Count | None, Doc("pixels of its width; absent: as its height")] = None
    frames: Annotated[Count, Doc("frames of one video, seen or made")] = 1
    image_tokens: Annotated[Count | None, Doc("tokens of one image, instead of height and width")] = None
    audio_s: Annotated[float | None, AtLeast(0), Doc("seconds of sound of one sequence")] = None
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
    seq: Annotated[Count, Via(_read_count), Doc("prompt tokens of one sequence")]
    batch: Annotated[Count, Doc("sequences over the whole system")] = 1
    cached: Annotated[Size, Via(_read_count), Doc("tokens of a sequence that the prefix cache holds")] = 0
    chunk: Annotated[Size | None, Via(_read_count), Doc("tokens of one step; absent: as the engine does; 0: all")] = (
        None
    )
    encoder_seq: Annotated[Count | None, Via(_read_count), Doc("positions that the encoder of one sequence reads")] = (
        None
    )
    images: Annotated[float, AtLeast(0), Doc("images of one prompt, for a model that sees")] = 0.0
    videos: Annotated[float, AtLeast(0), Doc("videos of one prompt, of `frames` frames each")] = 0.0
    height: Annotated[Count | None, Doc("pixels of an image's or video's height, where it is not the model's own")] = (
        None
    )
    width: Annotated[Count | None, Doc("pixels of its width; absent: as its height")] = None
    frames: Annotated[Count, Doc("frames of one video, seen or made")] = 1
    image_tokens: Annotated[Count | None, Doc("tokens of one image, instead of height and width")] = None
    audio_s: Annotated[float | None, AtLeast(0), Doc("seconds of sound of one sequence")] = None

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
    context: Annotated[Count, Via(_read_count), Doc("tokens already in the cache of one sequence")]
    batch: Annotated[Count, Doc("sequences over the whole system")] = 1
    encoder_seq: Annotated[Count | None, Via(_read_count), Doc("positions that the encoder of one sequence reads")] = (
        None
    )
    audio_s: Annotated[float | None, AtLeast(0), Doc("seconds of sound of one sequence")] = None

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


Workload = Train | Prefill | Decode | Serve
