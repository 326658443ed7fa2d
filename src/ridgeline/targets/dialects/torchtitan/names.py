"""Which words of torchtitan mean what: flavors of models, pipeline schedules, context exchange, narrow formats."""

from __future__ import annotations

from ridgeline.targets.tables import value_pairs, word_pairs, words

ID = "torchtitan"

# (model.name, model.flavor) -> catalog id; flavors that differ only in their attention kernel are read, not written
FLAVORS = word_pairs("torchtitan", "flavors")
# flavors that are read and not written
ALSO_FLAVORS = word_pairs("torchtitan", "also_flavors")
# flavors whose published model shares the matrix of its embedding, and whose own does not
UNTIED = {("qwen3_5", "0.8B"): "qwen3.5-0.8b", ("qwen3_5", "2B"): "qwen3.5-2b", ("qwen3_5", "4B"): "qwen3.5-4b"}
# models that the software's own tests train, as tables of dimensions
DEBUG = value_pairs("torchtitan", "debug")
SCHEDULES = words("torchtitan", "schedules")
METHODS = {"ring": "alltoall"}
# (family, recipe) -> (format, what shares a scale)
CONVERTERS = {
    ("float8", "tensorwise"): ("fp8-e4m3", "tensor"),
    ("float8", "rowwise"): ("fp8-e4m3", "row"),
    ("mx", "mxfp8_cublas"): ("mxfp8", "block"),
}
