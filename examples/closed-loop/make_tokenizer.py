"""Write a tokenizer of words w4 ... w4095 beside model/config.json: the load generator needs one, the server too.

python make_tokenizer.py        (the Python of an environment with vLLM, which brings tokenizers along)
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

MODEL = Path(__file__).parent / "model"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def main() -> None:
    size = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), size))]
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(MODEL / "tokenizer.json"))
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **names}
    (MODEL / "tokenizer_config.json").write_text(json.dumps(told, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
