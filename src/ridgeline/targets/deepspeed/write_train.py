"""Turn a Scenario into train.py, the script that DeepSpeed wraps: the model, made-up data, and the plan's recompute.

Only plans without stages, context ranks and expert ranks are started by it: those take a PipelineModule, Ulysses
attention and the model's own experts, which are the user's code. Weights are made where they rest under stage 3
(`zero.Init`), so that a model that fits only when it is sharded starts.
"""

from __future__ import annotations

from ridgeline.models.spec import Attention, Mlp, ModelSpec, Norm
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.launch import comment, header
from ridgeline.targets.recompute_fallback import same_everywhere
from ridgeline.targets.verl.names import weights_of

FILE = "train.py"
BODY = '''
import argparse
import json
import os
import random

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

SEQ = {seq}
RECOMPUTE = {recompute}  # every layer, as planned
STEPS = int(os.environ.get("STEPS", "50"))


def model_config():
    """The model: another by its name or folder in MODEL."""
    named = os.environ.get("MODEL", {published!r})
    return AutoConfig.from_pretrained(named) if named else {own}


def sequence(seed, vocab):
    """Made-up tokens that count upwards; replace by your data."""
    start = random.Random(seed).randrange(vocab)
    return (torch.arange(SEQ) + start) % vocab


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    args = deepspeed.add_config_arguments(parser).parse_args()
    with open(args.deepspeed_config) as file:
        config = json.load(file)
    stage = config.get("zero_optimization", {{}}).get("stage", 0)
    deepspeed.init_distributed()
    found = model_config()
    with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config, enabled=stage == 3):
        model = AutoModelForCausalLM.from_config(found)
    if RECOMPUTE:
        model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=[part for part in model.parameters() if part.requires_grad], config=config
    )
    tensor = config.get("tensor_parallel", {{}}).get("autotp_size", 1)
    rank = torch.distributed.get_rank() // tensor  # ranks that split matrices see the same data
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    for step in range(STEPS):
        total = 0.0
        for part in range(steps):
            seeds = [(rank * steps + part) * micro + row for row in range(micro)]
            tokens = torch.stack([sequence(seed, found.vocab_size) for seed in seeds]).to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            engine.backward(loss)
            engine.step()
            total += loss.item() / steps
        if torch.distributed.get_rank() == 0:
            print(f"step {{step}} loss {{total:.4f}}", flush=True)
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
'''


def train_script(scenario: Scenario, title: str) -> str | None:
    """train.py; None where the plan or the model takes code of the user's own."""
    mesh, model = scenario.plan.mesh, scenario.model
    own, published = llama_config(model), weights_of(model)
    if mesh.pp * mesh.cp * mesh.ep * mesh.etp > 1 or (own is None and published is None):
        return None
    again = same_everywhere(scenario).kind != "none"
    body = BODY.format(seq=scenario.workload.seq, recompute=again, published=published or "", own=own)
    return comment(header(scenario, title)) + body


def llama_config(model: ModelSpec) -> str | None:
    """The model as the LlamaConfig of transformers, in code; None where its layers are not those of Llama.

    >>> from ridgeline.models.load import MODELS
    >>> llama_config(MODELS["deepseek-v3"]) is None, "head_dim=128" in (llama_config(MODELS["llama3-8b"]) or "")
    (True, True)
    """
    if len(model.blocks) != 1 or model.mtp or model.vision or model.norm != Norm() or model.embedding.positions:
        return None
    block = model.blocks[0]
    mixer, ffn = block.mixer, block.ffn
    if not isinstance(mixer, Attention) or not isinstance(ffn, Mlp) or (block.norm, block.norms) != (Norm(), 2):
        return None
    plain = Attention(heads=mixer.heads, kv_heads=mixer.kv_heads, head_dim=mixer.head_dim)
    if mixer != plain or ffn != Mlp(hidden=ffn.hidden) or block.parallel or block.extra or block.beside:
        return None
    sizes = {
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": ffn.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "tie_word_embeddings": model.embedding.tied,
    }
    return f"LlamaConfig({', '.join(f'{name}={value}' for name, value in sizes.items())})"
