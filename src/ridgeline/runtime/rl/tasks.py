"""Tasks that are made here and check themselves: a question, what a tool answers, and the reward of an answer.

    arithmetic   `7+5=`       the sum or difference, digits of a number: `level`
    rewrite      `dcab>`      the letters in the order of the alphabet, 2 + `level` of them
    calculator   `7*6?`       a turn that asks a tool, `[7*6]`, to which it says `42:`, and a turn that repeats that

Every turn of an answer ends with the stop token. A text's tokens are its characters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal
from zlib import crc32

from ridgeline.core.records import dataclass
from ridgeline.plan.rl_learning import TaskName

STOP = 0
ALPHABET = "\n0123456789+-*=?:>[]abcdefghijklmnopqrstuvwxyz ."  # the first is the stop token
VOCABULARY = len(ALPHABET)
LETTERS, FEWEST = "abcdefgh", 2  # of a word to rewrite, and how many at least
HELD_OUT = 8  # of so many questions one is held out, by its text
QuestionSlice = Literal["all", "trained", "held out"]


def tokens_of(text: str) -> tuple[int, ...]:
    """The tokens of a text.

    >>> tokens_of("1+2="), text_of((2, 11, 3, 0, 40))
    ((2, 11, 3, 14), '1+2\\nu')
    """
    return tuple(ALPHABET.index(character) for character in text)


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens; one beyond the alphabet, in a model with more tokens, is a full stop."""
    return "".join(ALPHABET[token] if token < VOCABULARY else "." for token in tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuestion:
    """A prompt, the answer that earns a reward, and the call that a tool answers (empty: there is no tool).

    result   what the tool says to that call
    """

    prompt: str
    answer: str
    call: str = ""
    result: str = ""

    @property
    def example(self) -> tuple[str, ...]:
        """What a good answer looks like, by turn; behind each but the last the tool speaks."""
        return (self.call, self.answer) if self.call else (self.answer,)

    def reply(self, turns: Sequence[str]) -> str:
        """What the tool says behind these turns of the answer; empty: the answer is complete.

        >>> TaskQuestion(prompt="7*6?", answer="42", call="[7*6]", result="42:").reply(["[7*6]"])
        '42:'
        """
        if not self.call or len(turns) > 1:
            return ""
        return self.result if turns[0] == self.call else "?:" if turns[0][:1] == "[" else ""

    def spoil(self, draw: random.Random) -> TaskQuestion:
        """The same question with a wrong answer that looks like the right one: two characters change places, or one
        becomes another.

        >>> TaskQuestion(prompt="9+3=", answer="12").spoil(random.Random(0)).answer
        '21'
        """
        letters = list(self.answer)
        first = draw.randrange(len(letters))
        other_places = [place for place, letter in enumerate(letters) if letter != letters[first]]
        if other_places:
            second = draw.choice(other_places)
            letters[first], letters[second] = letters[second], letters[first]
        else:
            like = LETTERS if letters[first] in LETTERS else "0123456789"
            letters[first] = draw.choice([letter for letter in like if letter != letters[first]])
        return replace(self, answer="".join(letters))

    def reward(self, turns: Sequence[str]) -> float:
        """1 for the answer in the last turn, with the call before it where there is a tool; otherwise 0."""
        return float(list(turns) == list(self.example))


def _arithmetic(draw: random.Random, level: int) -> TaskQuestion:
    most = 10**level - 1
    first, second = draw.randint(0, most), draw.randint(0, most)
    if draw.random() < 0.5:
        return TaskQuestion(prompt=f"{first}+{second}=", answer=str(first + second))
    first, second = max(first, second), min(first, second)
    return TaskQuestion(prompt=f"{first}-{second}=", answer=str(first - second))


def _rewrite(draw: random.Random, level: int) -> TaskQuestion:
    letters = draw.sample(LETTERS, min(len(LETTERS), FEWEST + level))
    return TaskQuestion(prompt="".join(letters) + ">", answer="".join(sorted(letters)))


def _calculator(draw: random.Random, level: int) -> TaskQuestion:
    least, most = (10 ** (level - 1)) - (level == 1), 10**level - 1
    first, second = draw.randint(least, most), draw.randint(least, most)
    product = str(first * second)
    return TaskQuestion(prompt=f"{first}*{second}?", answer=product, call=f"[{first}*{second}]", result=f"{product}:")


TASKS: dict[TaskName, Callable[[random.Random, int], TaskQuestion]] = {
    "arithmetic": _arithmetic,
    "rewrite": _rewrite,
    "calculator": _calculator,
}


def longest_texts(task: TaskName, level: int) -> tuple[int, int]:
    """Characters of the longest prompt, and of the longest words of a tool.

    >>> longest_texts("calculator", 2)
    (6, 5)
    """
    if task == "rewrite":
        return min(len(LETTERS), FEWEST + level) + 1, 0
    return 2 * level + 2, 2 * level + 1 if task == "calculator" else 0


def make_question(
    task: TaskName, level: int, place: tuple[int, int], part: QuestionSlice = "all"
) -> TaskQuestion:  # fmt: skip
    """The question at a place: the seed of the run and the number of the prompt; the same place, the same question.

    part   where a slice is held out: a question that is trained on, or one that never is

    >>> make_question("rewrite", 1, (3, 5)) == make_question("rewrite", 1, (3, 5))
    True
    >>> make_question("rewrite", 1, (3, 5), "held out").prompt == make_question("rewrite", 1, (3, 5), "trained").prompt
    False
    """
    for attempt in count():
        attempt_text = f":{attempt}" if attempt else ""
        question = TASKS[task](random.Random(f"{task}:{level}:{place[0]}:{place[1]}{attempt_text}"), level)
        is_held_out = crc32(question.prompt.encode()) % HELD_OUT == 0
        if part == "all" or is_held_out == (part == "held out"):
            break
    return question
