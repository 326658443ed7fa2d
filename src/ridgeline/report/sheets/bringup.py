"""What `ridgeline bringup` prints."""

from __future__ import annotations

from typing import Literal, TypedDict


class WrongOpSheet(TypedDict):
    """An op that gave a wrong result, or none.

    op          as torch names it, with its overload
    module      path in the model, or `standing set` with what was hard about the input
    phase       forward, loss, backward, optimizer or generation
    statistic   what broke the op's contract: beyond, power, bias, shift, row, column, nonfinite, shape, format,
                unequal; raised, missing, died or hung where there was no result; a rung, an invariance or `race`
                where a bisection named the op
    measured    its value; limit: what the contract allows
    times       calls that were wrong
    message     of an op that raised or ended its process
    repro       a script beside its inputs that ends with 1 on the device; empty where none was saved
    """

    op: str
    module: str
    phase: str
    dtype: str
    statistic: str
    measured: float
    limit: float
    times: int
    message: str
    repro: str


class CheckSheet(TypedDict):
    """A rung of the ladder, or an invariance, in one format.

    verdict     pass, fail or not run
    statistic   what was measured against a limit that noise draws through the reference give
    where       the first place beyond it: a layer, a parameter, a step
    op          the op that is to blame, where one was found
    reason      why it was not run
    """

    name: str
    format: str
    verdict: Literal["pass", "fail", "not run"]
    statistic: str
    measured: float
    limit: float
    where: str
    op: str
    reason: str


class DeterminismSheet(TypedDict):
    """The same step several times.

    same        whether every op gave the same bits every time
    reordered   ops whose bits differed within their contract: sums in another order, no finding
    races       ops whose results differed by more: findings
    reason      why it was not run
    """

    runs: int
    same: bool
    reordered: list[str]
    races: list[str]
    reason: str


class SignatureSheet(TypedDict):
    """One op with the formats, shapes and strides of its tensors, in a training step.

    module, phase    where it was called first
    calls            in the captured steps; model_calls: in as many layers as the model has
    """

    op: str
    dtypes: list[str]
    shapes: list[list[int]]
    strides: list[list[int]]
    module: str
    phase: str
    calls: int
    model_calls: int


class RemarkSheet(TypedDict):
    """An op that the device runs otherwise than by a kernel of its own: where first, how often, and how."""

    op: str
    module: str
    phase: str
    calls: int
    detail: str


class InventorySheet(TypedDict):
    """What the training step dispatched on the device: each op with its number of calls.

    signatures      op x format x shape x stride that were captured, and judged
    phases          calls of the whole model in forward, loss, backward, optimizer and generation
    rows            the signatures one by one
    missing         ops that the device does not have
    fallback        ops that the host computes for it
    decomposed      ops that are one kernel on the host and several on the device
    synchronising   ops that make the host wait for the device
    unsupported     formats that the device cannot hold, add or multiply
    graph_breaks    where dynamo leaves its graph, with why; null where nobody looked (--graph-breaks)
    """

    ops: dict[str, int]
    signatures: int
    phases: dict[str, int]
    rows: list[SignatureSheet]
    missing: list[RemarkSheet]
    fallback: list[RemarkSheet]
    decomposed: list[RemarkSheet]
    synchronising: list[RemarkSheet]
    unsupported: dict[str, list[str]]
    graph_breaks: list[str] | None


class OpSpeedSheet(TypedDict):
    """One signature of an op, timed.

    seconds    of one call; spread: of the rounds, as a share
    bound      compute, memory, cache (a cache may beat memory's roof), launch, or empty where no rate is known
    roof_s     seconds at best; share: roof over seconds
    flag       slow (under 30 % of the roof), impossible (over 100 %), or empty
    """

    op: str
    dtype: str
    shapes: list[list[int]]
    module: str
    phase: str
    calls: int
    seconds: float
    spread: float
    flops: float
    bytes: float
    bound: str
    roof_s: float | None
    share: float | None
    flag: str


class StretchSheet(TypedDict):
    """Launch-bound ops in a row, from one module to another."""

    begin: str
    end: str
    phase: str
    ops: int
    seconds: float


class SpeedSheet(TypedDict):
    """How fast the ops of a step are beside what the chip can do; no part of the verdict.

    chip        whose rates they are held against, null without; source: data sheet or the profile
    tokens      sequences and their length in the timed step; dtype: its format
    nothing_s   an op that does nothing
    step_s      all ops of the step, one after the other
    flagged     ops that are slow or impossible
    fallback    ops that the host computes for the device
    stretches   launch-bound ops in a row
    ops         every signature, what costs most first
    """

    chip: str | None
    source: str
    tokens: list[int]
    dtype: str
    nothing_s: float
    step_s: float
    flagged: int
    fallback: list[str]
    stretches: list[StretchSheet]
    ops: list[OpSpeedSheet]


class CoverageSheet(TypedDict):
    """Calls of the standing set, ops that nothing could judge, and what of the architecture was left out."""

    probed: int
    unjudged: dict[str, int]
    left_out: list[str]


class ProductsSheet(TypedDict):
    """Matrix products of one format: bits of a factor, right bits of a long sum, how sums round and lean."""

    factor_bits: int
    bits: float
    sums: str
    lean: float


class RoughSheet(TypedDict):
    """A function in fp32: largest error in units in the last place, mean of all."""

    ulp: float
    bias: float


class FingerprintSheet(TypedDict):
    """The arithmetic unit.

    products    by format; functions: exp, rsqrt, log, tanh, sin
    cast        how fp32 becomes bf16
    denormals   by format: kept, flushed, read only, made only
    fma         whether addcmul adds its product unrounded; null where it cannot be asked
    fp8         by format: the largest number, and what lies beyond
    allowed     what --allow accepts
    notes       what is unlike IEEE arithmetic, and what judgements took from it
    judged_by   taken: by this fingerprint; profile: by the one that --profile's file holds
    changed     what differs from the profile's, by dotted key: the profile's, this one's; empty without one
    """

    products: dict[str, ProductsSheet]
    cast: str
    denormals: dict[str, str]
    fma: bool | None
    functions: dict[str, RoughSheet]
    fp8: dict[str, str]
    allowed: list[str]
    notes: list[str]
    judged_by: Literal["taken", "profile"]
    changed: dict[str, list[str]]


class BringUpSheet(TypedDict):
    """Whether a device computes a model right.

    verdict                right, or wrong where there is a finding
    ladder, invariances    each with its verdict
    not_run                what could not be run, with the reason
    isolated               whether ops ran in a process that may die
    speed                  null where nothing was timed
    environment            the device's name, versions of torch and of what drives the device
    fault                  the fault that was loaded, and how often it answered (fired); null without one
    """

    kind: Literal["bringup"]
    model: str
    device: str
    verdict: Literal["right", "wrong"]
    findings: list[WrongOpSheet]
    ladder: list[CheckSheet]
    invariances: list[CheckSheet]
    determinism: DeterminismSheet
    not_run: dict[str, str]
    isolated: bool
    inventory: InventorySheet
    coverage: CoverageSheet
    speed: SpeedSheet | None
    environment: dict[str, str]
    fingerprint: FingerprintSheet | None
    fault: str | None
    fired: int | None


class FaultsSheet(TypedDict):
    """Every fault of a file in turn; caught: those with a finding."""

    kind: Literal["bringup-faults"]
    caught: int
    silent: list[str]
    faults: list[BringUpSheet]


class DumpSheet(TypedDict):
    """What was found in a folder that msprobe dumped on another machine.

    tasks           of the dumps: statistics, tensor
    dumps, calls    ranks and steps that were read, and the calls in them
    replayed        calls that their contract judged; by_statistics: those of which only max, min, mean and norm were
    unjudged        APIs that nothing judged, with their calls
    unreadable      why tensors were not used, with how often
    """

    kind: Literal["bringup-msprobe"]
    folder: str
    framework: str
    tasks: list[str]
    dumps: int
    calls: int
    verdict: Literal["right", "wrong"]
    findings: list[WrongOpSheet]
    replayed: int
    by_statistics: int
    unjudged: dict[str, int]
    unreadable: dict[str, int]


class ChangedOpSheet(TypedDict):
    """An op whose time changed by more than its spread: seconds of A, of B, and B over A."""

    op: str
    dtype: str
    shapes: list[list[int]]
    before_s: float
    after_s: float
    ratio: float


class BringUpDiffSheet(TypedDict):
    """What differs between two reports of bring-up: two drivers, two versions of torch.

    worse         whether B has findings or lacks ops that A did not: exit code 1
    verdicts      of A and B
    environment   what differs of device and software: A, B
    new, gone     findings of B alone, of A alone
    lacks         by missing, fallback, decomposed and synchronising: ops of B alone
    regained      the same of A alone
    ops           ops that the step of B alone dispatches; no_longer: of A alone
    fingerprint   what differs of the arithmetic unit: A, B
    step_ratio    seconds of all timed ops that both have, B over A; null where either has none
    slower, faster    ops whose time changed beyond their spread
    """

    kind: Literal["bringup diff"]
    worse: bool
    models: list[str]
    devices: list[str]
    verdicts: list[str]
    environment: dict[str, list[str]]
    new: list[WrongOpSheet]
    gone: list[WrongOpSheet]
    lacks: dict[str, list[str]]
    regained: dict[str, list[str]]
    ops: list[str]
    no_longer: list[str]
    fingerprint: dict[str, list[str]]
    step_ratio: float | None
    slower: list[ChangedOpSheet]
    faster: list[ChangedOpSheet]
