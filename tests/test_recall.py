"""The written chat of unit 07, with a parrot in place of the model."""

import pytest

from helpers.models.pretrained import load as load_model
from helpers.quality import recall


@pytest.fixture(scope="module")
def tokenizer():
    return load_model()[1]


class Parrot:
    """Says the same to every question, and remembers what it was asked."""

    def __init__(self, tokenizer, says):
        self.tokenizer, self.says, self.heard = tokenizer, says, []

    def ask(self, question, count, stop=None):
        self.heard.append(self.tokenizer.decode(question, skip_special_tokens=False))
        return self.tokenizer.encode(self.says).ids[:count]


def test_a_fact_is_known_when_its_value_is_in_the_answer(tokenizer):
    parrot = Parrot(tokenizer, ' "Bruno".')
    assert recall.known(parrot, tokenizer, 9) == {fact.name: fact.name == "dog" for fact in recall.FACTS}
    assert all(said.endswith(fact.lead) for said, fact in zip(parrot.heard, recall.FACTS, strict=True))


def test_facts_that_were_not_said_yet_are_not_asked_for(tokenizer):
    assert list(recall.known(Parrot(tokenizer, "4831"), tokenizer, 3)) == ["code", "day", "ticket"]


def test_the_value_fits_the_five_tokens_of_an_answer(tokenizer):
    for fact in recall.FACTS:
        assert fact.value in fact.says
        assert len(tokenizer.encode(f' "{fact.value}').ids) <= 5


def test_the_models_summary_is_asked_as_a_turn(tokenizer):
    parrot = Parrot(tokenizer, " your dog is called Bruno.")
    assert recall.by_model(parrot, tokenizer) == "You said that your dog is called Bruno."
    assert parrot.heard[0].startswith("<|im_start|>user\n") and parrot.heard[0].endswith("You said that")


def test_sentences_of_a_message_without_its_answer_and_markers(tokenizer):
    turn = tokenizer.encode("<|im_start|>user\nOne. Two is\nhere: 3.<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n")
    assert recall.sentences([turn.ids], tokenizer) == [["One.", "Two is", "here:", "3."]]


def test_a_summary_gives_its_sentences_back(tokenizer):
    said = ["My dog is called Bruno.", "no full stop", "The ticket number is 8340."]
    assert recall.sentences([recall.as_summary(said, tokenizer)], tokenizer) == [said]
