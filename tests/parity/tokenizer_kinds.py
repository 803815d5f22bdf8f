#!/usr/bin/env python3
"""Compares our tokenizer with Hugging Face's `tokenizers` for every kind of model, id for id and text for text.

  tokenizer_kinds.py DRIVER [--lines N] [--seed N] [--only NAME] [--keep FOLDER]

Trains a small tokenizer of each kind (byte-level BPE, SentencePiece's BPE with byte fallback, Unigram, WordPiece) on this tree
and on mixed lines, writes it in the form that published models use, and compares it on N lines as tokenizer_lines.py does. Then
compares the same vocabularies with other options and from GGUF files on a fifth of the lines.
Needs: pip install tokenizers gguf numpy
"""
import argparse
import base64
import copy
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata

import gguf

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import tokenizer_lines
from tokenizer_lines import LLAMA3, QWEN2, byte_level, regex, sequence

TREE = pathlib.Path(__file__).resolve().parents[2]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPACE = "▁"


def corpus(seed, most):
    """Random lines and the lines of this tree; every nth of them if there are more than |most|."""
    lines = [line.decode("utf-8", "replace") for line in tokenizer_lines.make_lines(12_000, seed + 1) if len(line) < 2000]
    for path in sorted(TREE.rglob("*")):
        if path.suffix in (".md", ".c", ".h", ".py") and "build" not in path.relative_to(TREE).parts:
            lines += path.read_text(errors="replace").splitlines()
    return lines[::max(1, len(lines) // most)] if most else lines


def trained(model, trainer, pre_tokenizer, lines, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())


def with_parts(base, **parts):
    new = copy.deepcopy(base)
    model = parts.pop("model", {})
    new.update(parts)
    new["model"].update(model)
    return new


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def metaspace(scheme="always", split=True):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def normal(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def plain(*names):
    return normal(*({"type": name} for name in names))


def decoders(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


def strip(count=1):
    return {"type": "Strip", "content": " ", "start": count, "stop": 0}


def template(base, bos, eos=None):
    ids = {t["content"]: t["id"] for t in base["added_tokens"]}
    around = [t for t in (bos, eos) if t]
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    if bos:
        single.insert(0, {"SpecialToken": {"id": bos, "type_id": 0}})
    if eos:
        single.append({"SpecialToken": {"id": eos, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in around}}


FALLBACK = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]


def grapheme_lines(count, seed):
    """Text for the grapheme rules of Unicode: marks, joiners, flags, jamo, Indic conjuncts, prepended signs, controls."""
    rng = random.Random(seed)
    characters = ["a", "é", "ﬁ", "©", "®", "\u00ad", "\r", "\n", "\t", "\u0300", "\u0301", "\u0338", "\u0903", "\u093e", "\u200c", "\u200d", "\ufe0f", "\u0600", "\u06dd",
                  "\u0d4e", "\u1100", "\u1161", "\u11a8", "가", "각", "\ua960", "\u0915", "\u0958", "\u094d", "\u093c", "\u09cd", "\u0995", "\u1039", "❤", "👩", "😀", "🏽", "🇩",
                  "🇪", "\u0e33", "\u0eb3", "\U00011133", "\u2028", "\u0958\u0300", "½"]
    return ["".join(rng.choice(characters) for _ in range(rng.randint(1, 12))).encode() for _ in range(count)]


def byte_bpe(lines):
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    base = trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False), lines)
    base = with_parts(base, decoder=byte_level(), pre_tokenizer=sequence(regex(QWEN2), byte_level()), normalizer={"type": "NFC"})
    yield "byte-bpe", base
    for form in ("NFD", "NFKC", "NFKD"):
        yield f"byte-bpe-{form.lower()}", with_parts(base, normalizer={"type": form})
    yield "byte-bpe-lower", with_parts(base, normalizer=plain("NFD", "Lowercase", "StripAccents", "NFC"))
    yield "byte-bpe-strip", with_parts(base, normalizer=normal({"type": "Strip", "strip_left": True, "strip_right": False},
                                                               {"type": "Nmt"}, replace(r"[0-9]+|e", "N", "Regex")))
    tokens = with_parts(base, pre_tokenizer=sequence(regex(LLAMA3), byte_level()), model={"ignore_merges": True})
    for content, options in (("é", {}), ("e\u0301e\u0301", {"lstrip": True}), ("ﬁ", {}), ("naïve", {"special": True}), ("\u1e9b\u0323", {})):
        tokenizer_lines.added(tokens, content, normalized=True, **options)
    yield "byte-bpe-precompiled", with_parts(base, normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap()})
    yield "byte-bpe-added", with_parts(tokens, normalizer={"type": "NFKD"})


def sentencepiece_bpe(lines):
    trainer = trainers.BpeTrainer(vocab_size=9000, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, show_progress=False, limit_alphabet=900)
    base = trained(models.BPE(unk_token="<unk>"), trainer, pre_tokenizers.Metaspace(), lines)
    base["added_tokens"] = [dict(t, normalized=False) for t in base["added_tokens"] if not t["content"].startswith("<0x")]
    base["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    llama = with_parts(base, normalizer=normal({"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE)), pre_tokenizer=None,
                       decoder=decoders(*FALLBACK, strip()), post_processor=template(base, "<s>"))
    yield "sentencepiece-bpe", llama
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"sentencepiece-{scheme}-{'split' if split else 'whole'}", with_parts(
                base, normalizer=None, pre_tokenizer=metaspace(scheme, split), decoder=decoders(*FALLBACK, strip()),
                post_processor=template(base, "<s>", "</s>"))
    gemma = with_parts(base, normalizer=replace(" ", SPACE), decoder=decoders(*FALLBACK), pre_tokenizer={
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, model={"ignore_merges": True})
    for content in ("\n\n", SPACE * 3, "<mask>", "<|im_start|>"):
        tokenizer_lines.added(gemma, content)
    yield "sentencepiece-gemma", gemma
    for fuse in (True, False):
        yield f"sentencepiece-unk-{fuse}", with_parts(llama, model={"byte_fallback": False, "fuse_unk": fuse})
        half = with_parts(llama, model={"fuse_unk": fuse}, added_tokens=[], post_processor=None)
        half["model"]["vocab"] = {(t if not (t in BYTES and int(t[1:5], 16) % 5 == 0) else "gone" + t): i for t, i in half["model"]["vocab"].items()}
        yield f"sentencepiece-half-bytes-{fuse}", half
    yield "sentencepiece-dropped", with_parts(llama, model={"byte_fallback": False, "unk_token": None})
    yield "sentencepiece-normalized", with_parts(
        llama, added_tokens=[dict(t, normalized=True) for t in base["added_tokens"]], decoder=decoders(replace("e", "é"), *FALLBACK, strip(3)))
    yield "sentencepiece-first-stripped", with_parts(
        llama, normalizer=normal({"type": "Strip", "strip_left": True, "strip_right": True}, replace(" {2,}", " ", "Regex")),
        pre_tokenizer=metaspace("first"))


def double_array(keys):
    """The units of a darts-clone double array over |keys|: bytes -> value."""
    units, used, first_free = {0: 0}, {0}, 1
    work = [(0, sorted(keys.items()), 0)]  # unit of the node, its keys, bytes consumed so far
    while work:
        place, items, depth = work.pop()
        leaf = [value for key, value in items if len(key) == depth]
        groups = {}
        for key, value in items:
            if len(key) > depth:
                groups.setdefault(key[depth], []).append((key, value))
        labels = ([0] if leaf else []) + sorted(groups)
        while first_free in used:
            first_free += 1
        base = first_free ^ labels[0]
        while any(base ^ label in used for label in labels):
            base += 1
        assert base ^ place < 1 << 21
        units[place] |= (base ^ place) << 10 | (1 << 8 if leaf else 0)
        for label in labels:
            used.add(base ^ label)
            units[base ^ label] = label if label else leaf[0] | 1 << 31
        work += [(base ^ label, groups[label], depth + 1) for label in groups]
    return [units.get(i, 0) for i in range(max(units) + 256)]


def charsmap():
    """A charsmap in the form SentencePiece compiles for nmt_nfkc, with its rules for marks and controls."""
    changes = {}
    for code in [*range(1, 0xd800), *range(0xe000, 0x10000), *range(0x1d400, 0x1d800), *range(0x1f100, 0x1f200)]:
        text = chr(code)
        if unicodedata.normalize("NFKC", text) != text:
            changes[text] = unicodedata.normalize("NFKC", text)
        if len(unicodedata.normalize("NFD", text)) > 1 and not 0xac00 <= code < 0xd7a4:
            changes[unicodedata.normalize("NFD", text)] = unicodedata.normalize("NFC", text)
        if unicodedata.category(text) in ("Cc", "Cf"):
            changes[text] = " " if text in "\t\n\r" else ""
    texts, places = bytearray(), {}
    for text in sorted(set(changes.values())):
        places[text] = len(texts)
        texts += text.encode() + b"\0"
    units = double_array({key.encode(): places[text] for key, text in changes.items()})
    return base64.b64encode(struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + bytes(texts)).decode()


def unigram(lines):
    trainer = trainers.UnigramTrainer(vocab_size=8000, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, unk_token="<unk>", show_progress=False)
    base = trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), lines[::3], normalizers.NFKC())
    base["added_tokens"] = [dict(t, normalized=False) for t in base["added_tokens"] if not t["content"].startswith("<0x")]
    t5 = with_parts(base, normalizer=plain("Nmt", "NFKC"), pre_tokenizer=metaspace(), decoder=metaspace(), post_processor=template(base, None, "</s>"))
    yield "unigram", t5
    yield "unigram-whole", with_parts(t5, pre_tokenizer=metaspace("first", False), decoder=metaspace("never"), normalizer=None)
    yield "unigram-bytes", with_parts(t5, model={"byte_fallback": True}, decoder=decoders(*FALLBACK, strip()))
    yield "unigram-xlmr", with_parts(t5, pre_tokenizer=sequence({"type": "WhitespaceSplit"}, metaspace("first")),
                                     normalizer=normal({"type": "NFKC"}, {"type": "Strip", "strip_left": False, "strip_right": True},
                                                       replace(" {2,}", SPACE, "Regex")))
    yield "unigram-precompiled", with_parts(t5, normalizer=normal({"type": "Precompiled", "precompiled_charsmap": charsmap()},
                                                                  replace(" {2,}", " ", "Regex")))


def wordpiece(lines):
    # GGUF spells the pieces "##\u2581a" and "a" alike: no piece of several characters may continue a word with U+2581.
    lines = [line for line in lines if not re.search(rf"\S{SPACE}\S", line)]
    trainer = trainers.WordPieceTrainer(vocab_size=8000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False)
    base = trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer(), lines, normalizers.BertNormalizer())
    ids = base["model"]["vocab"]
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    uncased = with_parts(base, decoder=decoder, normalizer=bert, post_processor={
        "type": "BertProcessing", "sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]})
    yield "wordpiece", uncased
    yield "wordpiece-cased", with_parts(uncased, normalizer=dict(bert, lowercase=False), decoder=dict(decoder, cleanup=False), post_processor=dict(
        uncased["post_processor"], type="RobertaProcessing", trim_offsets=True, add_prefix_space=False), model={"max_input_chars_per_word": 8})
    yield "wordpiece-accents", with_parts(uncased, normalizer=dict(bert, lowercase=False, strip_accents=True, handle_chinese_chars=False))
    yield "wordpiece-unclean", with_parts(uncased, normalizer=dict(bert, clean_text=False, strip_accents=False), pre_tokenizer=sequence(
        {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Digits", "individual_digits": True}))
    yield "wordpiece-no-prefix", with_parts(uncased, decoder=dict(decoder, prefix="e"), model={"continuing_subword_prefix": ""})


def written_merges(vocab, scores):
    """Merges from SentencePiece scores, as Hugging Face's converter derives them."""
    merges = []
    for token, score in scores.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += [(score, left, right) for left, right in sorted(cuts, key=lambda cut: (vocab[cut[0]], vocab[cut[1]]))]
    return [[left, right] for _, left, right in sorted(merges, key=lambda merge: merge[0], reverse=True)]


def convert_gguf(driver, folder, name, tokenizer, tokens, types, scores, **fields):
    """Writes a GGUF file with this vocabulary and returns the tokenizer.json that DRIVER makes from it."""
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
    for key, value in fields.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return json.loads(subprocess.run([driver, str(path)], check=True, stdout=subprocess.PIPE).stdout)


def gguf_kinds(driver, folder, made):
    llama = made["sentencepiece-bpe"]
    vocab = llama["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    types = [2 if t == "<unk>" else 3 if t in ("<s>", "</s>") else 6 if t in BYTES else 1 for t in tokens]
    tokens += [SPACE * 9, "<tool>"]
    types += [4, 4]
    scores = [0.0 if t != 1 else float(-i) for i, t in enumerate(types)]
    written = [t.replace(SPACE, " ") if kind == 4 else t for t, kind in zip(tokens, types)]
    for prefix in (True, False):
        name = f"gguf-llama-{'prefixed' if prefix else 'bare'}"
        content = convert_gguf(driver, folder, name, "llama", written, types, scores, bos_token_id=1, eos_token_id=2, unk_token_id=0,
                               add_space_prefix=prefix)
        ids = {t: i for i, t in enumerate(tokens)}
        assert content["model"]["vocab"] == ids
        assert content["model"]["merges"] == written_merges(ids, {t: s for t, s, kind in zip(tokens, scores, types) if kind not in (2, 3, 6)})
        if prefix:
            assert all(content[part] == llama[part] for part in ("normalizer", "pre_tokenizer", "decoder"))
        yield name, content
    made_unigram = made["unigram"]
    pieces = made_unigram["model"]["vocab"]
    tokens = [piece for piece, _ in pieces]
    types = [2 if t == "<unk>" else 3 if t in ("<s>", "</s>") else 6 if t in BYTES else 1 for t in tokens]
    for name, kept, prefix, squeezed, mapped in (("bytes", 7, True, True, True), ("plain", 6, False, False, False)):
        first = {t: i for i, t in reversed(list(enumerate(tokens)))}  # the trainer may also learn a special token as a piece
        which = [i for i, kind in enumerate(types) if kind < kept and first[tokens[i]] == i]
        scores = [struct.unpack("f", struct.pack("f", pieces[i][1]))[0] for i in which]
        content = convert_gguf(driver, folder, f"gguf-t5-{name}", "t5", [tokens[i] for i in which], [types[i] for i in which], scores,
                               bos_token_id=1, eos_token_id=2, unk_token_id=0, add_space_prefix=prefix, remove_extra_whitespaces=squeezed,
                               precompiled_charsmap=base64.b64decode(charsmap()) if mapped else b"")
        assert content["model"]["vocab"] == [[tokens[i], score] for i, score in zip(which, scores)]
        assert content["normalizer"] == ({"type": "Precompiled", "precompiled_charsmap": charsmap()} if mapped else None)
        yield f"gguf-t5-{name}", content
    bert = made["wordpiece"]
    vocab = bert["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    types = [3 if t[0] == "[" and t[-1] == "]" and len(t) > 2 else 1 for t in tokens]
    written = [t if kind == 3 else t[2:] if t.startswith("##") else SPACE + t for t, kind in zip(tokens, types)]
    content = convert_gguf(driver, folder, "gguf-bert", "bert", written, types, None, unk_token_id=vocab["[UNK]"], sep_token_id=vocab["[SEP]"],
                           bos_token_id=vocab["[CLS]"])
    assert content["model"] == bert["model"]
    assert all(content[part] == bert[part] for part in ("normalizer", "pre_tokenizer", "decoder"))
    yield "gguf-bert", content


KINDS = {"byte-bpe": byte_bpe, "sentencepiece": sentencepiece_bpe, "unigram": unigram, "wordpiece": wordpiece}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--training", type=int, default=0, help="train with about this many lines (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="compare only tokenizers whose name contains this")
    parser.add_argument("--keep", help="leave the tokenizers in this folder")
    args = parser.parse_args()
    lines, training = tokenizer_lines.make_lines(args.lines, args.seed), corpus(args.seed, args.training)
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.keep or temporary)
        folder.mkdir(exist_ok=True)
        made = {name: content for kind, make in KINDS.items() if not args.only or kind in args.only or "gguf" in args.only
                for name, content in make(training)}
        if not args.only or "gguf" in args.only:
            made.update(gguf_kinds(args.driver, folder, made))
        for name, content in made.items():
            if args.only not in name:
                continue
            path = folder / f"{name}.json"
            path.write_text(json.dumps(content, ensure_ascii=False))
            whole = name in ("byte-bpe", "sentencepiece-bpe", "unigram", "wordpiece")
            some = lines if whole else lines[:15] + lines[15::5]
            if "precompiled" in name:
                some = some + grapheme_lines(len(some), args.seed)
            wrong += tokenizer_lines.compare(args.driver, name, path, some, args.seed)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
