#!/usr/bin/env python3
"""Compares our tokenizer with Hugging Face's `tokenizers` on 100,000 lines of mixed text, id for id.

  tokenizer_lines.py DRIVER TOKENIZER.json... [--lines N] [--seed N] [--variants]

DRIVER is the program built from tokenizer_dump.c. With --variants the first file's vocabulary is also tried with the
pre-tokenizers of other families (GPT-2, Llama 3, Qwen2, GPT-4o, DeepSeek) and with unusual combinations of options.
For every line: the ids, the text decoded with and without special tokens, and the text decoded by streaming. Also
decodes lists of random ids, which are mostly broken UTF-8. Exits 1 on the first file with a difference.

Lines come from a seed and from the running Python installation, so a machine always makes the same lines.
Needs: pip install tokenizers
"""
import argparse
import copy
import json
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata

import tokenizers
from tokenizers import Tokenizer

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<|im_start", "|im_end|>",
            "<|im_start|><|im_end|>", "<| im_start |>", "<mask>", "<strip>", "<word>", "naïve"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\x0b", "\x0c", "\x1c", "\x85", "\u00a0", "\u1680", "\u2003",
          "\u200b", "\u200d", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", "\u180e"]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "☕", "🫠", "1️⃣", "🧑🏿‍🚀", "©️", "♾️"]
MARKS = [chr(c) for c in range(0x300, 0x370)] + ["\u20dd", "\u0e31", "\u094d", "\u0651", "\u3099", "\ufe0f", "\u0483"]
DIGITS = list("0123456789") + ["٣", "४", "²", "½", "Ⅷ", "一", "①", "𝟘", "\U00011de3", "\U00016ff4", "߉", "௧"]
SCRIPTS = {
    "cjk": (0x4e00, 0x9fff), "hiragana": (0x3041, 0x3096), "katakana": (0x30a1, 0x30fa), "hangul": (0xac00, 0xd7a3),
    "arabic": (0x621, 0x64a), "hebrew": (0x5d0, 0x5ea), "devanagari": (0x904, 0x939), "thai": (0xe01, 0xe3a),
    "greek": (0x391, 0x3c9), "cyrillic": (0x410, 0x44f), "armenian": (0x531, 0x556), "georgian": (0x10d0, 0x10fa),
    "cjk_b": (0x20000, 0x2a6df), "math": (0x1d400, 0x1d7ff), "latin_ext": (0x100, 0x24f), "jamo": (0x1100, 0x11ff),
}
WORDS = ("the of and don't I'll we've SHE'LL they're it's IT'S 'tis rock'n'roll C++ x=1; foo_bar camelCase HTTPServer naïve "
         "Straße İstanbul ǅ ﬁ café Ångström e.g. https://example.org/a?b=c&d=%20 a@b.c 3.14159 1,000,000 0xDEADBEEF 10^-3 "
         "ſ 'ſ 'S 'LL ’s “quoted” … — – `code` ``` ### |---| {} [] () <> /* */ // # $ % ^ & * \\n \\ \" ' '' ''' \u00ad").split()


def real_text(rng):
    """Lines of the Python installation: its sources, their docstrings, licences and package metadata."""
    roots = [pathlib.Path(sysconfig.get_paths()["stdlib"]), pathlib.Path(sysconfig.get_paths()["purelib"])]
    files = sorted({p for root in roots for ext in ("py", "txt", "md", "rst", "pyi", "toml", "cfg") for p in root.rglob(f"*.{ext}")
                    if "__pycache__" not in p.parts}, key=str)
    rng.shuffle(files)
    for path in files:
        try:
            lines = path.read_bytes()[:200_000].decode("utf-8", "replace").splitlines(keepends=True)
        except OSError:
            continue
        at = 0
        while at < len(lines):
            take = rng.choice([1, 1, 1, 1, 2, 3, 8])
            text = "".join(lines[at:at + take])
            at += take
            yield text if rng.random() < 0.5 else text.rstrip("\n")


def any_character(rng):
    while True:
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xd800 <= code < 0xe000:
            return chr(code)


def script(rng):
    low, high = SCRIPTS[rng.choice(sorted(SCRIPTS))]
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))


def part(rng):
    kind = rng.randrange(14)
    if kind < 3:
        return rng.choice(WORDS)
    if kind == 3:
        return script(rng)
    if kind == 4:
        return rng.choice(EMOJI)
    if kind == 5:
        return rng.choice("aeonüα한अ ") + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 4)))
    if kind == 6:
        return "".join(rng.choice(DIGITS) for _ in range(rng.randint(1, 9)))
    if kind == 7:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
    if kind == 8:
        return rng.choice(SPECIALS)
    if kind == 9:
        return "".join(any_character(rng) for _ in range(rng.randint(1, 6)))
    if kind == 10:
        return "".join(chr(rng.choice([rng.randrange(32), 0x7f, rng.randrange(0x80, 0xa0)])) for _ in range(rng.randint(1, 4)))
    if kind == 11:
        return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC"]), rng.choice(WORDS) + script(rng))
    if kind == 12:
        return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randint(1, 8)))
    return rng.choice([" ", "a", "=", "-", "\n", "0", "é", "中", "😀", "\t", "'", any_character(rng)]) * rng.randint(2, 60)


def mutate(rng, text):
    characters = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(characters))
        action = rng.randrange(4)
        if action == 0:
            characters[at:at] = part(rng)
        elif action == 1:
            del characters[at:at + rng.randint(1, 3)]
        elif action == 2:
            characters[at:at] = [any_character(rng)]
        else:
            characters = [c.upper() if rng.random() < 0.2 else c for c in characters]
    return "".join(characters)


def make_lines(count, seed):
    """A list of byte strings; about one in fifty is not UTF-8."""
    rng = random.Random(seed)
    real = real_text(rng)
    lines = [b"", b" ", b"\n", b"\0", b"\xff", b"<|im_start|>", b"a" * 100_000, b" " * 50_000, b"\n" * 20_000, b"=-" * 20_000,
             "é".encode() * 30_000, "中文".encode() * 10_000, b" a" * 20_000, b"1" * 20_000, b"\xf0\x9f\x98" * 50]
    lines += [line.encode() for line in ("\u02d8 \x1c\x0b", "\ufdfa", "\ufdfa x", " \ufdfa", "\u00a8", "\u00a8a", "e\u0301 a", "\u1fed\u0301 b")]
    while len(lines) < count:
        kind = rng.randrange(10)
        text = ""
        if kind < 6:
            text = next(real, "")
            if kind >= 4:
                text = mutate(rng, text)
        if not text:
            glue = rng.choice(["", "", " ", " "])
            text = glue.join(part(rng) for _ in range(rng.randint(1, 14)))
        line = text.encode("utf-8", "replace")
        if rng.random() < 0.02:
            broken = bytearray(line)
            for _ in range(rng.randint(1, 5)):
                broken.insert(rng.randint(0, len(broken)), rng.choice([0x80, 0xbf, 0xc0, 0xc3, 0xe2, 0xed, 0xf0, 0xf4, 0xff, 0xa0]))
            line = bytes(broken)
        lines.append(line)
    return lines


def regex(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(add_prefix_space=False, use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [regex(r"\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"),
            regex("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                  " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")]


def added(base, content, **options):
    """Appends an added token to a tokenizer's JSON, numbered as Hugging Face would."""
    vocab = base["model"]["vocab"]
    known = {t["content"] for t in base["added_tokens"]}
    next_id = max([len(vocab)] + [t["id"] + 1 for t in base["added_tokens"]])
    if content not in known:
        base["added_tokens"].append({"id": vocab.get(content, next_id), "content": content, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": False, **options})


def variants(base):
    def make(pre_tokenizer, **model):
        new = copy.deepcopy(base)
        new["pre_tokenizer"] = pre_tokenizer
        new["model"].update(model)
        return new

    gpt2 = make(byte_level(add_prefix_space=False, use_regex=True))
    gpt2["model"]["merges"] = ["#version: 0.2"] + [" ".join(m) if isinstance(m, list) else m for m in gpt2["model"]["merges"]]
    gpt2["post_processor"] = byte_level()
    del gpt2["model"]["type"]
    yield "gpt2", gpt2
    yield "gpt2-prefix-space", make(byte_level(add_prefix_space=True, use_regex=True))
    llama3 = make(sequence(regex(LLAMA3), byte_level()), ignore_merges=True)
    bos, eos = ({"id": t, "ids": [base["model"]["vocab"][t]], "tokens": [t]} for t in ("<|im_start|>", "<|im_end|>"))
    llama3["post_processor"] = {"type": "Sequence", "processors": [byte_level(), {
        "type": "TemplateProcessing", "special_tokens": {bos["id"]: bos, eos["id"]: eos},
        "single": [{"SpecialToken": {"id": bos["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": eos["id"], "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]}]}
    yield "llama3", llama3
    yield "qwen2", make(sequence(regex(QWEN2), byte_level()))
    yield "gpt4o", make(sequence(regex(GPT4O), byte_level()), ignore_merges=True)
    yield "deepseek", make(sequence(*DEEPSEEK, byte_level()))
    yield from odd_variants(make)


def odd_variants(make):
    # A vocabulary that lacks a third of the bytes, with an unk_token for them.
    letters = [t for t in make(None)["model"]["vocab"] if len(t) == 1 and ord(t) % 3]
    for fuse in (False, True):
        unk = make(sequence(regex(r"\s+", "MergedWithNext"), byte_level()), unk_token="<|im_end|>", fuse_unk=fuse, merges=[["t", "h"]],
                   vocab={t: n for n, t in enumerate(letters + ["th", "<|im_end|>"])})
        unk["added_tokens"] = []
        yield f"odd-unk-{'fused' if fuse else 'single'}", unk
    tokens = make(sequence({"type": "Digits", "individual_digits": False}, byte_level(add_prefix_space=True, use_regex=True)))
    added(tokens, "<mask>", lstrip=True, special=True)
    added(tokens, "<strip>", rstrip=True)
    added(tokens, "<word>", single_word=True, normalized=True)
    added(tokens, "the", single_word=True)
    added(tokens, "naïve", normalized=True)
    added(tokens, "  ", normalized=False)
    added(tokens, "     ", normalized=True, special=True)
    added(tokens, "é", lstrip=True, rstrip=True, normalized=True)
    added(tokens, "ééé", normalized=True)
    yield "odd-added-tokens", tokens
    yield "odd-splits", make(sequence(regex(r"\s+", "MergedWithNext"), regex(r"[^\w\s]+|x*", "MergedWithPrevious"), regex(r"\b|e+", "Contiguous"),
                                      {"type": "Split", "pattern": {"String": "."}, "behavior": "Removed", "invert": False}, byte_level()))
    yield "odd-inverted", make(sequence(regex(r"\p{L}+|(?<=o)", "MergedWithPrevious", True), regex(r"[^\p{L}]+|(?=s)", "Contiguous", True),
                                        regex(r"\d+|[^\d]+", "Removed", True), regex(r"[aeiou]+", "MergedWithNext", True),
                                        byte_level(use_regex=True)))


def run_driver(driver, path, requests):
    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as got:
        for body, flags in requests:
            sent.write(b"%d %d\n" % (len(body), flags) + body)
        sent.seek(0)
        done = subprocess.run([driver, path], stdin=sent, stdout=got, stderr=subprocess.PIPE)
        if done.returncode:
            sys.exit(f"{driver} failed ({done.returncode}): {done.stderr.decode(errors='replace')}")
        got.seek(0)
        rows = got.read().decode("utf-8").split("\n")
    answers = [([int(i) for i in rows[4 * n].split()], *(json.loads(r) for r in rows[4 * n + 1:4 * n + 4])) for n in range(len(requests))]
    return answers, done.stderr.decode().strip()


def compare(driver, name, path, lines, seed):
    theirs = Tokenizer.from_file(str(path))
    size = theirs.get_vocab_size()
    rng = random.Random(seed)
    random_ids = [[rng.randrange(size + 20) for _ in range(rng.randint(0, 40))] for _ in range(min(5000, len(lines)))]
    requests = [(line, n & 1) for n, line in enumerate(lines)] + [(" ".join(map(str, ids)).encode(), 2) for ids in random_ids]
    answers, times = run_driver(driver, str(path), requests)
    wrong = tokens = 0
    falls_back = '"ByteFallback"' in pathlib.Path(path).read_text()
    for start in range(0, len(requests), 5000):
        batch = requests[start:start + 5000]
        texts = [line.decode("utf-8", "replace") for line, _ in batch]
        plain = theirs.encode_batch_fast(texts, add_special_tokens=False)
        whole = theirs.encode_batch_fast(texts, add_special_tokens=True)
        expected = [random_ids[start + i - len(lines)] if flags == 2 else (whole if flags else plain)[i].ids
                    for i, (_, flags) in enumerate(batch)]
        full = theirs.decode_batch(expected, skip_special_tokens=False)
        bare = theirs.decode_batch(expected, skip_special_tokens=True)
        for i, ids in enumerate(expected):
            answer = answers[start + i]
            tokens += len(ids)
            # A stream emits the valid bytes of an invalid UTF-8 sequence before it can know that the sequence is invalid.
            streamed = answer[3] if falls_back and "\ufffd" in full[i] else full[i]
            if answer != (ids, full[i], bare[i], streamed):
                wrong += 1
                if wrong <= 5:
                    print(f"  {name}: request {start + i} {batch[i][0][:200]!r}\n    theirs {ids[:40]} {full[i][:80]!r}\n"
                          f"    ours   {answer[0][:40]} {answer[1][:80]!r}\n    streamed {answer[3][:80]!r}", file=sys.stderr)
    good = len(requests) - wrong
    print(f"{name}: {good}/{len(requests)} identical ({len(lines)} lines encoded and decoded, {len(random_ids)} random id lists decoded; "
          f"{tokens} tokens); tokenizers {tokenizers.__version__}, Python {sys.version.split()[0]}; ours: {times}", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variants", action="store_true")
    args = parser.parse_args()
    lines = make_lines(args.lines, args.seed)
    wrong = 0
    for path in args.files:
        wrong += compare(args.driver, pathlib.Path(path).name, path, lines, args.seed)
    if args.variants:
        base = json.loads(pathlib.Path(args.files[0]).read_text())
        with tempfile.TemporaryDirectory() as folder:
            for name, content in variants(base):
                path = pathlib.Path(folder) / f"{name}.json"
                path.write_text(json.dumps(content))
                wrong += compare(args.driver, name, path, lines, args.seed)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
