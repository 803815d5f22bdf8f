#!/usr/bin/env python3
"""Draws docs/images/speed.svg from the recorded results in bench/results/.

  bench/chart.py            write the chart
  bench/chart.py --check    exit 1 if the committed chart differs from what the results give

One panel per result file, in the order of PANELS. Each result has a bar for mlxcel, colored by path (kernel or
generic), and a bar for llama.cpp. A peer of null means that the peer was not measured. Standard library only.
"""
import html
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PANELS = ("2026-11-17-h200.json", "2026-11-16-cpu.json")
CHART = ROOT / "docs" / "images" / "speed.svg"

WIDTH, LABEL, BARS = 900, 330, 470  # pixels: the picture, the label column, the longest bar
BAR, ROW, HEAD = 13, 40, 44         # pixels: the height of a bar, of a result, of a panel's title
COLORS = {"kernel": "#2563eb", "generic": "#f59e0b", "peer": "#9ca3af"}
LEGEND = (("kernel", "mlxcel, kernel path"), ("generic", "mlxcel, generic path"), ("peer", "llama.cpp"))


def text(x, y, words, size=13, fill="#111827", anchor="start", weight="normal"):
    return ('<text x="%d" y="%d" font-size="%d" fill="%s" text-anchor="%s" font-weight="%s">%s</text>'
            % (x, y, size, fill, anchor, weight, html.escape(words)))


def bar(y, value, largest, color):
    width = max(2, round(BARS * value / largest))
    return ['<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="%s"/>' % (LABEL, y, width, BAR, color),
            text(LABEL + width + 6, y + BAR - 2, format(value, ","), 12)]


def panel(record, y):
    results = record["results"]
    largest = max(value for result in results for value in (result["decode"], result["peer_decode"] or 0))
    parts = [text(20, y + 20, record["title"], 15, weight="bold")]
    y += HEAD - 6
    for result in results:
        parts.append(text(LABEL - 10, y + 18, result["label"], 12, anchor="end"))
        parts += bar(y, result["decode"], largest, COLORS[result["path"]])
        if result["peer_decode"] is None:
            parts.append(text(LABEL, y + 2 * BAR, "llama.cpp: not measured", 11, "#6b7280"))
        else:
            parts += bar(y + BAR + 1, result["peer_decode"], largest, COLORS["peer"])
        y += ROW
    parts.append(text(20, y + 8, "%s. Measured %s." % (record["machine"], record["date"]), 11, "#6b7280"))
    return parts, y + 34


def draw():
    parts, y = [], 46
    for name in PANELS:
        drawn, y = panel(json.loads((ROOT / "bench" / "results" / name).read_text()), y)
        parts += drawn
    x = 20
    for key, words in LEGEND:
        parts.append('<rect x="%d" y="18" width="12" height="12" rx="2" fill="%s"/>' % (x, COLORS[key]))
        parts.append(text(x + 18, 29, words))
        x += 36 + 8 * len(words)
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
