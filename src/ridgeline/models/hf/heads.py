"""Turn `architectures`, the class that a checkpoint was saved from, into the head behind the last layer.

    ...ForCausalLM, ...ForConditionalGeneration, ...ForMaskedLM     logits of the vocabulary
    ...ForSequenceClassification, ...ForRewardModel                 scores of a sequence
    ...ForTokenClassification, ...ForQuestionAnswering              scores of every token
    ...Model                                                        none: hidden states, as embedders use them;
                                                                    DreamModel has logits under that name

`head = "none"` (from --set model.head=none) says it where a checkpoint of an embedder was saved as a language model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from ridgeline.models.hf.config import Config
from ridgeline.models.spec import Head, ModelSpec

Kind = Literal["language", "sequence", "tokens", "none"]
SUFFIXES: tuple[tuple[str, Kind], ...] = (
    ("ForSequenceClassification", "sequence"),
    ("ForSequenceRegression", "sequence"),
    ("ForRewardModel", "sequence"),
    ("RewardModel", "sequence"),
    ("ForTokenClassification", "tokens"),
    ("ForQuestionAnswering", "tokens"),
    ("LMHeadModel", "language"),
    ("LMHead", "language"),
    ("DreamModel", "language"),
    ("EncoderModel", "none"),
    ("Model", "none"),
)


def head_kind(cfg: Config) -> Kind:
    """Which head a config says its model has."""
    head = cfg.data.get("head")
    cfg.ignore("head")
    if head is not None:
        kinds = get_args(Kind)
        if head in kinds:
            return head  # type: ignore[no-any-return]
        cfg.bad("head", head, f"one of {', '.join(kinds)}")
    name = architecture(cfg)
    return next((kind for suffix, kind in SUFFIXES if name.endswith(suffix)), "language")


def architecture(cfg: Config) -> str:
    """The class that a checkpoint was saved from; empty where the file does not say."""
    names = cfg.data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def labels(cfg: Config) -> int:
    """Scores of a classification head: `num_labels`, or as many as are named; two where nothing says, as transformers
    builds it."""
    cfg.ignore("num_labels", "id2label", "label2id")
    labels_by_id = cfg.data.get("id2label")
    if cfg.has("num_labels"):
        return cfg.count("num_labels")
    return len(labels_by_id) if isinstance(labels_by_id, dict) and 0 < len(labels_by_id) <= 10**6 else 2


def decoder_head(cfg: Config, spec: ModelSpec) -> ModelSpec:
    """A language model under the head that its config says: one matrix for classes, with a bias where every token has
    some, or nothing."""
    kind = head_kind(cfg)
    if kind == "language" or spec.head is not None:
        return spec
    many = 0 if kind == "none" else labels(cfg)
    scores_head = Head(kind=kind, outputs=many, extra=many if kind == "tokens" else 0)
    return replace(spec, head=scores_head, embedding=replace(spec.embedding, tied=False, head_bias=False), mtp=None)
