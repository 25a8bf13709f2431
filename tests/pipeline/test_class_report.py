"""The page about a class, and which answers are alike after renaming."""

import json

import pytest

from tools.alike import pairs, tokens
from tools.class_report import page
from tools.grading import Exercise, Result
from tools.predictions import of_class


def exercise(name, points, message="", **more):
    return Exercise(name, points, 2.0, message, **more)


def test_the_page_counts_slips_and_names_what_is_hard():
    forgot = "✗ 02.1  your answer is {} bytes. You forgot V."
    parts = "✗ 02.10  1 of 5 right, 0.4 of 2 points\n✗ B is 5. You forgot V.\n✗ C is 7. That is bits."
    parts += "\n✗ 2 of them (D; E, 8): You forgot both."
    results = [
        Result("anna", "02-b", [exercise("02.1", 0.0, forgot.format("23,040")), exercise("02.10", 2.0)]),
        Result("ben", "02-b", [exercise("02.1", 0.0, forgot.format("11")), exercise("02.10", 1.0, parts)]),
        Result("carl", "02-b", [exercise("02.1", 2.0), exercise("02.10", 0.0, "late", timed_out=True)]),
        Result("<dora>", "02-b", [exercise("02.1", 0.0, answered=False), exercise("02.10", 2.0)]),
        Result("emil", "02-b", problem="its code <killed> the kernel"),
    ]
    text = page(results, [("fred", "02-b"), ("fred", "03-c")], [])
    assert "2 × your answer is … bytes. You forgot V." in text
    assert "1 × B is …. You forgot V." in text and "1 × C is …. That is bits." in text and "of 5 right" not in text
    assert "1 × several: You forgot both." in text
    assert '<td class="hard">02.1<' in text and "<td>02.10<" in text
    assert "1 right, 0 in part, 2 wrong, 1 blank" in text and "2 right, 1 in part, 1 wrong, 0 blank" in text
    assert "4 graded, mean 1.8 of 4, 1 need a human, 1 not submitted" in text and "03-c" in text
    assert "1 × stopped because it took too long" in text
    assert "its code &lt;killed&gt; the kernel" in text and "<dora>" not in text
    assert text.index("02.1<") < text.index("02.10<")


ONE = '''
def grouped(q, k, v):
    """One query per sequence."""
    batch, kv_heads, _, head_dim = k.shape
    rows = q.view(batch, kv_heads, -1, head_dim)  # the heads of a group
    scores = rows @ k.transpose(2, 3) * head_dim**-0.5
    return (scores.softmax(dim=-1) @ v).view(q.shape)
'''
RENAMED = """
def grouped(query, key, value):
    b, h, _, d = key.shape
    x = query.view(b, h, -1, d)
    # what a nice product
    weights = x @ key.transpose(2, 3) * d ** -0.5
    return (weights.softmax(dim=-1) @ value).view(query.shape)
"""
OTHER = """
def grouped(q, k, v):
    group = q.shape[1] // k.shape[1]
    out = []
    for head in range(q.shape[1]):
        weights = (q[:, head, None] * k[:, head // group]).sum(-1) / k.shape[-1] ** 0.5
        out.append((weights.softmax(-1)[..., None] * v[:, head // group]).sum(1))
    return torch.stack(out, 1)
"""
STUB = 'def grouped(q, k, v):\n    """One query per sequence."""\n    # YOUR CODE HERE\n'


def test_renaming_hides_nothing_and_another_way_is_another():
    answers = {("anna", "03.4"): ONE, ("ben", "03.4"): RENAMED, ("carl", "03.4"): OTHER, ("dora", "03.4"): STUB}
    [pair] = pairs(answers, {"03.4": STUB})
    assert (pair.one, pair.other, pair.exercise, pair.share) == ("anna", "ben", "03.4", 1.0)


def test_short_answers_and_plain_values_are_not_compared():
    short = {("anna", "02.4"): "def f(x):\n    return 2 * x", ("ben", "02.4"): "def f(y):\n    return 2 * y"}
    assert pairs(short, {"02.4": "def f(x):\n    # YOUR CODE HERE"}) == []
    values = "x = {" + ", ".join(f"'{i}': {i}" for i in range(40)) + "}"
    assert pairs({("anna", "02.1"): values, ("ben", "02.1"): values}, {"02.1": "x = None"}) == []


def test_what_is_no_python_has_tokens_as_far_as_it_goes():
    assert tokens("x = (1,") == ["n", "=", "(", "0", ","] and tokens("'''never closed") == []


def test_predictions_of_a_class_come_from_the_logs_that_were_handed_in(tmp_path):
    def log(name, predicted, *more):
        rows = [{"kind": "predict", "key": "02.<tpot>", "value": predicted, "unit": "ms"}]
        rows += [{"kind": "measured", "key": "02.<tpot>", "value": 20}, *more]
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "broken\n")
        return [path]

    hindsight = {"kind": "predict", "key": "02.<tpot>", "value": 20, "unit": "ms"}
    (tmp_path / "link").symlink_to(log("c", 10)[0])
    logs = {"anna": log("a", 10), "ben": log("b", 18, hindsight), "carl": [tmp_path / "link"], "dora": []}
    [quantity] = of_class(logs)
    assert quantity.ratios == pytest.approx([2, 20 / 18]) and quantity.near == 1
    text = page([], [], [], [quantity])
    assert "02.&lt;tpot&gt;<td>2<td>1.6<td>1<td>" in text and text.count("<circle") == 2
