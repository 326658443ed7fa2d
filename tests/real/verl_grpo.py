"""Run verl's GRPO on Ray with vLLM on this CPU and print what it timed: verl_grpo.py FOLDER [STEPS]

A model of random weights and arithmetic-like prompts are made in FOLDER; `metrics.jsonl` there has the seconds of every
phase of every step as verl's own file logger writes them. The Python that runs this has verl, Ray and vLLM.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pandas
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
LAYERS, HIDDEN, HEADS, WORDS = 6, 384, 6, 2048
PROMPTS, SAMPLES, PROMPT, ANSWER = 8, 4, 24, 96
SEQS = 64
BUCKET_MB = 64
PHASES = ("gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights", "step")
REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(len(set(solution_str.split())) % 7) / 7
"""


def make_model(folder: Path) -> None:
    """A Llama of random weights whose tokens are words."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"t{place}": place for place in range(4, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=4096, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def make_prompts(path: Path, rows: int) -> None:
    """Prompts of `PROMPT` words."""
    dice = random.Random(0)
    texts = [" ".join(f"t{dice.randrange(4, WORDS)}" for _ in range(PROMPT)) for _ in range(rows)]
    pandas.DataFrame(
        {
            "data_source": ["made"] * rows,
            "prompt": [[{"role": "user", "content": text}] for text in texts],
            "ability": ["none"] * rows,
            "reward_model": [{"style": "rule", "ground_truth": ""}] * rows,
            "extra_info": [{"index": place} for place in range(rows)],
        }
    ).to_parquet(path)


def options(folder: Path, steps: int) -> list[str]:
    """verl's configuration: one rank that trains, one vLLM engine, no memory to free."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        *(f"data.train_files={folder}/prompts.parquet", f"data.val_files={folder}/prompts.parquet"),
        *(f"data.train_batch_size={PROMPTS}", f"data.max_prompt_length={PROMPT + 8}"),
        *(f"data.max_response_length={ANSWER}", "data.dataloader_num_workers=0", "data.filter_overlong_prompts=False"),
        *("algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=False"),
        *(f"actor_rollout_ref.model.path={folder}/model", "actor_rollout_ref.model.use_remove_padding=False"),
        *(
            "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            f"{actor}.strategy=fsdp2",
        ),
        *(f"{actor}.use_kl_loss=False", f"{actor}.ppo_mini_batch_size={PROMPTS}", f"{actor}.optim.lr=1e-4"),
        *(
            f"{actor}.use_dynamic_bsz=False",
            f"{actor}.ppo_micro_batch_size_per_gpu=8",
            f"{actor}.use_torch_compile=False",
        ),
        *(f"{actor}.fsdp_config.param_offload=False", f"{actor}.fsdp_config.optimizer_offload=False"),
        *(f"{actor}.fsdp_config.model_dtype=fp32", f"{actor}.fsdp_config.dtype=float32"),
        *(f"{rollout}.name=vllm", f"{rollout}.mode=async", f"{rollout}.n={SAMPLES}", f"{rollout}.dtype=float32"),
        *(f"{rollout}.tensor_model_parallel_size=1", f"{rollout}.enforce_eager=True", f"{rollout}.load_format=auto"),
        *(f"{rollout}.free_cache_engine=False", f"+{rollout}.enable_sleep_mode=False", f"{rollout}.ignore_eos=True"),
        *(f"{rollout}.gpu_memory_utilization=0.2", f"{rollout}.max_num_seqs={SEQS}", f"{rollout}.max_model_len=256"),
        *(f"{rollout}.log_prob_micro_batch_size_per_gpu=8", f"{rollout}.max_num_batched_tokens=2048"),
        *(f"{rollout}.agent.num_workers=1", f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes={BUCKET_MB}"),
        *(f"+{rollout}.engine_kwargs.vllm.block_size=32", f"{rollout}.calculate_log_probs=True"),
        *("trainer.use_v1=False", "trainer.nnodes=1", "trainer.n_gpus_per_node=1", "trainer.val_before_train=False"),
        *(
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            f"trainer.total_training_steps={steps}",
            "trainer.device=cpu",
        ),
        *("trainer.logger=[file]", "trainer.total_epochs=1000", "trainer.balance_batch=False"),
        *(
            f"trainer.default_local_dir={folder}/checkpoints",
            "trainer.project_name=phases",
            "trainer.experiment_name=cpu",
        ),
        *(f"reward.custom_reward_function.path={folder}/reward.py", "reward.custom_reward_function.name=compute_score"),
        *("reward.num_workers=1", "ray_kwargs.ray_init.num_cpus=4", "+ray_kwargs.ray_init.num_gpus=1"),
        *("+ray_kwargs.ray_init.include_dashboard=False", f"+ray_kwargs.ray_init._temp_dir={folder}/r"),
        *("+ray_kwargs.ray_init.object_store_memory=500000000", f"hydra.run.dir={folder}/hydra"),
    ]


def environment(folder: Path) -> dict[str, str]:
    """What verl, vLLM and Ray read of theirs on a machine without an accelerator and without a network."""
    return {
        **os.environ,
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda",
        "PYTHONPATH": str(HERE), "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "GLOO_SOCKET_IFNAME": "lo", "RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip


def main(folder: Path, steps: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "model")
    make_prompts(folder / "prompts.parquet", PROMPTS * steps)
    (folder / "reward.py").write_text(REWARD)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *options(folder, steps)]
    with (folder / "verl.out").open("w") as out:
        done = subprocess.run(command, env=environment(folder), stdout=out, stderr=subprocess.STDOUT, check=False)
    for row in steps_of(folder / "metrics.jsonl") if done.returncode == 0 else []:
        print({name: round(seconds, 5) for name, seconds in row.items()})
    return done.returncode


def steps_of(path: Path) -> list[dict[str, float]]:
    """Seconds of the phases of every step that verl's file logger wrote."""
    rows = [json.loads(line)["data"] for line in path.read_text().splitlines()]
    return [{name: float(row[f"timing_s/{name}"]) for name in PHASES} for row in rows]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 4))
