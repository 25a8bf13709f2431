"""A unit for a projector: its text cut into slides, and what its cells drew and printed; no answers and no code."""

import base64
import html
import re
from pathlib import Path

from markdown_it import MarkdownIt

from tools.site import pages
from tools.source import kind, text
from tools.units import Unit

ROOM = 15  # lines of text on a slide
MOST_ROWS = 8  # of a table in letters of the usual size
LINE = 92  # characters on a line of it
NEIGHBOUR = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")  # a link to another notebook, which slides do not lie beside
MARKDOWN = MarkdownIt("commonmark").enable("table")


def overview(units: list[Unit]) -> str:
    """The page that lists the slides."""
    rows = [f'<li><a href="slides/{unit.name}.html">{html.escape(_title(unit))}</a></li>' for unit in units]
    return (
        "# Slides\n\nFor whoever holds a workshop: each unit's questions and figures, from the same source as its "
        "notebook. Arrow keys turn the pages, Esc shows all, F fills the screen. Answers are not on them.\n\n"
        "<ul>" + "".join(rows) + "</ul>\n"
    )


def write(unit: Unit, folder: Path) -> None:
    """The unit's slides as Markdown, and their pictures, into `folder`."""
    slides, heading, number = [], _title(unit), 0
    for cell in pages.joined(unit):
        if cell["id"].startswith(f"{unit.name}-end-"):
            break  # the points of whoever works on it
        role = kind(cell)
        if role in ("text", "report"):
            for title, blocks in sections(NEIGHBOUR.sub(r"\1", text(cell))):
                heading = title or heading
                slides += [_slide(heading, page) for page in paged(blocks)] or [_slide(heading, [])]
        elif role == "measure":
            for output in pages.outputs(cell):
                number += 1
                slides.append(_slide(heading, [_shown(output, heading, folder, f"{unit.name}-{number}")]))
    (folder / f"{unit.name}.md").write_text("\n\n".join(slides) + "\n", encoding="utf-8")


def sections(markdown: str) -> list[tuple[str, list[str]]]:
    """(heading, blocks) of a text cell; the first heading is "" when text stands before any."""
    lines = markdown.splitlines()
    found: list[tuple[str, list[str]]] = []
    for token in MARKDOWN.parse(markdown):
        if token.level or not token.map:
            continue
        block = "\n".join(lines[token.map[0] : token.map[1]]).strip()
        if token.type == "heading_open":
            found.append((block.lstrip("# "), []))
        else:
            if not found:
                found.append(("", []))
            found[-1][1].append(block)
    return found


def paged(blocks: list[str]) -> list[list[str]]:
    """Blocks, in order, on as few slides as hold them; one that is too long for any slide has one to itself."""
    slides, used = [], 0
    for block in blocks:
        lines = height(block)
        if slides and used + lines <= ROOM:
            slides[-1].append(block)
            used += lines
        else:
            slides.append([block])
            used = lines
    return slides


def height(block: str) -> int:
    """About how many lines a block takes on a slide, the space below it included."""
    if block.startswith(("|", "```")):
        return len(block.splitlines()) + 1
    items = re.split(r"\n(?=(?:\d+\.|[-*]) )", block)
    return sum(-(-len(item) // LINE) for item in items) + 1


def _title(unit: Unit) -> str:
    return next(title for cell in pages.joined(unit) for title, _ in sections(text(cell)) if title)


def _slide(heading: str, blocks: list[str]) -> str:
    return "\n\n".join([f"# {heading}", *blocks])


def _shown(output: dict, heading: str, folder: Path, name: str) -> str:
    """One output as Markdown; a picture is written beside it."""
    if output["output_type"] == "stream":
        return f"<pre>{html.escape(output['text'].strip())}</pre>"
    ((form, content),) = output["data"].items()
    content = content if isinstance(content, str) else "".join(content)
    if form.startswith("image/"):
        suffix = "svg" if "svg" in form else "png"
        data = content.encode() if suffix == "svg" else base64.b64decode(content)
        (folder / f"{name}.{suffix}").write_bytes(data)
        return f"![{pages.alt_text(output, heading)}]({name}.{suffix})"
    if form == "text/plain":
        return f"<pre>{html.escape(content.strip())}</pre>"
    dense = ' class="dense"' if content.count("<tr") > MOST_ROWS else ""
    return f"<div{dense}>" + re.sub(r"\n\s*\n", "\n", content) + "</div>"
