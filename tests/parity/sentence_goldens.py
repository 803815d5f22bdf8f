#!/usr/bin/env python3
"""Writes the golden of tests/cli/embedding_verb_test.c: embeddings of texts by sentence-transformers, in f32 on the CPU.

  sentence_goldens.py MODEL OUT.json   MODEL is a sentence-transformers directory. Needs sentence-transformers.
"""
import json
import sys

import sentence_transformers
import torch
import transformers

TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "a",
    "Ünïcödé: naïve café, Straße, ЁЛКА, 東京タワー, 서울, مرحبا, 👩‍👩‍👧 and \u200b nothing",
    "def embed(texts: list[str]) -> np.ndarray:\n\treturn model.encode(texts)  # [n, 384]",
    "   blanks   around\t words   ",
    "1234567890 3.14159 -42 1e-9 0xdeadbeef",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "[CLS] is spelled here, and [SEP], [MASK] and [PAD] too",
    "What is the capital of France?",
    "Paris is the capital and the largest city of France.",
    "A sentence of words that repeat. " * 12,
    "The limit of this model is 256 tokens, so the end of this text is cut off. " * 40,
]


def main():
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu").to(torch.float32)
    vectors = [model.encode(text, convert_to_numpy=True) for text in TEXTS]  # alone: no padding
    results = [dict(text=text, embedding=[float(f"{number:.9g}") for number in vector]) for text, vector in zip(TEXTS, vectors)]
    golden = dict(made_by="tests/parity/sentence_goldens.py", sentence_transformers=sentence_transformers.__version__,
                  transformers=transformers.__version__, torch=torch.__version__, results=results)
    with open(sys.argv[2], "w") as file:
        file.write(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
