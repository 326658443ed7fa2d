"""The kind of an op by its word: what kinds of work compilers' ops do, whatever their dialects call them.

A word is an op's name without its dialect and overload: `add` of `stablehlo.add`, `aten.add.Tensor` and `R.add`. What
no table lists is unknown: it is priced by the bytes of its operands and results, and the graph says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.ir.op_graph import OpKind

_WORDS: Mapping[OpKind, str] = {
    "pointwise": """
        abs add addcdiv addcmul add_ addf addi and andi atan2 bernoulli_mask bitwise_and bitwise_not bitwise_or
        bitwise_xor cast cbrt ceil ceildiv clamp clamp_max clamp_min clip cmpf cmpi compare complex convert
        convert_element_type copysign cos cosh count_leading_zeros div divf divide divsi dropout elu elementwise eq
        equal erf erf_inv erfinv exp exp2 expm1 exponential exponential_minus_one extf extsi extui fill floor
        floor_divide fma fmod fpowi ge gelu gelu_tanh generic_pointwise greater greater_equal gt hardsigmoid hardswish
        imag index_cast intdiv is_finite isfinite isinf isnan ldexp le leaky_relu leakyrelu lerp less less_equal log
        log1p log2 log10 log_plus_one log_sigmoid logical_and logical_and_ logical_left_shift logical_not logical_or
        logical_right_shift logical_shift_right logical_shift_left logical_xor logistic logit lt map masked_fill
        masked_fill_ maximum maximumf max_elementwise maxf maxnumf maxsi min_elementwise minimum minimumf minf minnumf
        minsi mish mod mul mulf muli multiply ne neg negate negative negf nextafter nn_relu not not_equal or ori popcnt
        population_count pow power prelu quantize dequantize real reciprocal rem remainder remf remsi relu relu6 rescale
        round round_nearest_afz round_nearest_even roundeven rsqrt rsub select select_n selu shift_left
        shift_right_arithmetic shift_right_logical sigmoid sign silu silu_backward sin sinh sitofp fptosi uitofp
        softplus sqrt square stochastic_convert sub subf subi subtract swish tan tanh threshold_backward to to_copy
        _to_copy trunc
        truncf trunci type type_as uniform_quantize uniform_dequantize where xor xori astype reduce_precision
        gelu_backward tanh_backward sigmoid_backward native_dropout_backward fill_ zero_ mul_ sub_ div_ relu_ masked
        """,
    "reduction": """
        all amax amin any argmax argmin avg_pool avg_pool2d avg_pool3d count_nonzero cumprod cumsum cumsum_ logsumexp
        max
        max_pool max_pool2d max_pool2d_with_indices max_pool3d mean median min mode nll_loss nll_loss_forward
        cross_entropy_loss
        nll_loss_backward norm linalg_vector_norm pooling prod reduce reduce_all reduce_any reduce_max reduce_min
        reduce_product reduce_prod reduce_sum reduce_window scan select_and_scatter std sum sum_pool var var_mean
        variance adaptive_avg_pool2d _adaptive_avg_pool2d generic_reduction
        """,
    "norm": """
        batch_norm batch_norm_grad batch_norm_inference batch_norm_training group_norm instance_norm layer_norm
        native_batch_norm _native_batch_norm_legit native_group_norm native_layer_norm native_layer_norm_backward
        rms_norm _fused_rms_norm _fused_rms_norm_backward rmsnorm fused_layer_norm _native_batch_norm_legit_no_training
        """,
    "softmax": """
        _log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data log_softmax softmax
        """,
    "gather": """
        dynamic_gather dynamic_slice embedding gather gather_nd gather_elements index index_select take take_along_dim
        take_along_axis slice_scatter_source one_hot
        """,
    "scatter": """
        dynamic_update_slice embedding_dense_backward index_add index_copy index_put index_put_ scatter scatter_add
        scatter_elements scatter_nd scatter_reduce select_scatter slice_scatter index_add_ scatter_add_ scatter_
        """,
    "sort": "argsort sort topk top_k chlo.top_k msort bincount histc",
    "random": """
        bernoulli dropout_ multinomial native_dropout normal normal_ rand rand_like randint randn randn_like random rng
        rng_bit_generator rng_get_and_update_state rng_uniform uniform uniform_ threefry2x32
        """,
    "copy": """
        cat clone concat concatenate constant_pad_nd contiguous copy copy_ flip im2col pack pad permute_dims
        repeat repeat_interleave reverse roll stack strided_slice tile transpose unpack copy_start copy_done
        insert_slice layout_transform matrix_transpose fft tril triu bitcast_convert_copy tensor_parallel_copy
        """,
    "view": """
        _assert_tensor_metadata _unsafe_view alias annotate.sharding as_strided bitcast bitcast_convert broadcast_in_dim
        broadcast_to chunk collapse_shape custom_type_cast detach detach_ dynamic_broadcast_in_dim dynamic_reshape
        expand
        expand_dims expand_shape extract_slice flatten getitem get_tuple_element identity lift_fresh_copy lift_fresh
        movedim narrow numpy_T opt-barrier optimization_barrier permute reshape select_int sharding_constraint slice
        split
        split_with_sizes squeeze swapaxes t tuple unbind unflatten unsafe_chunk unsqueeze view view_as broadcast
        moveaxis size sym_size set_dimension_size get_dimension_size after_all add_dependency domain partition_id
        replica_id
        memory_effect
        """,
    "create": """
        arange const const_shape constant create_token empty empty_like empty_strided eye full full_like iota linspace
        new_empty new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like tensor_literal literal
        """,
}  # fmt: skip
KIND_OF: Mapping[str, OpKind] = MappingProxyType(
    {word: kind for kind, words in _WORDS.items() for word in words.split()}
)
COLLECTIVE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
        "all_to_all": "all-to-all", "ragged_all_to_all": "all-to-all", "collective_permute": "send", "send": "send",
        "collective_broadcast": "broadcast", "all_gather_into_tensor": "all-gather", "all_to_all_single": "all-to-all",
        "reduce_scatter_tensor": "reduce-scatter", "allreduce": "all-reduce", "allgather": "all-gather",
    }
)  # fmt: skip
"""Collectives by their words, in those of `ir.ops`."""


def op_kind(word: str) -> OpKind:
    """The kind of a word; `unknown` where no table lists it.

    >>> op_kind("rsqrt"), op_kind("dot_general"), op_kind("frobnicate")
    ('pointwise', 'unknown', 'unknown')
    """
    return KIND_OF.get(word) or KIND_OF.get(word.replace("-", "_"), "unknown")
