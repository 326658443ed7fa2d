"""Which keys of Primus's files stand for which options of Megatron's command line, and what they say when left out."""

from __future__ import annotations

ID = "primus"

# names of Megatron's configuration -> options of its command line; `no-` where false is the option
NAMES = {
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "num-moe-experts": "num-experts",
    "hybrid-override-pattern": "hybrid-layer-pattern",
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
}
OPPOSITE = {
    "add-bias-linear": "disable-bias-linear",
    "overlap-p2p-comm": "no-overlap-p2p-communication",
    "gradient-accumulation-fusion": "no-gradient-accumulation-fusion",
}
# what Megatron does without the option, where Primus's own files (pre_trainer, language_model) would say otherwise
PLAIN = {
    "add_bias_linear": True,
    "bf16": False,
    "finetune": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "sequence_parallel": False,
    "swiglu": False,
    "untie_embeddings_and_output_weights": False,
    "use_distributed_optimizer": False,
}
