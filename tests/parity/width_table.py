#!/usr/bin/env python3
"""Writes line/width_table.h: the characters that take no terminal column, and those that take two.

  width_table.py > line/width_table.h

From Python's unicodedata. Marks, format characters (except the soft hyphen) and the later parts of Hangul syllables take no column. East
Asian wide and full-width characters take two, as in wcwidth of common terminals.
"""
import unicodedata


def width(code):
    if 0xd800 <= code < 0xe000:
        return 1
    char = chr(code)
    if code != 0xad and (unicodedata.category(char) in ("Mn", "Me", "Cf") or 0x1160 <= code <= 0x11ff):
        return 0
    if unicodedata.category(char) == "Cn" and not 0x20000 <= code <= 0x3fffd:
        return 1  # unassigned; older Pythons call it F. These planes will hold only ideographs
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def ranges(wanted):
    start = None
    for code in range(0x80, 0x110001):
        inside = code < 0x110000 and width(code) == wanted
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            yield start, code - 1
            start = None


print("// Written by tests/parity/width_table.py from Unicode %s." % unicodedata.unidata_version)
for name, wanted in (("zero_columns", 0), ("two_columns", 2)):
    rows = list(ranges(wanted))
    print("static const uint32_t %s[%d][2] = {" % (name, len(rows)))
    for i in range(0, len(rows), 6):
        print("    " + " ".join("{0x%x, 0x%x}," % row for row in rows[i:i + 6]))
    print("};")
