"""Requests, a scheduler and the cost of a step -> what became of every request, and why.

    request, step_cost      one prompt and its answer; seconds of an engine step
    batch_steps             a closed batch and an engine's limits -> its steps, without a clock
    trace_model             which model of the catalog a trace of an engine is of
    engine/                 schedulers as state machines: vLLM, SGLang, TensorRT-LLM, a static batcher
    request_files, load     requests: read from traces and logs, or drawn
    served, bench_result    the metrics of `vllm bench serve`, of a simulated run and of a measured one
    replica, fleet          engines that step; who deals requests to them, and the loop over all of it
    replay, deployment      the schedulers against recordings of the real ones; a scenario -> its fleet
    serving_prediction      the verb
    slow_requests           why slow requests are slow, and what would help
    running_batch           what runs at once on average, what its steps are bound by, and what makes requests wait

Each line imports only lines above it.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
