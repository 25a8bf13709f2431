"""What another class is asked in unit 05: see tools/givens.py."""


def givens(pick):
    system, question = pick(40, 36, 42, 52, 57), pick(30, 34, 37, 47)
    answer = pick(50, 41, 54, 60)
    # No sum of theirs is whole blocks of 16: whether the last token of a history has
    # its key, which the unit tells later, would then decide the answer.
    prompt, history = system + question, system + question + answer
    sessions = pick(50, 40, 60, 80, 100)
    shared, own = pick(2_000, 1_500, 2_500, 3_000), pick(512, 600, 800, 400)
    # Prices of helpers/data/prices.json, anthropic-2026-early.
    seller, *prices = pick(
        ("Sonnet 4.6", 3.0, 3.75, 0.3, 15.0), ("Opus 4.6", 5.0, 6.25, 0.5, 25.0)
    )
    paid, written, hit, out = prices
    head = pick(10_000, 8_000, 12_000, 15_000, 20_000)
    asked, said = pick((200, 300), (250, 350), (150, 450), (300, 500), (100, 300))
    lengths = [head + asked + turn * (asked + said) for turn in range(10)]
    output = 10 * said * out / 1e6
    return {
        "system": system,
        "question": question,
        "answer": answer,
        "prompt": prompt,
        "history": history,
        "less": history - 1,
        "blocks": "seven" if history == 120 else history // 16,
        "sessions": sessions,
        "copies": sessions - 1,
        "shared": shared,
        "own": own,
        "held": shared + own,
        "seller": seller,
        "prices": tuple(prices),
        "paid": paid,
        "written": written,
        "hit": hit,
        "out": out,
        "head": head,
        "asked": asked,
        "said": said,
        "step": asked + said,
        "first": lengths[0],
        "second": lengths[1],
        "lengths": lengths,
        "output": output,
        "plain": sum(lengths) * paid / 1e6 + output,
        "cached": (sum(lengths[:-1]) * hit + lengths[-1] * written) / 1e6 + output,
        "stamped": sum(lengths) * written / 1e6 + output,
        "more": round(
            100 * sum(lengths) * (written - paid) / (sum(lengths) * paid + output * 1e6)
        ),
    }


TEXT = [
    "a system prompt of {system} tokens and a question of {question}, so a prompt of "
    "{prompt}. Its answer has {answer} tokens",
    "the same {system}, then a question",
    "the whole history of {history}, then 25 new",
    "then the {prompt} again",
    '"same system prompt, other question": {system} // 16 * 16',
    '"next turn": {history} // 16 * 16',
    '"next turn, prompts kept only": {prompt} // 16 * 16',
    "(In 05.1, {less} and {history} tokens fill the same {blocks} blocks.)",
    "{sessions} sessions are open; each holds the same system prompt of {shared:,} "
    "tokens and {own} tokens of its own",
    "each of the {sessions} sessions holds all of its {held:,}",
    "and which {sessions} times",
    "takes away {copies} of the {sessions} copies",
    "{sessions} * ({shared:_} + {own}) * 131_072",
    "({shared:_} + {sessions} * {own}) * 131_072",
    "A price list of early 2026 ({seller}), dollars per million tokens: input {paid:.2f};"
    " input that is **written** to the cache {written:.2f}; input that is **found** "
    "there {hit:.2f}; output {out:.2f}.",
    "A session: 10 turns, {head:,} tokens of system prompt, each turn a question of "
    "{asked} and an answer of {said} tokens. Turn 1 sends {first:,} tokens, turn 2 "
    "sends {second:,}, and so on",
    "prompt lengths down: {first:,}, {second:,}, …",
    "so are 10 · {said} tokens of output",
    "[{first:_} + turn * {step} for turn in range(10)]",
    "output = 10 * {said} * {out:.2f} / 1e6",
    '"no caching": sum(prompts) * {paid:.2f} / 1e6',
    "sum(prompts[:-1]) * {hit:.2f} + prompts[-1] * {written:.2f}",
    '"cached, time in front": sum(prompts) * {written:.2f} / 1e6',
    "prompt_tokens = [{first:_} + {step} * t for t in range(10)]",
    "written = [prompt_tokens[0], *[{step}] * 9]",
    '"no caching": [{paid:.2f} * n for',
    "{written:.2f} * w + {hit:.2f} * (n - w)",
    '"cached, time in front": [{written:.2f} * n for',
    "{out:.2f} * {said} * t",
    "it costs {more} % more than none",
]

HIDDEN = {
    "05.4": """\
dollars = {{
    "no caching": {plain:.6f},
    "cached": {cached:.6f},
    "cached, time in front": {stamped:.6f},
}}
for name, right in dollars.items():
    off = abs(float(money[name]) - right)
    cents = abs(float(money[name]) - round(right, 2))
    assert off < 0.006 * right or cents < 1e-6, f"{{name}} is off"
for name, right in {{"reuses, write at 1.25": 1, "reuses, write at 2": 2}}.items():
    assert abs(float(money[name]) - right) < 1e-6, "break-even is off\""""
}
