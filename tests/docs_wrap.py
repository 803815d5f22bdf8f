#!/usr/bin/env python3
"""Wraps the text of README.md, CONTRIBUTING.md, CHANGELOG.md, kernels/README.md and docs/ at 120 characters. Tables, code blocks and headings stay as they are.

  docs_wrap.py            wrap every paragraph and list item that has a longer line
  docs_wrap.py --check    print the lines that are longer, and fail

Code spans are not broken. A paragraph whose lines are short enough is not touched. Standard library only.
"""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 120
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md")  # beside docs/
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)]) +")
SPECIAL = re.compile(r"\s*(?:\||#|<|```|~~~|!\[)")  # a table, a heading, a comment, a fence, a picture: never part of a paragraph
MARKER = re.compile(r" (?=(?:[-*+>|]|#+|\d+[.)])(?: |$))")  # at the start of a line it would begin a list, a quote or a heading
SPAN = re.compile(r"`[^`]*`")
GLUE = "\0"


def fill(block):
    """The lines of a paragraph or list item, wrapped."""
    first = ITEM.match(block[0])
    indent = len(first[0]) if first else len(block[0]) - len(block[0].lstrip())
    words = " ".join(line.strip() for line in block)
    marker = first[0].strip() + " " if first else ""
    words = SPAN.sub(lambda span: span[0].replace(" ", GLUE) if len(span[0]) <= WIDTH - indent else span[0], words[len(marker):])
    words = MARKER.sub(GLUE, words)
    lead = first[0] if first else " " * indent
    wrapped = textwrap.wrap(words, WIDTH, initial_indent=lead, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(GLUE, " ") for line in wrapped]


def begins_item(line, before):
    """Whether |line| begins a list item after the line |before| of the same block. Inside a paragraph "16. " is a sentence's end."""
    number = re.match(r"\s*(\d+)[.)] ", line)
    return bool(ITEM.match(line)) and (not number or number[1] == "1" or bool(ITEM.match(before)))


def blocks(lines):
    """Paragraphs and list items as (start, end), end exclusive."""
    fence, start = None, None
    for number, line in enumerate(lines + [""]):
        opens = re.match(r"\s*(```|~~~)", line)
        special = fence or opens or not line.strip() or SPECIAL.match(line)
        if start is not None and (special or begins_item(line, lines[start])):
            yield start, number
            start = None
        if opens:
            fence = None if fence == opens[1] else fence or opens[1]
        elif not special and start is None:
            start = number


def wrap(text):
    lines = text.split("\n")
    for start, end in reversed(list(blocks(lines))):
        if any(len(line) > WIDTH for line in lines[start:end]):
            lines[start:end] = fill(lines[start:end])
    return "\n".join(lines)


def long_lines(text):
    """Numbers of the lines that wrapping would shorten."""
    lines = text.split("\n")
    return [number + 1 for start, end in blocks(lines) if fill(lines[start:end]) != lines[start:end]
            for number in range(start, end) if len(lines[number]) > WIDTH]


def is_wrapped(name):
    return name in PAGES or name.startswith("docs/") and name.endswith(".md")


def check_itself():
    word = "w" * 20
    long = " ".join([word] * 10)
    assert wrap(long) == " ".join([word] * 5) + "\n" + " ".join([word] * 5) and wrap(wrap(long)) == wrap(long)
    assert wrap("- " + long).split("\n")[1].startswith("  w") and wrap("  2. " + long).split("\n")[1].startswith("     w")
    for kept in ("| " + long + " |", "```\n" + long + "\n```", "# " + long, "w" * 200, "short\n" + word):
        assert wrap(kept) == kept and not long_lines(kept), kept
    assert wrap("a of\n1316. " + long).startswith("a of 1316. w") and wrap("1. a\n2. " + long).split("\n")[1].startswith("2. w")
    assert long_lines("short\n\n" + long) == [3]
    assert "`a b c`" in wrap(" ".join([word] * 5)[:-1] + " x `a b c` " + word)
    assert all(not line.startswith("- ") for line in wrap("w" * 117 + " a - b").split("\n"))


def main():
    check_itself()
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    failed = False
    for path in [*(ROOT / name for name in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if sys.argv[1:]:
            for number in long_lines(text):
                failed = True
                print("%s:%d: a text line of more than %d characters" % (path.relative_to(ROOT), number, WIDTH))
        elif wrap(text) != text:
            path.write_text(wrap(text))
    return failed


if __name__ == "__main__":
    sys.exit(main())
