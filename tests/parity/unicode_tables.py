#!/usr/bin/env python3
"""Writes unicode/tables.c: how Python's str, the `tokenizers` package and terminals treat single characters.

  unicode_tables.py [GRAPHEMES] > new.c && mv new.c unicode/tables.c

It needs Python with Unicode 14 (3.11) and `pip install tokenizers`. Three sources:

- Python's str is asked, character by character.
- The package mixes tables of several Unicode versions (normalization 9.0, categories 8.0, lower case of its Rust compiler), so the script
  asks the package itself. Python's unicodedata adds the canonical pair of a character and the number of its combining class, which the
  package does not expose. Both are fixed once a character is assigned, and every result is checked against the package.
- GRAPHEMES is src/tables.rs of the crate unicode-segmentation 1.13.3, which the package uses to find graphemes: the properties
  Grapheme_Cluster_Break and Indic_Conjunct_Break of Unicode 17. Without it, the rows of the present unicode/tables.c are kept.

Columns of a terminal are from unicodedata: marks, format characters (except the soft hyphen) and the later parts of Hangul syllables take
none. East Asian wide and full-width characters take two, as in wcwidth of common terminals.
"""
import pathlib
import re
import sys
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

UNICODE = "14.0.0"  # of Python's tables
HERE = pathlib.Path(__file__).resolve().parent
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
    print(f"\n// {comment}\nconst char {name}_text[] =")
    line = ""
    for kind, character, parts in entries:
        line += literal(kind + character + parts)
        if len(line) > 100:
            print(f'    "{line}"')
            line = ""
    print(f'    "{line}";')
    print(f"const size_t {name}_length = sizeof {name}_text - 1;")


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


def write_rows(name, comment, row_type, table_type, rows, more=""):
    print(f"\n// {comment}\nstatic const {row_type} {name}_rows[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(f"{v:#x}" if i < 2 else str(v) for i, v in enumerate(row)) + "},"
        if len(line) + len(item) > 120:
            print(line)
            line = "   "
        line += item
    print(f"{line}\n}};\nconst {table_type} {name} = {{{name}_rows, {len(rows)}{more}}};")


def write_case(name, comment, change):
    """Ranges with a constant distance to the other case (step 1 or 2), and the characters that map to several."""
    rows, special = [], []
    for code in CODES:
        text = change(chr(code))
        if text == chr(code):
            continue
        if len(text) > 1:
            special.append((code, text))
            continue
        delta = ord(text) - code
        last = rows[-1] if rows else None
        if last and last[3] == delta and last[2] in (0, code - last[1]) and code - last[1] <= 2:
            last[2] = code - last[1]
            last[1] = code
        else:
            rows.append([code, code, 0, delta])
    more = ", NULL, 0"
    if special:
        print(f"\nstatic const mlx_case_special_t {name}_special[] = {{")
        cells = ['{0x%x, "%s"},' % (code, "".join(f"\\x{b:02x}" for b in text.encode())) for code, text in special]
        for i in range(0, len(cells), 4):
            print("    " + " ".join(cells[i:i + 4]))
        print("};")
        more = f", {name}_special, {len(special)}"
    write_rows(name, comment, "mlx_range_case_t", "mlx_case_table_t", [(a, b, step or 1, delta) for a, b, step, delta in rows], more)


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
    return [(a, b, "MLX_GRAPHEME_" + name.replace("InCB_", "").upper()) for a, b, name in ranges_of(sorted(found.items()))]


def kept_graphemes():
    """The rows of the present table."""
    text = (HERE.parents[1] / "unicode/tables.c").read_text()
    rows = text[text.index("mlx_grapheme_classes_rows[]"):text.index("const mlx_range_values_t mlx_grapheme_classes ")]
    return [(int(a, 16), int(b, 16), name) for a, b, name in re.findall(r"\{(\w+), (\w+), (\w+)\}", rows)]


def write_set(name, comment, belongs):
    write_rows(name, comment, "mlx_range_t", "mlx_ranges_t", [r[:2] for r in ranges_of((c, True if belongs(chr(c)) else None) for c in CODES)])


def columns(char):
    code = ord(char)
    if code < 0x80:
        return 1
    if code != 0xad and (unicodedata.category(char) in ("Mn", "Me", "Cf") or 0x1160 <= code <= 0x11ff):
        return 0
    if unicodedata.category(char) == "Cn" and not 0x20000 <= code <= 0x3fffd:
        return 1  # unassigned; older Pythons call it F. These planes will hold only ideographs
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def write_python():
    for name in ("lower", "upper", "title"):
        write_case("mlx_python_" + name, f"str.{name}().", getattr(str, name))
    write_set("mlx_python_cased", "Letters with a case: str.title() writes the letters after them in lower case.",
              lambda c: (c + "Σ").lower().endswith("ς"))
    write_set("mlx_python_case_ignorable", "Characters that the rule of the final sigma skips (Case_Ignorable).",
              lambda c: ("A" + c + "Σ").lower().endswith("ς") and not (c + "Σ").lower().endswith("ς"))
    write_set("mlx_python_unprintable", "Not str.isprintable(): characters that repr() escapes.", lambda c: not c.isprintable())
    write_set("mlx_python_spaces", "str.isspace().", str.isspace)
    for name in ("alpha", "decimal", "digit", "numeric"):
        write_set(f"mlx_python_{name}s", f"str.is{name}().", getattr(str, "is" + name))


def write_tokenizers():
    canonical, compatible = list(canonical_entries()), list(compatible_entries())
    print(f"\n_Static_assert(MLX_CANONICAL_COUNT == {len(canonical)}, \"unicode/tables.h\");")
    print(f"_Static_assert(MLX_COMPOSITION_COUNT == {sum(kind == '+' for kind, _, _ in canonical)}, \"unicode/tables.h\");")
    print(f"_Static_assert(MLX_COMPATIBLE_COUNT == {len(compatible)}, \"unicode/tables.h\");")
    write_text("mlx_canonical", "See tables.h.", canonical)
    write_text("mlx_compatible", "See tables.h.", compatible)
    write_rows("mlx_combining_classes", "Canonical combining classes that are not 0.", "mlx_range_value_t", "mlx_range_values_t",
               ranges_of((c, combining_class(c) or None) for c in CODES))
    write_case("mlx_hf_lower", "The package's Lowercase.", lower)
    write_set("mlx_hf_marks", "Marks, which StripAccents removes.", lambda c: strip_marks(c) == "")
    write_set("mlx_hf_nonspacing", "Nonspacing marks, which BertNormalizer removes.", lambda c: nfd(c) == c and strip_accents(c) == "")
    write_set("mlx_hf_controls", "Characters that BertNormalizer's clean_text removes.", lambda c: clean(c) == "")
    write_set("mlx_hf_punctuation", "Punctuation, for BertPreTokenizer and Punctuation.",
              lambda c: [p for p, _ in bert_pieces(f"a{c}a")] == ["a", c, "a"])


def main():
    if unicodedata.unidata_version != UNICODE:
        sys.exit("unicode_tables.py: this Python has Unicode %s; the tables are those of %s: use Python 3.11" % (unicodedata.unidata_version, UNICODE))
    graphemes = grapheme_rows(sys.argv[1]) if len(sys.argv) > 1 else kept_graphemes()
    print(f"// Written by tests/parity/unicode_tables.py from tokenizers {tokenizers.__version__}, unicode-segmentation 1.13.3 and Unicode {UNICODE}; do not edit.")
    print('#include "unicode/tables.h"')
    write_python()
    write_tokenizers()
    write_rows("mlx_grapheme_classes", "The grapheme class of each character, without those of precomposed Hangul syllables.", "mlx_range_value_t",
               "mlx_range_values_t", graphemes)
    write_set("mlx_zero_columns", "Characters that take no column of a terminal.", lambda c: columns(c) == 0)
    write_set("mlx_two_columns", "Characters that take two columns.", lambda c: columns(c) == 2)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    main()
