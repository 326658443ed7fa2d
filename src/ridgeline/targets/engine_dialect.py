"""Turn the tables of a serving engine into what its dialect says and reads alike: formats, knobs, one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.core.documents import JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import serving_decisions_of
from ridgeline.targets.imports.option_reader import OptionReader
from ridgeline.targets.ledger import Fixed, Ledger, Lose, Piece, Say, admit_options, gather
from ridgeline.targets.options import options
from ridgeline.targets.serving import pieces as common
from ridgeline.targets.serving.launch import Launch
from ridgeline.targets.serving.pieces import FormatWords, Replica
from ridgeline.targets.serving.reader import take_knobs
from ridgeline.targets.tables import names, tables, words

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWords:
    """The words of one engine, read both ways.

    also_dtypes  further words for formats of activations that are read
    online       (compute, weights, what shares a scale) -> the method that narrows weights while they are loaded
    from_16_bits whether only bf16 and fp16 are narrowed; products that stay wide are in either of them
    stored       how a checkpoint that is quantised already is named -> (compute, weights)
    knobs        a knob of the plan -> its option; those of `switches` are true or false
    quiet        a switch that is only written where it is on -> what the engine does otherwise
    """

    id: str
    formats: FormatWords
    also_dtypes: Mapping[str, str]
    online: Mapping[tuple[str, str, str | None], str]
    from_16_bits: bool
    stored: Mapping[str, tuple[str, str]]
    knobs: Mapping[str, str]
    switches: tuple[str, ...]
    quiet: Mapping[str, str]

    def pieces(self, scenario: Scenario) -> Iterator[Piece]:
        """Formats and knobs."""
        precision = scenario.plan.precision
        by_scale = (precision.compute.id, precision.weights.id, precision.scaling)
        paths: tuple[str, ...] = (common.COMPUTE, common.WEIGHTS, common.SCALING)
        method = self.online.get(by_scale)
        if method is None:
            method, paths = self.online.get((*by_scale[:2], None)), paths[:2]
        able = not self.from_16_bits or common.wide_format(scenario, self.formats) != "fp32"
        quantised = Say("--quantization", method, *paths) if method is not None and able else None
        yield from common.format_pieces(scenario, self.formats, quantised)
        yield from common.cache_format(scenario, self.formats)
        for knob, (value, path) in common.knobs(scenario, self.id).items():
            if knob in self.quiet and value is not True:
                yield Fixed(path, False, self.quiet[knob])
            elif knob in self.knobs:
                yield Say(self.knobs[knob], value, path)

    def read_formats(self, reader: OptionReader) -> JsonObject:
        """The formats of products, weights and activations; the cache as wide as these."""
        words = {word: name for name, word in DTYPES.items()} | dict(self.also_dtypes) | {"auto": "bf16"}
        wide = reader.word("dtype", among=words, default="bf16")
        formats: JsonObject = {"compute": wide, "weights": wide, "activations": wide, "kv": wide}
        method = reader.take("quantization") if self.stored else None
        known_words = {word: means for means, word in self.online.items()}
        known_words |= {word: (*means, None) for word, means in self.stored.items()}
        if isinstance(method, str) and method in known_words:
            compute, weights, scaling = known_words[method]
            formats |= {"compute": wide if compute == "bf16" and self.from_16_bits else compute, "weights": weights}
            formats |= {"scaling": scaling} if scaling else {}
        elif method is not None:
            reader.taken.discard("quantization")
            reader.assumptions.append(f"quantization {method}: read as {wide}, for its formats are not known here")
        return formats

    def read_cache_format(self, reader: OptionReader, wide: str) -> str:
        """The format of the KV cache: that of activations unless told otherwise."""
        cache_words = {word: name for name, word in self.formats.kv_dtypes.items()}
        cache_words |= ({"bfloat16": "bf16"} if "bf16" in cache_words else {}) | {"auto": wide}
        return str(reader.word(self.formats.kv_dtype.lstrip("-"), among=cache_words, default=wide))

    def read_knobs(self, reader: OptionReader) -> JsonObject:
        """Knobs by their option: numbers and words as they stand, switches as true or false."""
        names = {knob: option.lstrip("-") for knob, option in self.knobs.items()}
        numbers = {knob: name for knob, name in names.items() if knob not in self.switches}
        return take_knobs(reader, numbers, {knob: names[knob] for knob in self.switches})

    def server(self, scenario: Scenario, said: Iterable[Piece], **how: object) -> tuple[Ledger, Launch]:
        """The account of one server's pieces, and how its replicas are started."""
        replica = common.replica_of(scenario)
        every_piece = [*common.common_pieces(scenario, self.id, self.id), *said, common.pools_lost()]
        ledger = gather(serving_decisions_of(scenario), admit_options(every_piece, options(self.id)))
        settings: JsonObject = {"replicas": replica.count, "chips": replica.chips, "nodes": replica.nodes, **how}
        arguments = {name: value for name, value in ledger.options.items() if name.startswith("--")}
        return ledger, Launch(arguments=arguments, weights=common.model_path(scenario), **settings)


@cache
def engine_words(id: str, title: str, dtype: str = "--dtype", kv_dtype: str = "--kv-cache-dtype") -> EngineWords:
    """The words of an engine by its table."""
    rows, kv_dtypes = tables(id), words(id, "kv_dtypes")
    listed_knobs = {knob: f"--{knob.replace('_', '-')}" for knob in (*rows.get("numbers", ()), *rows["switches"])}
    return EngineWords(
        id=id,
        formats=FormatWords(title=title, dtype=dtype, dtypes=DTYPES, kv_dtype=kv_dtype, kv_dtypes=kv_dtypes),
        also_dtypes=rows.get("also_dtypes", {}),
        online={(compute, weights, scale or None): word for compute, weights, scale, word in rows.get("online", ())},
        from_16_bits=rows.get("from_16_bits", False),
        stored={word: tuple(means) for word, means in rows.get("stored", {}).items()},
        knobs=rows.get("knobs", listed_knobs),
        switches=names(id, "switches"),
        quiet=rows.get("quiet", {}),
    )


def fleet_pieces(replica: Replica, before_them: str, *, several: bool = True) -> Iterator[Piece]:
    """Replicas that are servers of their own; `before_them` is what deals requests to them."""
    yield Say("REPLICAS", replica.count, "plan.serving.replicas")
    if several:
        why = f"replicas are servers of their own, on ports from PORT on: put {before_them}"
        yield Lose("plan.serving.router", why, yours=True)
    yield Fixed("plan.serving.router", "round-robin", "one replica")
