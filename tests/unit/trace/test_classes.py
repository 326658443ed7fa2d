"""Names become classes by a table that a user can add to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from traces import Recipe, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.classes import Rules, classify
from ridgeline.trace.timeline import Span, Timeline


def run(recipe: Recipe, folder: Path) -> Analysis:
    return analyze(write(make(recipe), folder / "t.json"))


class TestClasses:
    @pytest.mark.parametrize(
        ("name", "id"),
        [
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "nccl"),
            ("void deep_ep::internode_ll::dispatch<true, 3, 7168>", "expert-exchange"),
            ("multimem_all_reduce_kernel", "symmetric-memory"),
            ("nvshmemi_transfer_rma_put", "symmetric-memory"),
            ("void vllm::cross_device_reduce_2stage<nv_bfloat16, 8>", "custom-all-reduce"),
            ("mscclpp::allreduce8", "mscclpp"),
            ("hcom_allReduce__445_0", "hccl"),
            ("nvjet_sm90_tst_128x256_64x4", "matmul"),
            ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64", "matmul"),
            ("void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>", "attention"),
            ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "norm"),
            ("triton_red_fused__fused_rms_norm_0", "norm"),
            ("triton_poi_fused_mul_silu_5", "elementwise"),
            ("triton_poi_fused__unsafe_view_cat_mul_silu_silu_backward_split_view_0", "elementwise"),
            ("void moe_align_block_size_kernel<int>", "moe-routing"),
            ("multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
            ("cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>", "loss"),
            ("void at::native::vectorized_gather_kernel<16, long>(char*)", "embedding"),
            ("CatArrayBatchedCopy<float>", "kernel-copy"),
            ("void at::native::reduce_kernel<512, 1, sum>", "reduction"),
            ("zxcv_9000", "unknown"),
        ],
    )  # fmt: skip
    def test_names(self, name: str, id: str) -> None:
        span = Span(process="c", stream="s", name=name, kind="kernel", start_ns=0, duration_ns=1)
        line = classify(Timeline.of([span]))
        assert line.classes[line.class_[0]] == id

    def test_streams_count_where_a_class_is_limited_to_them(self, tmp_path: Path) -> None:
        """Of measured work too, whichever stream stands first in the table."""
        path = tmp_path / "own.toml"
        path.write_text('[[class]]\nid = "side"\ngroup = "copy"\nstreams = ["9"]\n')
        spans = [
            Span(process="c", stream=stream, name="gemm", kind="kernel", start_ns=0, duration_ns=1) for stream in "789"
        ]
        line = classify(Timeline.of(spans), Rules.read(path))
        assert [line.classes[code] for code in line.class_] == ["matmul", "matmul", "side"]

    def test_a_users_file_comes_first(self, tmp_path: Path) -> None:
        path = tmp_path / "own.toml"
        path.write_text('[[class]]\nid = "ours"\ngroup = "communication"\nnames = ["^zxcv_"]\n')
        trace = make(Recipe(names=("zxcv_1", "vectorized_elementwise", "ncclX")))
        found = analyze(write(trace, tmp_path / "t.json"), classes=path)
        assert found.breakdown.classes[0].id == "ours"
        assert found.breakdown.total.communication_ns > analyze(tmp_path / "t.json").breakdown.total.communication_ns
        assert analyze(tmp_path / "t.json").breakdown.classes[0].id == "matmul"  # launched by aten::mm

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('[[class]]\nid = "x"\nnames = ["("]\n', "regular expression"),
            ('[[class]]\nid = "x"\ngroup = "comm"\nnames = ["a"]\n', "communication"),
            ('[[class]]\nid = "x"\n', "no pattern"),
            ("[x]\ny = 1\n", "[[class]]"),
            ('[[class]]\nid = "x"\nname = ["a"]\n', "names"),
        ],
    )
    def test_a_wrong_file_is_explained(self, text: str, says: str, tmp_path: Path) -> None:
        path = tmp_path / "own.toml"
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(says)):
            Rules.read(path)
