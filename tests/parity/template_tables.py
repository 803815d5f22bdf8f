#!/usr/bin/env python3
"""Writes template/unicode_tables.h: how Python's str treats single characters, asked of Python itself.

  template_tables.py > template/unicode_tables.h
"""
import unicodedata

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(belongs):
    """[first, last] of every range of characters that belong; surrogates are ignored."""
    found = []
    for code in CODES:
        if not belongs(chr(code)):
            continue
        if found and (found[-1][1] == code - 1 or (found[-1][1] == 0xD7FF and code == 0xE000)):
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def print_ranges(name, comment, belongs):
    print(f"// {comment}\nstatic const uint32_t {name}[][2] = {{")
    cells = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(belongs)]
    for i in range(0, len(cells), 6):
        print("    " + " ".join(cells[i:i + 6]))
    print("};\n")


def print_case(name, change):
    """Ranges with a constant distance to the other case (step 1 or 2), then the characters that map to several."""
    stretches, special = [], []
    for code in CODES:
        text = change(chr(code))
        if text == chr(code):
            continue
        if len(text) > 1:
            special.append((code, text))
            continue
        delta = ord(text) - code
        last = stretches[-1] if stretches else None
        if last and last[3] == delta and (last[2] == 0 or code - last[1] == last[2]) and code - last[1] in (1, 2):
            last[2] = code - last[1]
            last[1] = code
        else:
            stretches.append([code, code, 0, delta])
    print(f"static const case_range_t {name}_ranges[] = {{")
    cells = [f"{{0x{a:x}, 0x{b:x}, {step or 1}, {delta}}}," for a, b, step, delta in stretches]
    for i in range(0, len(cells), 5):
        print("    " + " ".join(cells[i:i + 5]))
    print("};\n")
    print(f"static const case_special_t {name}_special[] = {{")
    cells = ['{0x%x, "%s"},' % (code, "".join(f"\\x{b:02x}" for b in text.encode())) for code, text in special] or ["{0, NULL},"]
    for i in range(0, len(cells), 4):
        print("    " + " ".join(cells[i:i + 4]))
    print("};\n")


print(f"// Written by tests/parity/template_tables.py from Python's str of Unicode {unicodedata.unidata_version}. Do not edit.\n")
print_case("lower", str.lower)
print_case("upper", str.upper)
print_case("title", str.title)
print_ranges("cased", "Letters with a case: str.title() writes the letters after them in lower case.",
             lambda c: (c + "Σ").lower().endswith("ς"))
print_ranges("case_ignorable", "Characters that the rule of the final sigma skips (Case_Ignorable).",
             lambda c: ("A" + c + "Σ").lower().endswith("ς") and not (c + "Σ").lower().endswith("ς"))
print_ranges("unprintable", "Not str.isprintable(): characters that repr() escapes.", lambda c: not c.isprintable())
print_ranges("spaces", "str.isspace().", str.isspace)
for name in ("alpha", "decimal", "digit", "numeric"):
    print_ranges(name + "s", f"str.is{name}().", getattr(str, "is" + name))
