"""SGLang: the arguments of its server in a launch script, and such command lines read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from ridgeline.core.documents import JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import Speculation
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.imports.option_reader import OptionReader
from ridgeline.targets.ledger import Lose, Piece, Say
from ridgeline.targets.option_table import option_rows, say_options
from ridgeline.targets.options import options
from ridgeline.targets.serving.engine import (
    EngineSplit,
    engine_words,
    first_server,
    fleet_pieces,
    graph_pieces,
    has_server,
    imported_server,
    model_named,
    reader_of,
    replica_of,
)
from ridgeline.targets.serving.scripts import commands_of, server_export
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported

ID = "sglang"

ENGINE = engine_words(ID, "SGLang")
ROUTERS = {"round-robin": "round_robin"}
RENDEZVOUS = '--nnodes {nodes} --node-rank "$NODE_RANK" --dist-init-addr "$MASTER_ADDR:$MASTER_PORT"'
ROUTED = ("-m", "sglang_router.launch_server")  # replicas behind a router of their own
PROGRAMS = (("-m", "sglang.launch_server"), ("sglang", "serve"), ("launch_server.py",), ROUTED)
KEYS = frozenset({"mem-fraction-static", "chunked-prefill-size", "max-running-requests", "tp-size"})
POLICIES = {"cache_aware": "prefix-aware", "round_robin": "round-robin", "power_of_two": "least-loaded"}
APART = table_words("sglang", "apart")


def engine_pieces(scenario: Scenario, one: EngineSplit) -> Iterator[Piece]:
    """Everything that an SGLang engine is told."""
    yield from mesh(scenario, one)
    yield from ENGINE.pieces(scenario)
    eager = Say("--disable-cuda-graph", True, "plan.graph")
    yield from graph_pieces(scenario, eager=eager, compiled=Say("--enable-torch-compile", True, "plan.compiled"))
    if scenario.plan.speculation is not None:
        yield from _speculation(scenario.plan.speculation)


def mesh(scenario: Scenario, one: EngineSplit) -> Iterator[Piece]:
    """`--tp-size` counts all ranks of a stage; with DP attention they form dp groups for attention."""
    yield Say("--tp-size", one.tp * one.dp, "plan.tp")
    yield Say("--pp-size", one.pp, "plan.pp")
    if one.dp > 1:
        yield Say("--dp-size", one.dp, "plan.serving.data_parallel_size", "plan.tp")
        yield Say("--enable-dp-attention", True, "plan.serving.data_parallel_size")
    if not has_experts(scenario.model):
        return
    yield Say("--ep-size", one.ep, "plan.ep")
    yield Lose("plan.etp", "ranks that expert parallelism leaves split the experts")
    yield from say_options(ID, "exchange", {"plan.moe_dispatch": scenario.plan.switches.moe_dispatch})


def _speculation(drafts: Speculation) -> Iterator[Piece]:
    path = "plan.speculation"
    words = {"mtp": "EAGLE", "eagle": "EAGLE", "ngram": "NGRAM"}
    yield Say("--speculative-algorithm", words[drafts.draft], f"{path}.draft")
    yield Say("--speculative-num-draft-tokens", drafts.draft_tokens + 1, f"{path}.draft_tokens")
    if drafts.draft != "ngram":
        yield Say("--speculative-num-steps", drafts.draft_tokens, f"{path}.draft_tokens")
        yield Say("--speculative-eagle-topk", 1)
    if drafts.draft == "eagle":
        yield Lose(f"{path}.draft", "its head is a checkpoint of its own: add --speculative-draft-model-path")


def write(scenario: Scenario) -> Export:
    """launch.sh and bench.sh."""
    replica = replica_of(scenario)
    router, fits = scenario.plan.serving.router, replica.count * replica.chips <= scenario.system.node
    # replicas are data-parallel engines behind the server's own controller: on one node, dealt in turn
    one_server = replica.count > 1 and replica.dp == 1 and fits and router in ROUTERS
    if one_server:
        fleet: Iterable[Piece] = (
            Say("--dp-size", replica.count, "plan.serving.replicas"),
            Say("--load-balance-method", ROUTERS[router], "plan.serving.router"),
        )
    else:
        fleet = fleet_pieces(replica, "a router (sglang_router) before them", several=replica.count > 1)
    ledger, how = ENGINE.server(
        scenario,
        (*engine_pieces(scenario, replica), *fleet),
        program='exec python3 -m sglang.launch_server --model-path "$MODEL" --host "$HOST" --port "$PORT"',
        rendezvous=RENDEZVOUS.format(nodes=replica.nodes),
        **({"replicas": 1} if one_server else {}),
    )
    return server_export(ID, scenario, ledger, how)


def read(files: Files) -> Imported:
    """The first SGLang server among the files, and the load that a `vllm bench serve` beside it describes."""
    arguments, replicas = first_server(files, PROGRAMS, KEYS, options(ID))
    reader = reader_of(arguments, next(iter(files), ""))
    model_given = str(reader.take("model-path", default="") or next(iter(arguments.words), ""))
    plan = read_engine(reader, replicas)
    router_commands = commands_of(files, ROUTED)
    if router_commands:
        # how SGLang's router deals requests: by what a replica has cached, unless told
        stated_options = dict(pairwise(router_commands[0][1])).get("--router-policy", "cache_aware")
        if stated_options not in POLICIES:
            reader.assumptions.append(f"router-policy {stated_options[:40]}: read as cache_aware")
        plan["serving"]["router"] = POLICIES.get(stated_options, "prefix-aware")
    return imported_server(ID, files, reader, plan, model_named(reader, files, model_given), APART)


def read_engine(reader: OptionReader, replicas: int = 1) -> JsonObject:
    """What an SGLang engine is told: mesh, formats, knobs, and replicas behind its own controller."""
    ranks, dp = reader.degree("tp-size"), reader.degree("dp-size")
    together = reader.switch("enable-dp-attention")
    plan: JsonObject = {"tp": max(1, ranks // dp) if together else ranks, "pp": reader.degree("pp-size")}
    ep = reader.degree("ep-size")
    plan |= {"ep": ep} if ep > 1 else {}
    ways = {word: name for name, word in option_rows(ID, "exchange")[0].words.items()}
    way = ways.get(str(reader.take("moe-a2a-backend", default="")))
    plan |= {"moe_dispatch": way} if way and ep > 1 else {}
    formats = ENGINE.read_formats(reader)
    formats["kv"] = ENGINE.read_cache_format(reader, formats["activations"])
    plan |= {"precision": formats, "engine": ID}
    engine_knobs = ENGINE.read_knobs(reader)
    serving: JsonObject = {"sglang": engine_knobs} if engine_knobs else {}
    serving["replicas"] = replicas if together else dp * replicas
    if together:
        serving["data_parallel_size"] = dp
    router = {word: name for name, word in ROUTERS.items()}.get(str(reader.take("load-balance-method", default="")))
    serving |= {"router": router} if router else {}
    drafts = reader.take("speculative-algorithm")
    if drafts is not None:
        tokens = reader.count("speculative-num-steps") or (reader.count("speculative-num-draft-tokens") or 2) - 1
        reader.skip("speculative-num-draft-tokens", "speculative-eagle-topk")
        kind = "ngram" if str(drafts).upper() == "NGRAM" else "mtp"
        plan["speculation"] = {"draft": kind, "draft_tokens": max(1, tokens)}
    plan |= {"serving": serving, "dp": dp * replicas}
    if reader.switch("disable-cuda-graph"):
        plan["graph"] = "none"
    if reader.switch("enable-torch-compile"):
        plan["compiled"] = True
    return plan


def recognises(files: Files) -> bool:
    """A command that runs SGLang's server, or a YAML file of its options."""
    return has_server(files, PROGRAMS, KEYS)
