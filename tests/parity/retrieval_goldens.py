#!/usr/bin/env python3
"""Writes the golden of tests/clients/embeddings_test.py: how sentence-transformers ranks a small corpus for some queries, in f32 on the CPU.

  retrieval_goldens.py MODEL OUT.json   MODEL is a sentence-transformers directory. Needs sentence-transformers.
"""
import json
import sys

import sentence_transformers
import torch

DOCUMENTS = [
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar and oxygen inside the leaves of plants.",
    "The Great Barrier Reef off the coast of Australia is the largest coral reef system in the world.",
    "A hash table stores pairs of keys and values, and finds the value of a key in constant time on average.",
    "To bake bread, mix flour, water, salt and yeast, let the dough rise, and bake it until the crust is brown.",
    "The French Revolution began in 1789 with the storming of the Bastille in Paris.",
    "Vaccines train the immune system to recognise a virus before an infection happens.",
    "The James Webb telescope observes infrared light from the first galaxies of the universe.",
    "A bicycle chain should be cleaned and oiled regularly, or it wears out the sprockets.",
    "Interest rates rise when a central bank wants to slow down inflation.",
    "Emperor penguins keep their eggs warm on their feet through the Antarctic winter.",
    "In chess, a fork is a move that attacks two pieces of the opponent at the same time.",
    "Garbage collection frees the memory of objects that a program can no longer reach.",
]
QUERIES = [
    "How do plants make their food?",
    "Which data structure looks up a key quickly?",
    "What happened in Paris in the eighteenth century?",
    "How does inflation influence the price of loans?",
    "animals that live in the cold",
    "automatic memory management in programming languages",
]
LEAST_GAP = 1e-5  # between two scores of a ranking: more than rounding makes


def main():
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu").to(torch.float32)
    documents, queries = (model.encode(texts, convert_to_tensor=True) for texts in (DOCUMENTS, QUERIES))
    scores = sentence_transformers.util.cos_sim(queries, documents).tolist()
    rankings = [sorted(range(len(row)), key=lambda index: -row[index]) for row in scores]
    for row, ranking in zip(scores, rankings):
        assert all(row[a] - row[b] > LEAST_GAP for a, b in zip(ranking, ranking[1:])), "two documents rank alike: change the texts"
    golden = dict(made_by="tests/parity/retrieval_goldens.py", sentence_transformers=sentence_transformers.__version__, documents=DOCUMENTS,
                  results=[dict(query=query, ranking=ranking, scores=[round(score, 7) for score in row]) for query, ranking, row in zip(QUERIES, rankings, scores)])
    with open(sys.argv[2], "w") as file:
        file.write(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
