"""Turn a Scenario into the YAML of NxD Training, the model's config.json beside it, and launch scripts.

Written is `model_source: hf`, whose classes are Llama's and Mixtral's: other models are refused for that reason.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from ridgeline.models.numerics import Router, numerics_of, unknown_numerics
from ridgeline.models.spec import Attention, Mlp, ModelSpec, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.launch import TORCHRUN, Command, comment, header, nodes_of, scripts
from ridgeline.targets.ledger import Lose, Piece, Say, exported, gather
from ridgeline.targets.llama_shape import plain_block
from ridgeline.targets.nxd_training.names import ID, cores_of
from ridgeline.targets.nxd_training.write_plan import PLAN, family_of
from ridgeline.targets.option_reader import nested
from ridgeline.targets.options import options
from ridgeline.targets.target import Export
from ridgeline.targets.vendors import runs_on
from ridgeline.targets.yaml_text import yaml_text

FILE = "nxd.yaml"
CONFIG = "config.json"
NOTE = (
    "# NXDT is a checkout of aws-neuron/neuronx-distributed-training; data.train_dir in nxd.yaml is yours to choose.\n"
    "# COMPILE=1 compiles the programs of a first run ahead of time; words after the script's name override keys."
)
# what AWS's own script sets: the network of several nodes, and memory of the host
ENVIRONMENT = {
    "FI_EFA_FORK_SAFE": "1",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_PROVIDER": "efa",
    "HYDRA_FULL_ERROR": "1",
    "MALLOC_ARENA_MAX": "128",
    "XLA_DISABLE_FUNCTIONALIZATION": "0",
}
# what a first run needs beside the decisions
RUN: dict[str, Any] = {
    "seed": 1234,
    "trainer.max_epochs": -1,
    "trainer.max_steps": 50,
    "trainer.log_every_n_steps": 1,
    "trainer.val_check_interval": 51,
    "trainer.check_val_every_n_epoch": None,
    "trainer.num_sanity_val_steps": 0,
    "trainer.limit_val_batches": 0.0,
    "trainer.limit_test_batches": 0.0,
    "trainer.gradient_clip_val": 1.0,
    "exp_manager.log_local_rank_0_only": True,
    "exp_manager.create_tensorboard_logger": False,
    "exp_manager.explicit_log_dir": None,
    "exp_manager.exp_dir": None,
    "exp_manager.resume_if_exists": False,
    "exp_manager.resume_ignore_no_checkpoint": True,
    "exp_manager.create_checkpoint_callback": False,
    "exp_manager.checkpoint_callback_params.every_n_train_steps": 1000,
    "exp_manager.resume_from_checkpoint": None,
    "data.train_dir": "your/tokenized/dataset",
    "model.use_cpu_initialization": True,
    "model.do_layer_norm_weight_decay": False,
    "model.optim.lr": 1.5e-4,
    "model.optim.weight_decay": 0.01,
    "model.optim.capturable": False,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.sched.name": "LinearAnnealingWithWarmUp",
    "model.optim.sched.warmup_steps": 10,
    "compiler_flags": "--model-type transformer",
    "compiler_cache_url": "neuron_cache",
    "aync_exec_max_inflight_requests": 5,
    "bucket_size_collectives": 1024,
    "neuron_rt_exec_timeout": 100,
    "neuron_experimental_compress_rg": False,
}


def write(scenario: Scenario) -> Export:
    """nxd.yaml, config.json and the launch scripts."""
    ledger = gather(decisions_of(scenario), _pieces(scenario))
    title = options(ID).title
    text = comment(header(scenario, title)) + yaml_text(nested({**ledger.options, **RUN}))
    files = {FILE: text, **scripts(scenario, _command(scenario), title)}
    block = plain_block(scenario.model)
    if block is not None:
        files[CONFIG] = json.dumps(dict(config_of(scenario.model, *block)), indent=2) + "\n"
    return exported(ID, files, ledger)


def _command(scenario: Scenario) -> Command:
    """torchrun with a process for each logical NeuronCore of the node."""
    (_, each), (ranks, lnc) = nodes_of(scenario.system), cores_of(scenario.system)
    environment = dict(ENVIRONMENT)
    if lnc > 1:
        environment["NEURON_RT_VIRTUAL_CORE_SIZE"] = str(lnc)
    words = (
        f'${{COMPILE:+neuron_parallel_compile}} {TORCHRUN} --nproc_per_node={each * ranks} --nnodes="$NNODES" '
        '--node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" '
        f'"${{NXDT:-neuronx-distributed-training}}/examples/training_orchestrator.py" --config-path="$PWD" '
        f'--config-name={shlex.quote(FILE.removesuffix(".yaml"))} model.model_config="$PWD/{CONFIG}" '
        'trainer.num_nodes="$NNODES"'
    )
    return Command(words=(), per_chip=False, environment=environment, before=NOTE, tail=words)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    yield from runs_on(scenario, ID)
    yield from _model(scenario)
    for part in PLAN:
        yield from part(scenario)


def _model(scenario: Scenario) -> Iterator[Piece]:
    model, block = scenario.model, plain_block(scenario.model)
    yield Say("name", family_of(model))
    yield Say("model_source", "hf")
    if block is None or block[0].head_dim * block[0].heads != model.hidden:
        why = "its classes are Llama's and Mixtral's: equal layers of RMSNorm, rotary attention and SwiGLU, no biases"
        yield Lose("model.*", why)
        return
    mixer, ffn = block
    yield Say("model.model_config", CONFIG, "model.*")
    yield Say("model.num_layers", model.layers, "model.order")
    yield Say("model.hidden_size", model.hidden, "model.hidden")
    if model.embedding.tied:
        yield Lose("model.embedding.tied", "input and output embeddings are two matrices")
    yield from _numerics(model)
    if isinstance(ffn, Moe):
        yield from _experts(ffn, numerics_of(model).router)
    yield from _copies(scenario, mixer)


def _experts(ffn: Moe, router: Router | None) -> Iterator[Piece]:
    """Every token reaches its experts: dropless, which has no capacity."""
    for name, value in (
        ("num_experts", ffn.experts),
        ("frequency", 1),
        ("top_k", ffn.topk),
        ("dropless", True),
        ("capacity_factor", 0.0),
        ("dropout", 0.0),
        ("routing_algorithm", "top_k"),
        ("output_router_logits", True),
    ):
        yield Say(f"model.moe.{name}", value)
    if router is None or router.aux_loss is None:
        yield Say("model.moe.router_aux_loss_coef", 0.02)
    if router is None or router.normalized is None:
        yield Say("model.moe.normalize_top_k_affinities", True)


def _copies(scenario: Scenario, mixer: Attention) -> Iterator[Piece]:
    """Cached heads are copied where there are more ranks than heads."""
    ranks = scenario.plan.mesh.tp * cores_of(scenario.system)[0]
    if mixer.heads % ranks or max(ranks, mixer.kv_heads) % min(ranks, mixer.kv_heads):
        why = f"{ranks} tensor ranks (NeuronCores) do not share {mixer.heads} heads and {mixer.kv_heads} of keys evenly"
        yield Lose("plan.tp", why)
        return
    copied = mixer.kv_heads < mixer.heads
    yield Say("model.qkv_linear", copied)
    if copied:
        yield Say("model.fuse_qkv", True)
        yield Say("distributed_strategy.kv_replicator", max(1, ranks // mixer.kv_heads))


def _numerics(model: ModelSpec) -> Iterator[Piece]:
    found = numerics_of(model)
    if found.rotary_base is not None:
        yield Say("model.rope_theta", found.rotary_base, "model.numerics.rotary_base")
    if found.rotary_scaling is not None and found.rotary_scaling.kind != "llama3":
        yield Lose("model.numerics.rotary_scaling.*", "positions are scaled as Llama 3 scales them, or not at all")
    for name in ("rotary_share", "local_rotary_base", "score_scale", "*softcap"):
        yield Lose(f"model.numerics.{name}", "its classes have Llama's and Mixtral's")
    if found.router is not None:
        if found.router.aux_loss is not None:
            yield Say("model.moe.router_aux_loss_coef", found.router.aux_loss, "model.numerics.router.aux_loss")
        if found.router.normalized is not None:
            option = "model.moe.normalize_top_k_affinities"
            yield Say(option, found.router.normalized, "model.numerics.router.normalized")
        if (found.router.score, found.router.bias, found.router.scale) != ("softmax", False, 1.0):
            yield Lose("model.numerics.router.*", "experts are scored by a softmax")
    if unknown := unknown_numerics(model):
        why = f"{', '.join(unknown)} of this model: not known; set them as its checkpoint has them"
        yield Lose("model.numerics.unknown", why, yours=True)


def config_of(model: ModelSpec, mixer: Attention, ffn: Mlp | Moe) -> Iterator[tuple[str, Any]]:
    """What a config.json of Llama or Mixtral says of the model, in transformers' words."""
    experts, numerics = isinstance(ffn, Moe), numerics_of(model)
    yield "architectures", ["MixtralForCausalLM" if experts else "LlamaForCausalLM"]
    yield "model_type", "mixtral" if experts else "llama"
    yield "hidden_act", "silu"
    yield "hidden_size", model.hidden
    yield "intermediate_size", ffn.hidden
    yield "num_hidden_layers", model.layers
    yield "num_attention_heads", mixer.heads
    yield "num_key_value_heads", mixer.kv_heads
    yield "max_position_embeddings", model.context or 8192
    yield "vocab_size", model.vocab
    yield "tie_word_embeddings", model.embedding.tied
    if isinstance(ffn, Moe):
        yield "num_local_experts", ffn.experts
        yield "num_experts_per_tok", ffn.topk
        yield "sliding_window", None
    if numerics.norm_eps is not None:
        yield "rms_norm_eps", numerics.norm_eps
    if numerics.rotary_base is not None:
        yield "rope_theta", numerics.rotary_base
    scaling = numerics.rotary_scaling
    if scaling is not None and scaling.kind == "llama3":
        yield (
            "rope_scaling",
            {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.slow or 1.0,
                "high_freq_factor": scaling.fast or 4.0,
                "original_max_position_embeddings": scaling.first_context,
            },
        )
