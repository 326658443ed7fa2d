"""Time Dynamo's replay on a Mooncake trace; run by serving.py with the Python of an environment that has it.

PYTHON dynamo_replay.py TRACE.jsonl BLOCKS ROUNDS       (pip install ai-dynamo-runtime==1.6.1)

Prints CPU seconds of the best round; BLOCKS are of 16 tokens.
"""

from __future__ import annotations

import sys
import time

from dynamo._core import run_mocker_trace_replay

BLOCK = 64  # tokens a block here; the pool holds as many tokens as the other's


def main() -> None:
    """Print the CPU seconds of the best round."""
    trace, blocks, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = {"backend": "vllm", "num_gpu_blocks": blocks * 16 // BLOCK, "block_size": BLOCK}
    engine |= {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        run_mocker_trace_replay(
            [trace], extra_engine_args={"engine": engine}, num_workers=1, router_mode="round_robin",
            trace_block_size=512, trace_format="mooncake", replay_mode="offline",
        )  # fmt: skip
        best = min(best, time.process_time() - begun)
    print(best)


if __name__ == "__main__":
    main()
