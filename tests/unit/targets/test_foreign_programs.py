"""Programs with parsers of their own are refused by name, and never read as their neighbours."""

from __future__ import annotations

import pytest

from ridgeline.core.errors import InputError
from ridgeline.targets.api import import_run

TRAINER = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 true --max_length 4096"


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (f"NPROC_PER_NODE=8 swift sft {TRAINER}", "ms-swift"),
        (f"torchrun --nproc_per_node 8 swift/cli/sft.py {TRAINER}", "ms-swift"),
        ("megatron sft --tensor_model_parallel_size 2 --micro_batch_size 1", "Megatron-SWIFT of ms-swift"),
        ("tune run --nproc_per_node 8 full_finetune_distributed --config llama3/8B_full", "torchtune"),
        ("python3 -m verl.trainer.main config=a.yaml worker.actor.global_batch_size=128", "EasyR1"),
    ],
)
def test_a_foreign_command_is_named(command: str, title: str) -> None:
    with pytest.raises(InputError, match=f"a run of {title}, "):
        import_run({"run.sh": f"#!/bin/bash\n{command}\n"}, system="8xh100-sxm")
    with pytest.raises(InputError, match=f"a run of {title}, "):
        import_run({"run.sh": f"#!/bin/bash\n{command}\n"}, target="accelerate", system="8xh100-sxm")


def test_a_foreign_table_is_named() -> None:
    text = "worker:\n  actor:\n    global_batch_size: 128\n  rollout:\n    n: 5\n"
    with pytest.raises(InputError, match="EasyR1"):
        import_run({"a.yaml": text}, system="8xh100-sxm")


def test_words_of_a_path_are_no_command() -> None:
    found = import_run({"run.sh": f"accelerate launch train.py {TRAINER} --data swift/sft\n"}, system="8xh100-sxm")
    assert found.target == "accelerate"
