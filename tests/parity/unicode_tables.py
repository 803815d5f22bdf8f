#!/usr/bin/env python3
"""Writes tokenizer/unicode_tables.h: how the `tokenizers` package treats single characters.

  unicode_tables.py > tokenizer/unicode_tables.h
  unicode_tables.py GRAPHEMES > tokenizer/grapheme_table.h

The package mixes tables of several Unicode versions (normalization 9.0, categories 8.0, lower case of its Rust compiler), so the
script asks the package itself, character by character. Python's unicodedata adds the canonical pair of a character and the number of its
combining class, which the package does not expose. Both are fixed once a character is assigned, and every result is checked against the
package. Needs: pip install tokenizers
GRAPHEMES is src/tables.rs of the crate unicode-segmentation 1.13.3, which the package uses to find graphemes: the properties
Grapheme_Cluster_Break and Indic_Conjunct_Break of Unicode 17.
"""
import pathlib
import re
import sys
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
nfd, nfc, nfkd = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str, normalizers.NFKD().normalize_str
lower = normalizers.Lowercase().normalize_str
strip_marks = normalizers.StripAccents().normalize_str
clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False).normalize_str
strip_accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False).normalize_str
bert_pieces = pre_tokenizers.BertPreTokenizer().pre_tokenize_str


def is_hangul(code):
    return 0xac00 <= code < 0xac00 + 11172


def combining_class(code):
    """The combining class the package orders by: unicodedata's, or 0 where the package's Unicode does not know the character yet."""
    value = unicodedata.combining(chr(code))
    if not value or nfd(chr(code)) != chr(code):
        return 0
    low, high = "\u0334", "\u0345"  # classes 1 and 240: the lowest and the highest
    moves = nfd(chr(code) + low) != chr(code) + low if value > 1 else nfd(high + chr(code)) != high + chr(code)
    return value if moves else 0


def canonical_entries():
    """(kind, character, its one-step decomposition); '+' composes again, '-' does not."""
    for code in CODES:
        text = chr(code)
        if nfd(text) == text or is_hangul(code):
            continue
        parts = [chr(int(p, 16)) for p in unicodedata.decomposition(text).split()]
        assert parts and nfd("".join(parts)) == nfd(text), hex(code)
        yield "+" if len(parts) == 2 and nfc("".join(parts)) == text else "-", text, "".join(parts)


def compatible_entries():
    """(character, its full NFKD decomposition) where that differs from NFD."""
    for code in CODES:
        if nfkd(chr(code)) != nfd(chr(code)):
            yield "\t", chr(code), nfkd(chr(code))


def literal(text):
    out = ""
    for c in text:
        if c == "\t":
            out += "\\t"
        elif c in "\"\\?":
            out += "\\" + c
        elif ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0 or unicodedata.category(c) in ("Zs", "Zl", "Zp", "Cf", "Co", "Cs") and c != " ":
            out += "".join(f"\\{b:03o}" for b in c.encode())
        else:
            out += c
    return out


def write_text(name, comment, entries):
    print(f"\n// {comment}\nstatic const char {name}[] =")
    line = ""
    for kind, character, parts in entries:
        line += literal(kind + character + parts)
        if len(line) > 100:
            print(f'    "{line}"')
            line = ""
    print(f'    "{line}";')


def ranges_of(values):
    """(first, last, value) of every range with one value other than None."""
    runs = []
    for code, value in values:
        if value is None:
            continue
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1][1] = code
        else:
            runs.append([code, code, value])
    return runs


def write_rows(name, comment, type_name, rows):
    print(f"\n// {comment}\nstatic const {type_name} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(f"{v:#x}" if i < 2 else str(v) for i, v in enumerate(row)) + "},"
        if len(line) + len(item) > 120:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


def lower_rows():
    """(first, last, step, offset); the code handles U+0130, the only one that becomes two characters."""
    assert lower("\u0130") == "i\u0307"
    rows = []
    for code in CODES:
        if lower(chr(code)) == chr(code) or code == 0x130:
            continue
        delta = ord(lower(chr(code))) - code
        if rows and rows[-1][3] == delta and rows[-1][2] in (0, code - rows[-1][1]) and code - rows[-1][1] <= 2:
            rows[-1][2] = code - rows[-1][1]
            rows[-1][1] = code
        else:
            rows.append([code, code, 0, delta])
    return [(a, b, step or 1, delta) for a, b, step, delta in rows]


def grapheme_rows(path):
    """(first, last, class) for all classes but Any; the code handles whole Hangul syllables."""
    text = pathlib.Path(path).read_text()
    table = text[text.index("grapheme_cat_table: &[(char, char, GraphemeCat)]"):]
    rows = re.findall(r"\('\\u\{([0-9a-f]+)\}',\s*'\\u\{([0-9a-f]+)\}',\s*GC_(\w+)\)", table)
    linkers = {int(c, 16) for c in re.findall(r"'\\u\{(\w+)\}'", text[text.index("fn is_incb_linker"):text.index("pub mod grapheme")])}
    extend = re.findall(r"\('\\u\{(\w+)\}',\s*'\\u\{(\w+)\}'\)", text[text.index("InCB_Extend_table"):text.index("pub fn InCB_Extend")])
    found = {}
    for first, last, name in rows:
        if name not in ("LV", "LVT"):
            found.update((c, name) for c in range(int(first, 16), int(last, 16) + 1))
    assert len(rows) > 1500 and len(linkers) >= 20 and all(found[c] == "Extend" for c in linkers)
    extends = {c for first, last in extend for c in range(int(first, 16), int(last, 16) + 1)}
    assert extends == {c for c, name in found.items() if name in ("Extend", "ZWJ") and c != 0x200c} - linkers  # the code relies on it
    found.update((c, "Linker") for c in linkers)
    return [(a, b, "GRAPHEME_" + name.replace("InCB_", "").upper()) for a, b, name in ranges_of(sorted(found.items()))]


def write_set(name, comment, belongs):
    write_rows(name, comment, "range_t", [r[:2] for r in ranges_of((c, True if belongs(chr(c)) else None) for c in CODES)])


def write_graphemes(path):
    print("// Generated by tests/parity/unicode_tables.py from unicode-segmentation 1.13.3 (Unicode 17); do not edit.")
    write_rows("grapheme_ranges", "The grapheme class of each character. Precomposed Hangul syllables are computed in charsmap.c.", "grapheme_range_t",
               grapheme_rows(path))


def main():
    if len(sys.argv) > 1:
        return write_graphemes(sys.argv[1])
    print(f"// Generated by tests/parity/unicode_tables.py from tokenizers {tokenizers.__version__} and the unicodedata of Unicode"
          f" {unicodedata.unidata_version}; do\n"
          "// not edit. The package normalizes by Unicode 9.0, and has the categories of 8.0 and the lower case of its Rust\n"
          "// compiler.")
    canonical, compatible = list(canonical_entries()), list(compatible_entries())
    print(f"\nenum {{ CANONICAL_COUNT = {len(canonical)}, COMPOSITION_COUNT = {sum(kind == '+' for kind, _, _ in canonical)}, "
          f"COMPATIBLE_COUNT = {len(compatible)} }};")
    write_text("canonical_text", "Entries: '+' or '-', a character, its decomposition in one step. '+': the composition is allowed too.",
               canonical)
    write_text("compatible_text", "Entries: a tab, a character, its full compatibility decomposition.", compatible)
    write_rows("combining_classes", "Canonical combining classes that are not 0.", "class_range_t",
               ranges_of((c, combining_class(c) or None) for c in CODES))
    write_rows("lower_ranges", "Lower case: first, last, step, offset to add.", "lower_range_t", lower_rows())
    write_set("mark_ranges", "Marks, which StripAccents removes.", lambda c: strip_marks(c) == "")
    write_set("nonspacing_ranges", "Nonspacing marks, which BertNormalizer removes.",
              lambda c: nfd(c) == c and strip_accents(c) == "")
    write_set("control_ranges", "Characters that BertNormalizer's clean_text removes.", lambda c: clean(c) == "")
    write_set("punctuation_ranges", "Punctuation, for BertPreTokenizer and Punctuation.",
              lambda c: [p for p, _ in bert_pieces(f"a{c}a")] == ["a", c, "a"])


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    main()
