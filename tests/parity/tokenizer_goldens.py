#!/usr/bin/env python3
"""Writes tests/goldens/tokenizer_kinds.h: small tokenizers of every kind, texts, and their tokens by the `tokenizers` package.

  tokenizer_goldens.py > tests/goldens/tokenizer_kinds.h

The vocabularies are written by hand and small enough to check on paper. Needs: pip install tokenizers gguf numpy
"""
import base64
import itertools
import json
import random
import struct
import sys

import tokenizers
from tokenizers import Tokenizer

from tokenizer_kinds import double_array

SPACE = "▁"
BYTES = [f"<0x{b:02X}>" for b in range(256)]
TEXTS = ["", " ", "a", "ab abc", "  ab  abc ", "cab\n\tabc", "é", "e\u0301", "\u1e9b\u0323", "ﬁ ½ Å", "한국", "\u1112\u1161\u11ab", "中文 ab", "👩‍👩‍👧",
         "aaaaaaaaaaaaaaaa", "<s>ab</s> abc", "x<s> y", "ABC İ ǅ ß", "don't, ab!", "\u0000a\u0007b\ufffd", "a\u0315\u0300\u05ae\u0300b", "ab\xa0abc\u3000a", "zz unknown"]


def model_bpe(tokens, merges, **options):
    return {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges, **options}


def replace(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def special(tokens, *names, normalized=False):
    return [{"id": tokens.index(n), "content": n, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
             "special": True} for n in names]


def sentencepiece():
    tokens = ["<unk>", "<s>", "</s>"] + BYTES + list("abcdeé") + [SPACE, "ab", "abc", SPACE + "a", SPACE + "ab", "aa", "aaaa", SPACE * 2]
    merges = [["a", "b"], ["ab", "c"], [SPACE, "a"], [SPACE, "ab"], [SPACE, SPACE], ["a", "a"], ["aa", "aa"]]
    base = {"added_tokens": special(tokens, "<unk>", "<s>", "</s>"), "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                                                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": model_bpe(tokens, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)}
    yield "sentencepiece", dict(base, normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE)]})
    for scheme, split in (("always", True), ("first", False), ("never", True)):
        yield f"metaspace {scheme}", dict(base, pre_tokenizer={"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split},
                                          added_tokens=special(tokens, "<unk>", "<s>", "</s>", normalized=scheme == "always"))


def unigram():
    tokens = ["<unk>", "<s>", "</s>"] + BYTES[:128] + list("abcde") + [SPACE, "ab", "abc", SPACE + "ab", "aa", "aaa", "fi"]
    scores = [0.0, 0.0, 0.0] + [-20.5] * 128 + [-2.1, -2.25, -2.5, -3.125, -3.0999999046325684] + [-1.5, -3.3, -4.7, -4.1, -3.9999, -5.2, -6.0]
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    base = {"added_tokens": special(tokens, "<s>", "</s>"), "normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}]},
            "pre_tokenizer": metaspace, "decoder": metaspace, "post_processor": None,
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [list(pair) for pair in zip(tokens, scores)]}}
    yield "unigram", base
    texts = {"": 0, " ": 1, "fi": 3, "é": 6, "Å": 9, "1⁄2": 12}  # offset of each in the text below
    keys = {"\x07": "", "\t": " ", "\n": " ", "ﬁ": "fi", "e\u0301": "é", "Å": "Å", "½": "1⁄2"}
    units = double_array({key.encode(): texts[text] for key, text in keys.items()})
    compiled = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + "\0 \0fi\0é\0Å\0001⁄2\0".encode()
    yield "unigram compiled map", dict(base, normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(compiled).decode()})
    yield "unigram bytes", dict(base, normalizer={"type": "Lowercase"}, model=dict(base["model"], byte_fallback=True))


def wordpiece():
    tokens = ["[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "e", "##a", "##b", "##bc", "ab", "##c", "aaaa", "##aaaa", "don", "'", "t", ",", "!", "ss", "中", "文", "i",
              "##e", "##\u0307"]
    base = {"added_tokens": special(tokens, "[UNK]", "[CLS]", "[SEP]"), "pre_tokenizer": {"type": "BertPreTokenizer"},
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 12,
                      "vocab": {t: i for i, t in enumerate(tokens)}}}
    yield "wordpiece", base
    yield "wordpiece cased", dict(base, normalizer={"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True},
                                                                                        {"type": "NFD"}, {"type": "StripAccents"}]})


def byte_level():
    tokens = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()) + ["ab", "Ã©", "<s>"]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield f"byte level {form}", {
            "added_tokens": special(tokens, "<s>"), "normalizer": {"type": form}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": model_bpe(tokens, [["a", "b"], ["Ã", "©"]])}


def c_string(data):
    """A C string literal of the bytes, with octal escapes for all but printable ASCII."""
    out = "".join(chr(b) if 32 <= b < 127 and chr(b) not in "\"\\?" else f"\\{b:03o}" for b in data)
    lines, line = [], ""
    for c in out.replace("\\", "\0\\").split("\0"):
        for piece in ([c] if c.startswith("\\") else [c[i:i + 100] for i in range(0, len(c), 100)]):
            if len(line) + len(piece) > 112:
                lines.append(line)
                line = ""
            line += piece
    return "\n        ".join(f'"{part}"' for part in lines + [line])


def main():
    rng = random.Random(1)
    print(f"// Written by tests/parity/tokenizer_goldens.py with tokenizers {tokenizers.__version__}. Do not edit.\n")
    print("typedef struct tokenizer_golden {\n  size_t tokenizer;  // index into golden_tokenizers\n  const char *text;  // NULL: ids to decode only\n"
          "  size_t length;\n  const char *ids, *decoded, *decoded_bare;  // with special tokens, without them\n} tokenizer_golden_t;\n")
    made = list(itertools.chain(sentencepiece(), unigram(), wordpiece(), byte_level()))
    print("static const struct { const char *name, *json; } golden_tokenizers[] = {")
    for name, content in made:
        text = json.dumps({"version": "1.0", "truncation": None, "padding": None, **content}, ensure_ascii=False, separators=(",", ":"))
        print(f'    {{"{name}",\n        {c_string(text.encode())}}},')
    print("};\n\nstatic const tokenizer_golden_t golden_texts[] = {")
    for index, (name, content) in enumerate(made):
        theirs = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, **content}))
        rows = [(text, theirs.encode(text).ids) for text in TEXTS]
        rows += [(None, [rng.randrange(theirs.get_vocab_size()) for _ in range(8)]) for _ in range(8)]
        for text, ids in rows:
            parts = ["NULL" if text is None else c_string(text.encode()), str(0 if text is None else len(text.encode())), c_string(" ".join(map(str, ids)).encode()),
                     c_string(theirs.decode(ids, skip_special_tokens=False).encode()), c_string(theirs.decode(ids, skip_special_tokens=True).encode())]
            print(f"    {{{index}, {', '.join(parts)}}},")
    print("};")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    main()
