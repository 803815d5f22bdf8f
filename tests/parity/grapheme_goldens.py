#!/usr/bin/env python3
"""Writes tests/goldens/graphemes.h: how the regex package, which has Unicode's properties, splits texts into graphemes.

  grapheme_goldens.py > tests/goldens/graphemes.h

The package lacks rule GB9c (conjuncts of Indic scripts), so no text has one. Needs regex.
"""
import random

import regex


def write_goldens():
    rng = random.Random(20)
    parts = ["a", " ", "\u0301", "\u00e9", "\u200d", "\U0001f469", "\U0001f467", "\U0001f3fd", "\ufe0f", "\u2764", "\U0001f1e9", "\U0001f1ea",
             "\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u0915", "\u093e", "\u094d", "\u0600", "\u0e33", "\u4e2d", "\n", "\u00ad",
             "\U000e0067", "\U000e007f", "\U0001f3f4", "1", "\u20e3"]
    texts = ["\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "e\u0301\u0323x", "1\ufe0f\u20e3"]
    texts += ["".join(rng.choice(parts) for _ in range(rng.randint(2, 9))) for _ in range(200)]
    print("// Written by tests/parity/grapheme_goldens.py: texts, and the bytes of each of their graphemes.")
    print("static const struct {\n  const char *text;\n  unsigned char sizes[12];\n} graphemes[%d] = {" % len(texts))
    for text in texts:
        escaped = "".join("\\%03o" % b for b in text.encode())
        print('    {"%s", {%s}},' % (escaped, ", ".join(str(len(g.encode())) for g in regex.findall(r"\X", text))))
    print("};")


write_goldens()
