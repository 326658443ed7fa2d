"""Turn what a run says of its tokenizer into the rows of its embedding."""

from __future__ import annotations

import re

from ridgeline.models.names import MODELS, find_name
from ridgeline.targets.option_reader import OptionReader

# Megatron's and its dialects' kinds of tokenizer that have one vocabulary
TOKENIZERS = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
    "LLama2Tokenizer": 32000,
    "LLamaTokenizer": 32000,
    "LlamaTokenizer": 32000,
    "Llama3Tokenizer": 128256,
    "LLama3Tokenizer": 128256,
    "Qwen2Tokenizer": 151936,
    "Qwen3Tokenizer": 151936,
    "DeepSeekV2Tokenizer": 102400,
    "DeepSeekV3Tokenizer": 129280,
    "MistralTokenizer": 32000,
    "MixtralTokenizer": 32000,
    "QwenTokenizer": 151936,
    "QwenVLTokenizer": 151936,
    "Qwen2VLTokenizer": 151936,
    "BaichuanTokenizer": 64000,
    "BloomTokenizerFromHF": 250880,
    "FalconTokenizer": 65024,
    "OPTTokenizer": 50272,
    "StarcoderTokenizerFromHF": 49152,
    "YiTokenizer": 64000,
    "ChatGLMTokenizerFromHF": 130528,
    "IcetkGLM130BTokenizer": 150528,
}
GUESSED = {"SentencePieceTokenizer": 32000, "GPTSentencePieceTokenizer": 32000, "TikTokenizer": 131072}
USUAL = 50257
PATCHED = "patch-tokenizer-type"  # of Pai-Megatron-Patch, which loads it from the model's folder
NAMED_BY = ("tokenizer-model", "tokenizer-name-or-path", "hf-tokenizer-name-or-path", "tokenizer-path")
# families of models that share a tokenizer, by what stands in its name
FAMILIES = {
    r"nemotron[-_ ]?(3|nano|h)": 131072,
    r"llama[-_ ]?3": 128256,
    r"llama[-_ ]?2": 32000,
    r"qwen[-_ ]?3": 151936,
    r"deepseek[-_ ]?(v3|r1)": 129280,
}


def named_by_tokenizer(reader: OptionReader) -> str | None:
    """The catalog model whose tokenizer a run names."""
    for option in NAMED_BY:
        value = reader.options.get(option)
        if not isinstance(value, str) or len(value) > 300:
            continue
        for name in (value, *reversed(value.strip("/").split("/"))):
            found = find_name(name) if name and "$" not in name else None
            if found is not None:
                return found[0]
    return None


def named_by_path(path: str) -> str:
    """The catalog model whose id stands in the name of a file or its folder; nothing where none does.

    >>> named_by_path("llama2/pretrain_llama2_70b_128k.sh")
    'llama2-70b'
    """
    plain = re.sub(r"[^a-z0-9]", "", path[:200].lower())
    found = [id for id in MODELS if re.sub(r"[^a-z0-9]", "", id) in plain]
    return max(found, key=len, default="")


def vocabulary_of(reader: OptionReader) -> int | None:
    """Rows of the embedding where the options say them, by number or by a tokenizer that has one size."""
    stated = reader.count("padded-vocab-size", "pad-vocab-size-to") or reader.count("vocab-size")
    reader.take("pad-vocab-size-to"), reader.take("vocab-size")
    if stated is not None:
        return stated
    model = named_by_tokenizer(reader)
    if model is not None:
        reader.assumptions.append(f"vocab = {MODELS[model].vocab}: the tokenizer is that of {model}")
        return MODELS[model].vocab
    name = " ".join(str(reader.options.get(option, ""))[:300] for option in NAMED_BY).lower()
    shared = next((words for pattern, words in FAMILIES.items() if re.search(pattern, name)), None)
    if shared is not None:
        reader.assumptions.append(f"vocab = {shared}: that of the family which the tokenizer names")
        return shared
    kind = str(reader.options.get("tokenizer-type", ""))
    if is_patched(reader):
        return None
    file = str(reader.options.get("vocab-file", ""))
    if kind not in TOKENIZERS and (re.search(r"gpt2|bpe", file) or (file and "merge-file" in reader)):
        kind = "GPT2BPETokenizer"
    if kind in TOKENIZERS:
        reader.assumptions.append(f"vocab = {TOKENIZERS[kind]}: that of {kind}")
    return TOKENIZERS.get(kind)


def is_patched(reader: OptionReader) -> bool:
    """Whether the tokenizer is of a family whose models pad its words differently."""
    return str(reader.options.get(PATCHED, "")) in TOKENIZERS


def guessed_vocabulary(reader: OptionReader) -> tuple[int, str] | None:
    """The size that a kind of tokenizer usually has, where its own file would tell, and that kind."""
    for option, sizes in ((PATCHED, TOKENIZERS), ("tokenizer-type", GUESSED)):
        kind = str(reader.options.get(option, ""))
        if kind == "LLamaTokenizer" and "qwen" in reader.table.source.lower():  # it loads whatever the folder holds
            kind = "QwenTokenizer"
        if kind in sizes:
            return sizes[kind], kind
    return None


def usual_vocabulary(hint: str) -> int:
    """What is assumed where nothing tells the vocabulary: that of the model which the file is named after."""
    return MODELS[hint].vocab if hint in MODELS else USUAL
