"""Where torchtitan 0.3 keeps what a job file of 0.2 says, and what of it is gone."""

from __future__ import annotations

ID = "torchtitan-preset"

REGISTRY = "model_registry"
# an option of a job file -> where a preset says it
MOVED = {
    "model.name": f"{REGISTRY}.family",
    "model.flavor": f"{REGISTRY}.flavor",
    "model.hf_assets_path": "hf_assets_path",
    "parallelism.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "parallelism.expert_parallel_comm_backend": f"{REGISTRY}.moe_comm_backend",
}
# options of a job file that a preset has no place for
GONE = (
    "parallelism.context_parallel_rotate_method",
    "parallelism.expert_tensor_parallel_degree",
    "parallelism.pipeline_parallel_expert_parallel_overlap",
    "optimizer.name",
)
RECOMPUTE = {"full": "FullAC", "selective": "SelectiveAC", "none": "None"}
# (family, recipe) of a job file -> the class that converts, for matrices and for experts
CONVERTERS = {
    "float8": ("Float8LinearConverter", "Float8GroupedExpertsConverter"),
    "mx": ("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter"),
}
