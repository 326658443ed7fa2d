"""Tasks: their answers are right, their texts have tokens, and only the right answer is rewarded."""

from __future__ import annotations

import pytest

from ridgeline.runtime.rl.tasks import TASKS, VOCABULARY, TaskQuestion, longest_texts, make_question, text_of, tokens_of


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_question_has_tokens_and_a_good_answer(task: str, level: int) -> None:
    prompt, words = longest_texts(task, level)
    for number in range(200):
        question = make_question(task, level, (7, number))
        texts = (question.prompt, *question.example, question.result)
        assert all(text_of(tokens_of(text)) == text and max(tokens_of(text), default=0) < VOCABULARY for text in texts)
        assert len(question.prompt) <= prompt
        assert len(question.result) <= words
        assert question.reward(question.example) == 1.0
        assert question.reward((*question.example[:-1], question.answer + "0")) == 0.0


def test_answers_are_what_the_words_say() -> None:
    for number in range(200):
        sum_question = make_question("arithmetic", 2, (0, number))
        assert eval(sum_question.prompt[:-1]) == int(sum_question.answer)
        word = make_question("rewrite", 2, (0, number))
        assert word.answer == "".join(sorted(word.prompt[:-1]))
        product = make_question("calculator", 2, (0, number))
        assert eval(product.prompt[:-1]) == int(product.answer)
        assert product.call == f"[{product.prompt[:-1]}]"


def test_the_tool_answers_its_call_and_a_wrong_one_with_a_question_mark() -> None:
    question = TaskQuestion(prompt="7*6?", answer="42", call="[7*6]", result="42:")
    assert question.reply(["[7*6]"]) == "42:"
    assert question.reply(["[7*7]"]) == "?:"
    assert question.reply(["42"]) == ""
    assert question.reply(["[7*6]", "42"]) == ""
    assert question.reward(["42"]) == 0.0
    assert question.reward(["[7*6]", "42"]) == 1.0


def test_a_seed_and_a_number_are_a_question() -> None:
    first = [make_question("rewrite", 2, (1, number)) for number in range(20)]
    assert first == [make_question("rewrite", 2, (1, number)) for number in range(20)]
    assert first != [make_question("rewrite", 2, (2, number)) for number in range(20)]
