"""SGLang: the arguments of its server in a launch script, and such command lines read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ridgeline.core.documents import JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts, serving_decisions_of
from ridgeline.targets.imports.option_reader import OptionReader
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admit_options, gather
from ridgeline.targets.options import options
from ridgeline.targets.serving.launch import Launch, commands_of
from ridgeline.targets.serving.load import server_export
from ridgeline.targets.serving.pieces import (
    COMPUTE,
    WEIGHTS,
    FormatWords,
    Replica,
    cache_format,
    common_pieces,
    format_pieces,
    graph_pieces,
    knobs,
    model_path,
    pools_lost,
    replica_of,
)
from ridgeline.targets.serving.reader import (
    first_server,
    has_server,
    imported_server,
    model_named,
    reader_of,
    take_knobs,
)
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported

ID = "sglang"

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KV_DTYPES = {"bf16": "bf16", "fp8-e4m3": "fp8_e4m3", "fp8-e5m2": "fp8_e5m2", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
# weights that are quantised while they are loaded: (compute, weights) -> method
ONLINE = {("fp8-e4m3", "fp8-e4m3"): "fp8", ("mxfp8", "mxfp8"): "mxfp8", ("nvfp4", "nvfp4"): "nvfp4_online"}
STORED = {"modelopt_fp4": ("nvfp4", "nvfp4"), "w8a8_int8": ("int8", "int8"), "mxfp4": ("bf16", "mxfp4")}
DISPATCH = {"all-to-all": "none", "deepep": "deepep"}
ROUTERS = {"round-robin": "round_robin"}
SWITCHES = {
    "disable_radix_cache": "prefixes are kept unless told otherwise",
    "disable_overlap_schedule": "steps are decided ahead unless told otherwise",
    "enable_priority_scheduling": "requests are served in the order they come unless told otherwise",
    "disable_priority_preemption": "a larger priority takes seats unless told otherwise",
}
NUMBERS = table_names("sglang", "numbers")


WORDS = FormatWords(
    title="SGLang", dtype="--dtype", dtypes=DTYPES, kv_dtype="--kv-cache-dtype", kv_dtypes=KV_DTYPES
)  # fmt: skip


def engine_pieces(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """Everything that an SGLang engine is told."""
    yield from mesh(scenario, one)
    for part in (_formats, _knobs, _graphs, _speculation):
        yield from part(scenario)


def mesh(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    """`--tp-size` counts all ranks of a stage; with DP attention they form dp groups for attention."""
    yield Say("--tp-size", one.tp * one.dp, "plan.tp")
    yield Say("--pp-size", one.pp, "plan.pp")
    if one.dp > 1:
        yield Say("--dp-size", one.dp, "plan.serving.data_parallel_size", "plan.tp")
        yield Say("--enable-dp-attention", True, "plan.serving.data_parallel_size")
    yield Fixed("plan.serving.data_parallel_size", 1, "one rank of data")
    if not has_experts(scenario.model):
        return
    yield Say("--ep-size", one.ep, "plan.ep")
    yield Lose("plan.etp", "ranks that expert parallelism leaves split the experts")
    way = scenario.plan.switches.moe_dispatch
    if way is not None and way in DISPATCH:
        yield Say("--moe-a2a-backend", DISPATCH[way], "plan.moe_dispatch")
    else:
        yield Lose("plan.moe_dispatch", "tokens are exchanged by collectives, or with DeepEP")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    precision = scenario.plan.precision
    method = ONLINE.get((precision.compute.id, precision.weights.id))
    quantization = Say("--quantization", method, COMPUTE, WEIGHTS) if method is not None else None
    yield from format_pieces(scenario, WORDS, quantization)
    yield from cache_format(scenario, WORDS)


def _knobs(scenario: Scenario) -> Iterator[Piece]:
    for name, (value, path) in knobs(scenario, ID).items():
        if name in SWITCHES and value is not True:
            yield Fixed(path, False, SWITCHES[name])
        elif name in SWITCHES or name in NUMBERS:
            yield Say(f"--{name.replace('_', '-')}", value, path)


def _graphs(scenario: Scenario) -> Iterator[Piece]:
    eager = Say("--disable-cuda-graph", True, "plan.graph")
    yield from graph_pieces(scenario, eager=eager, compiled=Say("--enable-torch-compile", True, "plan.compiled"))


def _speculation(scenario: Scenario) -> Iterator[Piece]:
    drafts = scenario.plan.speculation
    if drafts is None:
        return
    path = "plan.speculation"
    words = {"mtp": "EAGLE", "eagle": "EAGLE", "ngram": "NGRAM"}
    yield Say("--speculative-algorithm", words[drafts.draft], f"{path}.draft")
    yield Say("--speculative-num-draft-tokens", drafts.draft_tokens + 1, f"{path}.draft_tokens")
    if drafts.draft != "ngram":
        yield Say("--speculative-num-steps", drafts.draft_tokens, f"{path}.draft_tokens")
        yield Say("--speculative-eagle-topk", 1)
    if drafts.draft == "eagle":
        yield Lose(f"{path}.draft", "its head is a checkpoint of its own: add --speculative-draft-model-path")


RENDEZVOUS = '--nnodes {nodes} --node-rank "$NODE_RANK" --dist-init-addr "$MASTER_ADDR:$MASTER_PORT"'


def write(scenario: Scenario) -> Export:
    """launch.sh and bench.sh."""
    decisions = serving_decisions_of(scenario)
    replica = replica_of(scenario)
    pieces_said = [
        *common_pieces(scenario, ID, ID),
        *engine_pieces(scenario, replica),
        *_fleet(scenario, replica),
        pools_lost(),
    ]
    ledger = gather(decisions, admit_options(pieces_said, options(ID)))
    how = Launch(
        program='exec python3 -m sglang.launch_server --model-path "$MODEL" --host "$HOST" --port "$PORT"',
        arguments={name: value for name, value in ledger.options.items() if name.startswith("--")},
        weights=model_path(scenario),
        replicas=1 if has_own_controller(scenario, replica) else replica.count,
        chips=replica.chips,
        nodes=replica.nodes,
        rendezvous=RENDEZVOUS.format(nodes=replica.nodes),
    )
    return server_export(ID, scenario, ledger, how)


def has_own_controller(scenario: Scenario, one: Replica) -> bool:
    """Whether replicas are data-parallel engines behind the server's own controller: on one node, dealt in turn."""
    fits = one.count * one.chips <= scenario.system.node
    return one.count > 1 and one.dp == 1 and fits and scenario.plan.serving.router in ROUTERS


def _fleet(scenario: Scenario, one: Replica) -> Iterator[Piece]:
    if has_own_controller(scenario, one):
        yield Say("--dp-size", one.count, "plan.serving.replicas")
        yield Say("--load-balance-method", ROUTERS[scenario.plan.serving.router], "plan.serving.router")
        return
    yield Say("REPLICAS", one.count, "plan.serving.replicas")
    if one.count > 1:
        why = "replicas are servers of their own, on ports from PORT on: put a router (sglang_router) before them"
        yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")


ROUTED = ("-m", "sglang_router.launch_server")  # replicas behind a router of their own
PROGRAMS = (("-m", "sglang.launch_server"), ("sglang", "serve"), ("launch_server.py",), ROUTED)
KEYS = frozenset({"mem-fraction-static", "chunked-prefill-size", "max-running-requests", "tp-size"})
POLICIES = {"cache_aware": "prefix-aware", "round_robin": "round-robin", "power_of_two": "least-loaded"}
APART = table_words("sglang", "apart")


def read(files: Files) -> Imported:
    """The first SGLang server among the files, and the load that a `vllm bench serve` beside it describes."""
    arguments, replicas = first_server(files, PROGRAMS, KEYS, options(ID))
    reader = reader_of(arguments, next(iter(files), ""))
    model_given = str(reader.take("model-path", default="") or next(iter(arguments.words), ""))
    plan = read_engine(reader, replicas)
    router_commands = commands_of(files, ROUTED)
    if router_commands:
        plan["serving"]["router"] = _policy(reader, router_commands[0][1])
    return imported_server(ID, files, reader, plan, model_named(reader, files, model_given), APART)


def _policy(reader: OptionReader, words: Sequence[str]) -> str:
    """How SGLang's router deals requests: by what a replica has cached, unless told."""
    stated_options = dict(pairwise(words)).get("--router-policy", "cache_aware")
    if stated_options not in POLICIES:
        reader.assumptions.append(f"router-policy {stated_options[:40]}: read as cache_aware")
    return POLICIES.get(stated_options, "prefix-aware")


def read_engine(reader: OptionReader, replicas: int = 1) -> JsonObject:
    """What an SGLang engine is told: mesh, formats, knobs, and replicas behind its own controller."""
    ranks, dp = reader.degree("tp-size"), reader.degree("dp-size")
    together = reader.switch("enable-dp-attention", default=False)
    plan: JsonObject = {"tp": max(1, ranks // dp) if together else ranks, "pp": reader.degree("pp-size")}
    ep = reader.degree("ep-size")
    plan |= {"ep": ep} if ep > 1 else {}
    way = {word: name for name, word in DISPATCH.items()}.get(str(reader.take("moe-a2a-backend", default="")))
    plan |= {"moe_dispatch": way} if way and ep > 1 else {}
    plan |= {"precision": _precision(reader), "engine": ID}
    numbers = {knob: knob.replace("_", "-") for knob in NUMBERS}
    engine_knobs = take_knobs(reader, numbers, {knob: knob.replace("_", "-") for knob in SWITCHES})
    serving: JsonObject = {"sglang": engine_knobs} if engine_knobs else {}
    serving["replicas"] = replicas if together else dp * replicas
    if together:
        serving["data_parallel_size"] = dp
    router = {word: name for name, word in ROUTERS.items()}.get(str(reader.take("load-balance-method", default="")))
    serving |= {"router": router} if router else {}
    drafts = reader.take("speculative-algorithm")
    if drafts is not None:
        tokens = reader.count("speculative-num-steps") or (reader.count("speculative-num-draft-tokens") or 2) - 1
        reader.take("speculative-num-draft-tokens")
        reader.take("speculative-eagle-topk")
        kind = "ngram" if str(drafts).upper() == "NGRAM" else "mtp"
        plan["speculation"] = {"draft": kind, "draft_tokens": max(1, tokens)}
    plan |= {"serving": serving, "dp": dp * replicas}
    if reader.switch("disable-cuda-graph", default=False):
        plan["graph"] = "none"
    if reader.switch("enable-torch-compile", default=False):
        plan["compiled"] = True
    return plan


def _precision(reader: OptionReader) -> JsonObject:
    names = {word: name for name, word in DTYPES.items()} | {"half": "fp16", "float": "fp32"}
    wide = reader.word("dtype", among={**names, "auto": "bf16"}, default="bf16")
    formats_read: JsonObject = {"compute": wide, "weights": wide, "activations": wide}
    method = reader.take("quantization")
    known_words = {word: means for means, word in ONLINE.items()} | STORED
    if isinstance(method, str) and method in known_words:
        formats_read |= {"compute": known_words[method][0], "weights": known_words[method][1]}
    elif method is not None:
        reader.taken.discard("quantization")
        reader.assumptions.append(f"quantization {method}: read as {wide}, for its formats are not known here")
    cache_formats = {word: name for name, word in KV_DTYPES.items()} | {"bfloat16": "bf16", "auto": wide}
    return formats_read | {"kv": reader.word("kv-cache-dtype", among=cache_formats, default=wide)}


def recognises(files: Files) -> bool:
    """A command that runs SGLang's server, or a YAML file of its options."""
    return has_server(files, PROGRAMS, KEYS)
