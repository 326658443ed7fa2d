"""SGLang's words for formats and routers, and the knobs of a plan that are arguments of its server by the same name."""

from __future__ import annotations

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
NUMBERS = (
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "max_total_tokens",
    "mem_fraction_static",
    "page_size",
    "schedule_policy",
    "schedule_conservativeness",
    "priority_scheduling_preemption_threshold",
)
