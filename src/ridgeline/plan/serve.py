"""What is asked of a serving system: when requests come, how long they are, and what must be kept.

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
from typing import Annotated, Any, Literal

from ridgeline.core.errors import Problem, UnitError
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, QuantityUnit, Size, Via
from ridgeline.core.units import parse_count

Seconds = Annotated[float, QuantityUnit("s"), AtLeast(0)]
Rate = Annotated[float, AtLeast(0), Doc("requests per second")]
USUAL_REQUESTS = 1000
MOST_REQUESTS = 2_000_000


def _read_count(value: Any) -> Any:
    """`"8k"`: 8192; what is no count is told by whoever decodes it."""
    try:
        return parse_count(value) if isinstance(value, str) else value
    except UnitError:
        return value


Tokens = Annotated[Count, Via(_read_count)]


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

    ttft: Annotated[float | None, QuantityUnit("s"), AtLeast(0)] = None
    tpot: Annotated[float | None, QuantityUnit("s"), AtLeast(0)] = None
    itl: Annotated[float | None, QuantityUnit("s"), AtLeast(0)] = None
    e2e: Annotated[float | None, QuantityUnit("s"), AtLeast(0)] = None
    percentile: Annotated[float, AtLeast(0), Doc("of requests that must keep it")] = 99.0

    @property
    def limits(self) -> dict[str, float]:
        """What is limited, in seconds."""
        limits_by_name = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2e": self.e2e}
        return {name: limit for name, limit in limits_by_name.items() if limit is not None}

    def problems(self) -> Iterable[Problem]:
        if not 0 < self.percentile <= 100:
            yield Problem(path="percentile", given=f"{self.percentile:g}", expected="above 0, at most 100")
        for name, limit in self.limits.items():
            if limit <= 0:
                yield Problem(path=name, given=f"{limit:g} s", expected="a time above 0", todo="leave it out")


def _arrivals(value: Any) -> Any:
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
            given_text, expectation = str(self.prefix), f"less than isl ({self.isl})"
            yield Problem(path="prefix", given=given_text, expected=expectation)
        rate = getattr(self.arrivals, "rate", None)
        if rate is not None and rate <= 0:
            yield Problem(path="arrivals.rate", given=f"{rate:g}", expected="requests per second, above 0")
        if isinstance(self.arrivals, Gamma) and self.arrivals.burstiness <= 0:
            given_text = f"{self.arrivals.burstiness:g}"
            yield Problem(path="arrivals.burstiness", given=given_text, expected="above 0; 1 is Poisson")
        if isinstance(self.arrivals, OnOff) and self.arrivals.on <= 0:
            yield Problem(path="arrivals.on", given=f"{self.arrivals.on:g} s", expected="a window longer than 0 s")
