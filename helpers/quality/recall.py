"""A written chat with facts in its turns, and which of them a session still knows at its end."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

from helpers.models import text
from helpers.serving.chat import Chat
from helpers.serving.sessions import Session

END, NOTICE, SAID = "<|im_end|>\n", "Please note: ", "The user said: "


@dataclass(frozen=True)
class Fact:
    """What a user says in turn `turn` (0 the first), and how it is asked: the answer begins after `lead`.

    `last` puts it at the end of the message instead of the beginning.
    """

    name: str
    turn: int
    says: str
    asks: str
    lead: str
    value: str
    last: bool = False


FACTS = (
    Fact(
        "code",
        0,
        "The secret access code is 4831.",
        "What is the secret access code?",
        "The secret access code is ",
        "4831",
    ),
    Fact("day", 1, "The release is on Thursday.", "On which day is the release?", "The release is on", "Thursday"),
    Fact("ticket", 2, "The ticket number is 8340.", "What is the ticket number?", "The ticket number is ", "8340"),
    Fact("dog", 3, "My dog is called Bruno.", "What is the name of my dog?", "My dog is called", "Bruno", last=True),
    Fact("sister", 4, "My sister lives in Lisbon.", "Where does my sister live?", "My sister lives in", "Lisbon"),
    Fact("budget", 7, "My budget is 2795 dollars.", "What is my budget?", "My budget is ", "2795"),
)


def session(tokenizer: tokenizers.Tokenizer) -> Session:
    """A session before its first turn: some 200 tokens of system prompt and tools."""
    system = "You explain the Python language to its users, briefly and with examples. " * 4
    tools = [
        {"name": name, "description": f"{name} of the language", "arguments": {"query": "string", "limit": "integer"}}
        for name in ("keywords", "operators", "exceptions", "types")
    ]
    parts = (f"<|im_start|>system\n{part}{END}" for part in (system, "Tools: " + json.dumps(tools)))
    return Session(*(tokenizer.encode(part).ids for part in parts))


def turns(count: int, tokenizer: tokenizers.Tokenizer, passage: int = 170, answer: int = 6):
    """`count` turns as pairs (question, answer) of token ids: a fact where there is one, then `passage` tokens of
    documentation; answers are documentation as well, written beforehand, so that every policy gets the same session.
    """
    document = text.tokens(count * (passage + answer), tokenizer).tolist()
    facts, pairs = {fact.turn: fact for fact in FACTS}, []
    for turn in range(count):
        read = NOTICE + tokenizer.decode(document[turn * passage : (turn + 1) * passage])
        if fact := facts.get(turn):
            read = f"{read}. {fact.says}" if fact.last else f"{fact.says}\n{read}"
        start = count * passage + turn * answer
        pairs.append((tokenizer.encode(_user(read)).ids, document[start : start + answer]))
    return pairs


def end(tokenizer: tokenizers.Tokenizer) -> list[int]:
    """The tokens that close an answer."""
    return tokenizer.encode(END).ids


def known(chat: Chat, tokenizer: tokenizers.Tokenizer, turns_said: int) -> dict[str, bool]:
    """Which facts of the first `turns_said` turns the model still answers, by name: asked at the end, greedily."""
    return {fact.name: fact.value in ask(chat, tokenizer, fact) for fact in FACTS if fact.turn < turns_said}


def ask(chat: Chat, tokenizer: tokenizers.Tokenizer, fact: Fact) -> str:
    """The model's answer to the question for `fact`; nothing of it stays in the session."""
    return tokenizer.decode(chat.ask(tokenizer.encode(question(fact)).ids, 5)).strip()


def question(fact: Fact) -> str:
    """The question for `fact`, up to where its answer begins."""
    return f"\nQuestion: {fact.asks}\nAnswer: {fact.lead}"


def sentences(leaving: list[list[int]], tokenizer: tokenizers.Tokenizer) -> list[list[str]]:
    """The sentences that the user said, message by message; an earlier summary counts as a message."""
    found = []
    for part in leaving:
        said = tokenizer.decode(part, skip_special_tokens=False).split("<|im_end|>")[0].partition("\n")[2]
        pieces = re.split(r"(?<=[.:]) |\n+", said.removeprefix(SAID))
        found.append([" ".join(piece.split()) for piece in pieces if piece.strip()])
    return found


def as_summary(said: Iterable[str], tokenizer: tokenizers.Tokenizer) -> list[int]:
    """Sentences, a line each, as the part of a prompt that stands for the turns that left."""
    lines = "\n".join(said)
    return tokenizer.encode(f"<|im_start|>system\n{SAID}{lines}{END}").ids


def by_model(chat: Chat, tokenizer: tokenizers.Tokenizer, count: int = 32) -> str:
    """The model's own summary: asked at the end of the session as it stands, so that its prefix is found."""
    request = _user("Write down what I told you about myself, with all names and numbers.") + "You said that"
    stop = tokenizer.token_to_id("<|im_end|>")
    return "You said that" + tokenizer.decode(chat.ask(tokenizer.encode(request).ids, count, stop))


def _user(said: str) -> str:
    return f"<|im_start|>user\n{said}{END}<|im_start|>assistant\n"
