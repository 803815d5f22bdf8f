"""Real clients of embeddings against `mlxcel serve` with all-MiniLM-L6-v2: openai, langchain-openai, llama-index, ollama, huggingface-hub.

    python3 tests/clients/embeddings_test.py MLXCEL MODEL [CASE...]

Each client embeds a small corpus and some queries. The ranking must be that of sentence-transformers (tests/parity/retrieval_goldens.py).
The packages of requirements.txt must be importable; a case that a missing package prevents is reported as skipped.
"""
import base64
import importlib
import json
import math
import os
import struct
import sys
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from server import Cases  # noqa: E402

with open(os.path.join(HERE, "..", "goldens", "retrieval-minilm.json"), encoding="utf-8") as golden:
    GOLDEN = json.load(golden)
DOCUMENTS, RESULTS = GOLDEN["documents"], GOLDEN["results"]
QUERIES = [result["query"] for result in RESULTS]
SIZE = 384
CASES = Cases()
case = CASES.case


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


def check_ranking(documents, queries):
    """Compares the vectors of DOCUMENTS and QUERIES with the golden."""
    assert len(documents) == len(DOCUMENTS) and len(queries) == len(QUERIES)
    for vector, result in zip(queries, RESULTS):
        scores = [cosine(vector, document) for document in documents]
        ranking = sorted(range(len(scores)), key=lambda index: -scores[index])
        assert ranking == result["ranking"], (result["query"], ranking, result["ranking"])
        assert max(abs(a - b) for a, b in zip(scores, result["scores"])) < 1e-5


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def openai_client(server):
    return importlib.import_module("openai").OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)


@case("openai")
def openai_ranks_as_sentence_transformers(server):
    client = openai_client(server)
    embed = lambda texts, **options: [item.embedding for item in client.embeddings.create(model="all-MiniLM-L6-v2", input=texts, **options).data]
    check_ranking(embed(DOCUMENTS), embed(QUERIES))  # the client asks for base64
    check_ranking(embed(DOCUMENTS, encoding_format="float"), embed(QUERIES, encoding_format="float"))
    raw = client.embeddings.create(model="all-MiniLM-L6-v2", input=QUERIES[0], encoding_format="base64").data[0].embedding
    assert list(struct.unpack(f"<{SIZE}f", base64.b64decode(raw))) == embed([QUERIES[0]])[0]
    short = embed(QUERIES, dimensions=128)
    assert all(len(vector) == 128 and abs(sum(x * x for x in vector) - 1) < 1e-5 for vector in short)


@case("openai")
def openai_sees_an_error_for_a_long_text_and_for_a_chat(server):
    openai, client = importlib.import_module("openai"), openai_client(server)
    long = ["short", "word " * 2000]
    try:
        client.embeddings.create(model="any", input=long)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and error.param == "input[1]", error
    else:
        raise AssertionError("a long text was accepted")
    cut = client.embeddings.create(model="any", input=long, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 3 + 256, cut.usage
    try:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
    except openai.BadRequestError as error:
        assert "encoder" in error.message, error
    else:
        raise AssertionError("an encoder answered a chat")


@case("langchain_openai")
def langchain_openai_ranks_as_sentence_transformers(server):
    # Without check_embedding_ctx_length=False it sends the token ids of OpenAI's tokenizer.
    embeddings = importlib.import_module("langchain_openai").OpenAIEmbeddings(
        base_url=server.url + "/v1", api_key="none", model="all-MiniLM-L6-v2", check_embedding_ctx_length=False, max_retries=0)
    check_ranking(embeddings.embed_documents(DOCUMENTS), [embeddings.embed_query(query) for query in QUERIES])


@case("llama_index.embeddings.openai")
def llama_index_ranks_as_sentence_transformers(server):
    embeddings = importlib.import_module("llama_index.embeddings.openai").OpenAIEmbedding(
        api_base=server.url + "/v1", api_key="none", model_name="all-MiniLM-L6-v2", max_retries=0, embed_batch_size=5)
    check_ranking(embeddings.get_text_embedding_batch(DOCUMENTS), [embeddings.get_query_embedding(query) for query in QUERIES])


@case("ollama")
def ollama_ranks_as_sentence_transformers(server):
    client = importlib.import_module("ollama").Client(host=server.url, timeout=300)
    answer = client.embed(model="all-MiniLM-L6-v2", input=DOCUMENTS)
    check_ranking(answer.embeddings, [client.embeddings(model="all-MiniLM-L6-v2", prompt=query).embedding for query in QUERIES])
    assert answer.prompt_eval_count == sum(len(post(server, "/tokenize", {"prompt": text})["tokens"]) for text in DOCUMENTS)
    assert "embedding" in client.show("all-MiniLM-L6-v2").capabilities
    assert len(client.embed(model="all-MiniLM-L6-v2", input="word " * 2000).embeddings) == 1
    try:
        client.embed(model="all-MiniLM-L6-v2", input="word " * 2000, truncate=False)
    except importlib.import_module("ollama").ResponseError as error:
        assert error.status_code == 400, error
    else:
        raise AssertionError("a long text was accepted")


@case("huggingface_hub", "numpy")
def text_embeddings_inference_ranks_as_sentence_transformers(server):
    check_ranking(post(server, "/embed", {"inputs": DOCUMENTS}), [post(server, "/", {"inputs": query})[0] for query in QUERIES])
    with urllib.request.urlopen(server.url + "/info") as response:
        info = json.load(response)
    assert info["model_id"] == "all-MiniLM-L6-v2" and info["max_input_length"] == 256 and info["model_type"] == {"embedding": {"pooling": "mean"}}, info
    client = importlib.import_module("huggingface_hub").InferenceClient(server.url)
    check_ranking(client.feature_extraction(DOCUMENTS, normalize=True).tolist(), [client.feature_extraction(query)[0].tolist() for query in QUERIES])


if __name__ == "__main__":
    CASES.main()
