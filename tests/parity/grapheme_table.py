#!/usr/bin/env python3
"""Writes line/grapheme_table.h, or test strings: how the regex package, which has Unicode's properties, splits text into graphemes.

  grapheme_table.py > line/grapheme_table.h
  grapheme_table.py goldens > tests/goldens/graphemes.h

The rules are those of UAX #29 without GB9c (conjuncts of Indic scripts), as in the regex package. Needs regex.
"""
import random
import sys

import regex

CLASSES = ["Control", "Extend", "ZWJ", "SpacingMark", "Prepend", "Regional_Indicator", "L", "V", "T"]
CODES = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def rows():
    """(first, last, class), without the syllables of Hangul, whose class follows from the code."""
    found = []
    for name in CLASSES + ["Pictographic"]:
        pattern = regex.compile(r"\p{Extended_Pictographic}" if name == "Pictographic" else r"\p{GCB=%s}" % name)
        last = None
        for code in CODES:
            if not pattern.match(chr(code)):
                continue
            if last and last[1] == code - 1:
                last[1] = code
            else:
                last = [code, code, name.upper()]
                found.append(last)
    return sorted(found)


def write_table():
    table = rows()
    print("// Written by tests/parity/grapheme_table.py with regex %s." % regex.__version__)
    print("static const struct {\n  uint32_t first, last;\n  grapheme_class_t kind;\n} classes[%d] = {" % len(table))
    for i in range(0, len(table), 4):
        print("    " + " ".join("{0x%x, 0x%x, %s}," % tuple(row) for row in table[i:i + 4]))
    print("};")


def write_goldens():
    rng = random.Random(20)
    parts = ["a", " ", "\u0301", "\u00e9", "\u200d", "\U0001f469", "\U0001f467", "\U0001f3fd", "\ufe0f", "\u2764", "\U0001f1e9", "\U0001f1ea",
             "\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u0915", "\u093e", "\u094d", "\u0600", "\u0e33", "\u4e2d", "\n", "\u00ad",
             "\U000e0067", "\U000e007f", "\U0001f3f4", "1", "\u20e3"]
    texts = ["\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "e\u0301\u0323x", "1\ufe0f\u20e3"]
    texts += ["".join(rng.choice(parts) for _ in range(rng.randint(2, 9))) for _ in range(200)]
    print("// Written by tests/parity/grapheme_table.py goldens: texts, and the bytes of each of their graphemes.")
    print("static const struct {\n  const char *text;\n  unsigned char sizes[12];\n} graphemes[%d] = {" % len(texts))
    for text in texts:
        escaped = "".join("\\%03o" % b for b in text.encode())
        print('    {"%s", {%s}},' % (escaped, ", ".join(str(len(g.encode())) for g in regex.findall(r"\X", text))))
    print("};")


write_goldens() if sys.argv[1:] == ["goldens"] else write_table()
