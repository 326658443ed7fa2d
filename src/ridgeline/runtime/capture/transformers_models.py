"""Turn a Hugging Face config into a module of transformers on the meta device, with inputs to call it with.

Only code that transformers itself ships runs: what a config names of its own (`auto_map`) is not looked at. Attention
is told whole, with its window, where a model asks transformers' interface for it.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.capture.assemble import Seen
from ridgeline.runtime.capture.example_inputs import images_of, sets_of, shown_in
from ridgeline.runtime.capture.recording import PRODUCTS, Recorder, Recording, capture_problem, record_forward

NAME = "ridgeline"
TOWERS = ("vision_tower", "vision_model", "visual", "image_encoder", "vision_encoder", "vision_embed_tokens")
AUTOS = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
    "AutoModel",
)


def config_of(data: Mapping[str, Any]) -> Any:
    """The config object of a table; a message where transformers does not know or take it."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        expected_text = f"a type that transformers {transformers.__version__} knows"
        raise InputError(Problem(path="model_type", given=str(kind)[:60], expected=expected_text))
    plain = {
        key: _decode_config(value) for key, value in data.items() if key not in ("auto_map", "quantization_config")
    }
    try:
        return CONFIG_MAPPING[kind].from_dict(plain)
    except Exception as wrong:
        raise _refuse_type("config", wrong) from None


def built(config: Any, *, told: bool = True) -> nn.Module:
    """The module that a config describes, on the meta device and in bf16; `told`: with attention told whole."""
    import transformers

    classes = [getattr(transformers, str(name), None) for name in getattr(config, "architectures", None) or ()]
    model_classes = [
        kind for kind in classes if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    ]
    last: Exception | None = None
    for make in (
        *(kind._from_config for kind in model_classes),
        *(getattr(transformers, auto).from_config for auto in AUTOS),
    ):
        try:
            with warnings.catch_warnings(), torch.device("meta"), _format(torch.bfloat16):
                warnings.simplefilter("ignore")
                chosen = {"attn_implementation": NAME} if told else {}
                module: nn.Module = make(copy.deepcopy(config), **chosen)
                return module.eval()
        except Exception as wrong:
            last = last if "Unrecognized configuration class" in str(wrong) and last is not None else wrong
    raise _refuse_type("model", last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A module with a recorded forward over text, and what images went through, if any did."""

    module: nn.Module
    recording: Recording
    seen: Seen | None = None


def forward_of(config: Any, tokens: int, *, told: bool) -> Forward:
    """The module of a config and its forward over so many tokens, recorded."""
    holder: list[Recorder] = []
    with whole_attention(holder):
        module = built(config, told=told)
        text_module = speaking(module)
        wrongs: list[Exception] = []
        for by_decision in (False, True):
            for inputs in sets_of(text_module, tokens):
                try:
                    recording = _run(module, text_module, inputs, holder, by_decision)
                except InputError:
                    raise
                except Exception as wrong:
                    wrongs.append(wrong)
                    continue
                media = shown_in(text_module, inputs)
                media_seen = Seen(shown=media) if media else _seen_alone(module, text_module, holder)
                return Forward(module=module, recording=recording, seen=media_seen)
        raise InputError(capture_problem(type(module).__name__, wrongs[min(1, len(wrongs) - 1)])) from None


def _run(
    module: nn.Module, called: Callable[..., Any], named: Mapping[str, Any], holder: list[Recorder], decided: bool
) -> Recording:  # fmt: skip
    def run(recorder: Recorder) -> None:
        holder.append(recorder)
        called(**named)

    return record_forward(module, run, named, decided=decided)


def _seen_alone(module: nn.Module, called: nn.Module, holder: list[Recorder]) -> Seen | None:
    """A forward of the image encoder: whole, or as far as it ran; None where the module has none."""
    best: Seen | None = None
    for features in _seeing(called):
        for inputs in images_of(called, features):
            media = shown_in(called, inputs)
            if media is None:
                continue
            try:
                return Seen(shown=media, recording=_run(module, features, inputs, holder, False))
            except Exception:
                partial = Seen(shown=media, recording=holder[-1].recording)
            best = partial if best is None or _work(partial) > _work(best) else best
    if best is None or not _work(best) or best.recording is None:
        return None
    best.recording.guessed.add("what stands behind the image encoder did not run, and is counted and not priced")
    return best


def _work(seen: Seen) -> int:
    """Products with weights that ran."""
    nodes = seen.recording.nodes if seen.recording else ()
    return sum(node.op in PRODUCTS and bool(node.weights) for node in nodes)


def _seeing(module: nn.Module) -> Iterator[Callable[..., Any]]:
    """What makes features of an image: a method of the model, or its tower by its usual name."""
    for part in module.modules():
        if hasattr(part, "get_image_features"):
            yield part.get_image_features
            break
    for path, part in module.named_modules():
        if path.rpartition(".")[2] in TOWERS and next(part.parameters(), None) is not None:
            yield part
            return


def speaking(module: nn.Module) -> nn.Module:
    """The part that is called: the module itself; the largest of its parts where it has no forward of its own."""
    if type(module).forward is not nn.Module.forward:
        return module
    parts = [part for part in module.children() if type(part).forward is not nn.Module.forward]
    return max(parts, key=lambda part: sum(weight.numel() for weight in part.parameters()), default=module)


@contextmanager
def whole_attention(holder: list[Recorder]) -> Iterator[None]:
    """transformers' attention interface hands every attention to the recorder in `holder`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **named: Any) -> tuple[Any, None]:
        window, is_chunked = _attention_window(module, named)
        causal = named.get("is_causal")
        causal = bool(getattr(module, "is_causal", True)) if causal is None else bool(causal)
        out = holder[-1].attend(
            query, key, value, window=window, chunked=is_chunked, causal=causal, sinks=named.get("s_aux")
        )
        return out.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
    try:
        yield
    finally:
        for table in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            type(table)._global_mapping.pop(NAME, None)


def _decode_config(value: Any) -> Any:
    """A value of a config as transformers wrote it: floats that JSON has no word for are tables of one."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(str(value["__float__"]))
        return {key: _decode_config(entry) for key, entry in value.items()}
    return [_decode_config(entry) for entry in value] if isinstance(value, list) else value


def _attention_window(module: nn.Module, named: Mapping[str, Any]) -> tuple[int, bool]:
    """Tokens a query sees, 0 for all of them, and whether they are a fixed chunk of the sequence."""
    config = getattr(module, "config", None)
    kinds, place = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[place] if isinstance(kinds, list) and isinstance(place, int) and place < len(kinds) else ""
    if kind == "chunked_attention":
        return int(getattr(config, "attention_chunk_size", 0) or 0), True
    if kind == "full_attention":
        return 0, False
    window = named.get("sliding_window", getattr(module, "sliding_window", None))
    return (window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else 0), False


@contextmanager
def _format(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _refuse_type(what: str, wrong: Exception | None) -> InputError:
    import transformers

    message = " ".join(str(wrong).split())
    missing = re.search(r"requires the (\w+) library", message)
    if missing:
        library = missing[1]
        todo = f"pip install {library}, in a build that fits the installed torch {torch.__version__}"
        return InputError(Problem(path=what, given=f"no module {library}", expected=library, todo=todo))
    expected_text = f"a {what} that transformers {transformers.__version__} can build"
    todo = "compare its keys with those of a published config of the type"
    return InputError(
        Problem(path=what, given=f"{type(wrong).__name__}: {message[:200]}", expected=expected_text, todo=todo)
    )
