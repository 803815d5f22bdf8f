#!/usr/bin/env python3
"""Draws docs/images/speed.svg from the recorded results in bench/results/.

  bench/chart.py            write the chart
  bench/chart.py --check    exit 1 if the committed chart differs from what the results give

One panel per result file, in the order of PANELS, with a row for each result of both programs. Standard library only.
"""
import html
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST = "tg128"
PANELS = (("2026-11-18-h200.json", "One NVIDIA H200, one sequence, decode of 128 tokens (tok/s)"),
          ("2026-11-18-cpu.json", "Two CPU cores, one sequence, decode of 128 tokens (tok/s)"))
CHART = ROOT / "docs" / "images" / "speed.svg"

WIDTH, LABEL, BARS = 900, 330, 470  # pixels: the picture, the label column, the longest bar
BAR, ROW, HEAD = 13, 40, 44         # pixels: the height of a bar, of a result, of a panel's title
COLORS = {"mlxcel": "#2563eb", "llama.cpp": "#9ca3af"}


def text(x, y, words, size=13, fill="#111827", anchor="start", weight="normal"):
    return ('<text x="%d" y="%d" font-size="%d" fill="%s" text-anchor="%s" font-weight="%s">%s</text>'
            % (x, y, size, fill, anchor, weight, html.escape(words)))


def bar(y, value, largest, color):
    width = max(2, round(BARS * value / largest))
    return ['<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="%s"/>' % (LABEL, y, width, BAR, color),
            text(LABEL + width + 6, y + BAR - 2, format(value, ","), 12)]


def panel(record, title, y):
    results = [result for result in record["results"] if all(TEST in result.get(program, {}) for program in COLORS)]
    largest = max(result[program][TEST] for result in results for program in COLORS)
    parts = [text(20, y + 20, title, 15, weight="bold")]
    y += HEAD - 6
    for result in results:
        parts.append(text(LABEL - 10, y + 18, result["model"], 12, anchor="end"))
        for nth, program in enumerate(COLORS):
            parts += bar(y + nth * (BAR + 1), result[program][TEST], largest, COLORS[program])
        y += ROW
    parts.append(text(20, y + 8, "%s. Measured %s." % (record["machine"][0].upper() + record["machine"][1:], record["date"]), 11, "#6b7280"))
    return parts, y + 34


def draw():
    parts, y = [], 46
    for name, title in PANELS:
        drawn, y = panel(json.loads((ROOT / "bench" / "results" / name).read_text()), title, y)
        parts += drawn
    x = 20
    for program, color in COLORS.items():
        parts.append('<rect x="%d" y="18" width="12" height="12" rx="2" fill="%s"/>' % (x, color))
        parts.append(text(x + 18, 29, program))
        x += 36 + 8 * len(program)
    head = ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" '
            'font-family="Helvetica, Arial, sans-serif">\n<title>Decode speed of mlxcel and llama.cpp</title>\n'
            '<rect width="%d" height="%d" rx="8" fill="#ffffff" stroke="#e5e7eb"/>\n' % (WIDTH, y, WIDTH, y, WIDTH, y))
    return head + "\n".join(parts) + "\n</svg>\n"


def main():
    drawn = draw()
    if sys.argv[1:] == ["--check"]:
        if not CHART.exists() or CHART.read_text() != drawn:
            sys.exit("%s does not match bench/results/: run bench/chart.py" % CHART.relative_to(ROOT))
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        CHART.write_text(drawn)


if __name__ == "__main__":
    main()
