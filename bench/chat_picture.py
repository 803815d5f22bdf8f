#!/usr/bin/env python3
"""Draws docs/images/chat.svg, a terminal window, from the recorded session docs/images/chat.txt, and takes pictures of the chat page.

  tests/record_chat.sh build/bin/mlxcel MODEL.gguf > docs/images/chat.txt    record a session
  bench/chat_picture.py            write the picture
  bench/chat_picture.py --check    exit 1 if the committed picture differs from what the session gives
  bench/chat_picture.py --page     write docs/images/page*.png: the real page in chromium, with the server of build/bin/mlxcel

Lines that start with ">>>" are what the user typed. Text before the first of them, and the lines after a command
such as /stats, come from mlxcel itself and are drawn gray. Everything else is the model's answer.
Standard library only.
"""
import html
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SESSION = ROOT / "docs" / "images" / "chat.txt"
PICTURE = ROOT / "docs" / "images" / "chat.svg"
COMMAND = "$ mlxcel run -m SmolLM2-135M-Instruct.Q4_1.gguf --temp 0 -c 1024"
CELL, LINE, LEFT, TOP = 8.43, 20, 20, 62  # pixels: a character's width, a line's height, the first line's place
COLORS = {"user": "#86efac", "status": "#94a3b8", "model": "#f1f5f9"}


def classify(lines):
    kind = "status"
    for line in lines:
        if line.startswith((">>>", "$")):
            yield line, "user"
            kind = "status" if line.startswith((">>> /", "$")) else "model"
        else:
            yield line, kind


def draw():
    lines = [COMMAND] + SESSION.read_text().rstrip("\n").split("\n")
    width = round(2 * LEFT + CELL * max(len(line) for line in lines))
    height = TOP + LINE * len(lines)
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">' % (width, height, width, height),
             "<title>A chat with mlxcel in a terminal</title>",
             '<rect width="%d" height="%d" rx="10" fill="#0f172a"/>' % (width, height)]
    for index, color in enumerate(("#f87171", "#fbbf24", "#4ade80")):
        parts.append('<circle cx="%d" cy="22" r="6" fill="%s"/>' % (26 + 20 * index, color))
    parts.append('<g font-family="Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14" xml:space="preserve">')
    for index, (line, kind) in enumerate(classify(lines)):
        if line:
            parts.append('<text x="%d" y="%d" textLength="%d" lengthAdjust="spacingAndGlyphs" fill="%s">%s</text>'
                         % (LEFT, TOP + LINE * index, round(CELL * len(line)), COLORS[kind], html.escape(line)))
    return "\n".join(parts) + "\n</g>\n</svg>\n"


def take_pictures():
    deps = ROOT / "build" / "deps"
    path = os.pathsep.join([os.environ["PATH"], str(deps / "debian-browser" / "bin")])
    node, chromium = shutil.which("node"), shutil.which("chromium", path=path)
    model = ROOT / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    playwright = deps / "playwright" / "playwright-core"
    for needed in (node or "node", chromium or "chromium", playwright, model):
        if not pathlib.Path(needed).exists():
            sys.exit("there is no %s: ./build.sh test --all fetches it" % needed)
    subprocess.run([node, ROOT / "tests" / "page" / "pictures.mjs", playwright, chromium, ROOT / "build" / "bin" / "mlxcel", model, PICTURE.parent], check=True)


def main():
    if sys.argv[1:] == ["--page"]:
        take_pictures()
        return
    drawn = draw()
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != drawn:
            sys.exit("%s does not match %s: run bench/chat_picture.py" % (PICTURE.relative_to(ROOT), SESSION.relative_to(ROOT)))
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
