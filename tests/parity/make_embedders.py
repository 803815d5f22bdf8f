#!/usr/bin/env python3
"""Makes the fixtures of tests/cli/embedding_models_test.c: sentence-transformers directories with a random model, and their goldens.

  make_embedders.py [--llama.cpp DIR] [NAME...]   writes tests/fixtures/embedders/NAME, or for reranker:NAME, with llama.cpp's source,
                                                  tests/fixtures/rerankers/NAME of classifier_test; all of them without a NAME.
                                                  Needs torch, transformers and sentence-transformers.

A golden has texts, the name of a prompt or null, and the embeddings that sentence-transformers computes from the directory in f32, each text alone.
With llama.cpp's source, whose convert_hf_to_gguf.py is run (it needs gguf and sentencepiece), model.gguf is the same model as a GGUF file; without
it the old file is kept.
"""
import argparse
import json
import pathlib
import shutil
import sys

import sentence_transformers
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_encoders import NOMIC, write_modules  # noqa: E402
from make_fixtures import fill  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "fixtures" / "embedders"
TEXTS = [
    "a",
    "The weather is lovely today.",
    "def embed(texts: list[str]) -> np.ndarray:\n\treturn model.encode(texts)  # [n, 32]",
    "Ünïcödé: naïve café, ﬁne Ｗ, 東京タワー, 👩‍👩‍👧",
    "[SEP] and </s> are spelled   here, ##a ▁b too",
    "A text that is longer than a step. " * 45,
]
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def byte_level(folder, template):
    """The tokenizer of tiny-llama with a template of its special tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(ROOT / "fixtures" / "tiny-llama" / "tokenizer.json"))
    set_template(tokenizer, template)
    return tokenizer, dict(eos_token="<|endoftext|>", pad_token="<|endoftext|>", padding_side="left")


def set_template(tokenizer, template):
    special = [(part, tokenizer.token_to_id(part)) for part in template.split() if part != "$A"]
    second = template.split("$A")[1].strip()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=template, pair=f"{template} $B:1 {second}:1", special_tokens=special)


def lines():
    return (ROOT.parent / "LICENSE").read_text().splitlines() + TEXTS


def wordpiece(lowercase):
    def make(folder, template):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = tokenizers.decoders.WordPiece()
        tokenizer.train_from_iterator(lines(), trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False))
        set_template(tokenizer, template)
        return tokenizer, dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]",
                               tokenizer_class="BertTokenizer", do_lower_case=lowercase)
    return make


def modern_words(folder, template):
    """Byte-level BPE with ModernBERT's special tokens."""
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    set_template(tokenizer, template)
    return tokenizer, dict(cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]")


def gpt2_words(folder, template):
    """Byte-level BPE with RoBERTa's special tokens."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>",
                           mask_token="<mask>")


def unigram(folder, template):
    """XLM-RoBERTa's tokenizer of a SentencePiece model, which llama.cpp's converter reads."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    rules = folder / "rules.tsv"
    rules.write_text("FB01\t66 69\nFF37\t57\n9\t20\nA\t20\n65 301\tE9\n")
    (folder / "lines.txt").write_text("\n".join(line for line in lines() if line.strip()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"), model_prefix=str(folder / "sentencepiece.bpe"), vocab_size=398, model_type="unigram",
        normalization_rule_tsv=str(rules), character_coverage=1.0, minloglevel=2, num_threads=1, hard_vocab_limit=False)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((folder / "sentencepiece.bpe.model").read_bytes())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces[3:]]
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + pieces + [("<mask>", 0.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    set_template(tokenizer, template)
    for name in ("rules.tsv", "lines.txt", "sentencepiece.bpe.vocab"):
        (folder / name).unlink()
    return tokenizer, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>",
                           mask_token="<mask>")


DECODER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, bos_token_id=1,
               eos_token_id=0, pad_token_id=0)
LONG = dict(DECODER, max_position_embeddings=4096)
ENCODER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
# name: model_type, fields; tokenizer and the special tokens around a text; length: of the tokenizer; limit: max_seq_length; pooling;
# texts: the first so many; pre: what llama.cpp's converter calls the pre-tokenizer, None: no model.gguf
FIXTURES = {
    "qwen3": dict(type="qwen3", fields=dict(LONG, head_dim=16, tie_word_embeddings=True), tokenizer=byte_level,
                  template="$A <|endoftext|>", length=4096, pooling="lasttoken", pre="qwen2"),
    "mistral": dict(type="mistral", fields=dict(LONG, head_dim=8, sliding_window=None, tie_word_embeddings=False), tokenizer=byte_level,
                    template="<|im_start|> $A <|endoftext|>", length=4096, limit=600, pooling="lasttoken"),
    "bert": dict(type="bert", fields=dict(ENCODER, max_position_embeddings=128), tokenizer=wordpiece(True), template="[CLS] $A [SEP]",
                 length=128, pooling="mean", pre="bert-bge"),
    "bert-cased": dict(type="bert", fields=dict(ENCODER, max_position_embeddings=128, type_vocab_size=1), tokenizer=wordpiece(False),
                       template="[CLS] $A [SEP]", length=128, pooling="cls", pre="bert-bge"),
    "bert-dense": dict(type="bert", fields=dict(ENCODER, max_position_embeddings=128), tokenizer=wordpiece(True), template="[CLS] $A [SEP]",
                       length=128, pooling="cls", dense=((48, "activation.Tanh", True), (40, "activation.GELU", True))),
    "embeddinggemma": dict(
        type="gemma3_text", fields=dict(DECODER, num_hidden_layers=6, num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=8,
                                        sliding_window=24, use_bidirectional_attention=True, max_position_embeddings=256),
        tokenizer=byte_level, template="<|im_start|> $A <|endoftext|>", length=256, pooling="mean", dense=(64, 48), pre="qwen2"),
    "distilbert": dict(type="distilbert", fields=dict(dim=32, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=128),
                       tokenizer=wordpiece(True), template="[CLS] $A [SEP]", length=128, pooling="mean", pre="bert-bge"),
    "eurobert": dict(type="eurobert", fields=dict(DECODER, mask_token_id=3, max_position_embeddings=256, tie_word_embeddings=False),
                     tokenizer=byte_level, template="<|im_start|> $A <|endoftext|>", length=256, pooling="mean", pre="qwen2"),
    "nomic_bert": dict(type="nomic_bert", fields=dict(ENCODER, max_position_embeddings=8192), tokenizer=wordpiece(True),
                       template="[CLS] $A [SEP]", length=8192, limit=8192, pooling="mean", texts=5, pre="bert-bge"),
    "modernbert": dict(type="modernbert", fields=dict(ENCODER, num_hidden_layers=4, max_position_embeddings=128, local_attention=12,
                                                      global_attn_every_n_layers=3, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                                                      cls_token_id=0, sep_token_id=2),
                       tokenizer=modern_words, template="[CLS] $A [SEP]", length=128, pooling="cls", pre="modern-bert"),
    "roberta": dict(type="roberta", fields=dict(ENCODER, max_position_embeddings=130, type_vocab_size=1, pad_token_id=1),
                    tokenizer=gpt2_words, template="", length=128, pooling="mean", pre="roberta-bpe"),
    "xlm-roberta": dict(type="xlm-roberta", fields=dict(ENCODER, max_position_embeddings=130, type_vocab_size=1, pad_token_id=1),
                        tokenizer=unigram, template="<s> $A </s>", length=128, pooling="cls", pre="default"),
}


def write_settings(folder, fixture):
    write_modules(folder, 32, fixture["pooling"], True, fixture.get("dense", ()))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(
        dict(prompts=dict(query=QUERY, document=""), default_prompt_name=None, similarity_fn_name="cosine"), indent=2) + "\n")
    if "limit" in fixture:
        (folder / "sentence_bert_config.json").write_text(
            json.dumps(dict(max_seq_length=fixture["limit"], do_lower_case=False), indent=2) + "\n")


def write_golden(folder, texts):
    embedder = sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs=dict(dtype=torch.float32))
    results = [dict(text=text, prompt=prompt, tokens=int(embedder.preprocess([(QUERY if prompt else "") + text])["input_ids"].shape[1]),
                    embedding=[float(f"{v:.9g}") for v in embedder.encode(text, prompt_name=prompt)])
               for prompt in (None, "query") for text in texts]
    golden = dict(made_by="tests/parity/make_embedders.py", sentence_transformers=sentence_transformers.__version__,
                  transformers=transformers.__version__, torch=torch.__version__, results=results)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    return [result["tokens"] for result in results]


def load_fields(folder, *_, **__):
    """The fields of a config, for the converter. transformers' class of nomic_bert does not read the names of the published config, and the
    converter refuses how EuroBERT pools for a classifier."""
    fields = json.loads((folder / "config.json").read_text())
    return {name: value for name, value in fields.items() if (name, value) != ("classifier_pooling", "late")}


def convert(llama, folder, pre):
    """Runs llama.cpp's converter. It knows a pre-tokenizer by the tokens of a text, which a tiny vocabulary cannot have."""
    if str(llama) not in sys.path:
        sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    import convert_hf_to_gguf
    from conversion.base import ModelBase, TextModel
    TextModel.get_vocab_base_pre = lambda model, tokenizer: pre
    ModelBase.load_hparams = staticmethod(load_fields)
    arguments, sys.argv = sys.argv, ["convert_hf_to_gguf.py", str(folder), "--outtype", "bf16", "--outfile", str(folder / "model.gguf"),
                                     "--sentence-transformers-dense-modules"]
    convert_hf_to_gguf.main()
    sys.argv = arguments


def make(name, llama):
    fixture, folder = FIXTURES[name], FOLDER / name
    old = (folder / "model.gguf").read_bytes() if (folder / "model.gguf").exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer, special = fixture["tokenizer"](folder, fixture["template"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=fixture["length"], **special).save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(fixture["type"], vocab_size=tokenizer.get_vocab_size(), **fixture["fields"])
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    fill(model, 1)
    model.to(torch.bfloat16).save_pretrained(folder)  # the base model: no head, no "model." before names
    write_settings(folder, fixture)
    counts = write_golden(folder, TEXTS[:fixture.get("texts")])
    if fixture["type"] == "nomic_bert":
        (folder / "config.json").write_text(json.dumps(dict(NOMIC, vocab_size=tokenizer.get_vocab_size(), n_positions=8192), indent=2) + "\n")
    if llama and "pre" in fixture:
        convert(llama, folder, fixture["pre"])
    elif old:
        (folder / "model.gguf").write_bytes(old)
    for path in folder.glob("sentencepiece.bpe.model"):
        path.unlink()
    print(name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()), "bytes", counts)


# ---------------------------------------------------------------------------------------------------------------------------------------
# Rerankers as GGUF files

RERANKERS = {
    "qwen3": dict(type="qwen3", fields=dict(LONG, head_dim=16, tie_word_embeddings=True), tokenizer=byte_level, template="$A <|endoftext|>",
                  pre="qwen2", length=1000),
    "qwen3-untied": dict(type="qwen3", fields=dict(LONG, head_dim=16, tie_word_embeddings=False), tokenizer=byte_level,
                         template="$A <|endoftext|>", pre="qwen2", length=1000),
    "roberta": dict(type="roberta", fields=dict(ENCODER, max_position_embeddings=130, type_vocab_size=1, pad_token_id=1, num_labels=1),
                    tokenizer=gpt2_words, template="", length=128, pre="roberta-bpe"),
    "xlm-roberta": dict(type="xlm-roberta", fields=dict(ENCODER, max_position_embeddings=130, type_vocab_size=1, pad_token_id=1,
                                                        num_labels=1), tokenizer=unigram, template="<s> $A </s>", length=128, pre="default"),
}
QWEN_TEMPLATE = (
    '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer '
    'can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the '
    'query\n<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    '<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>\n'
    '<|im_start|>assistant\n<think>\n\n</think>\n\n\n')


def with_answers(tokenizer):
    """|tokenizer| with the tokens "yes" and "no", which its BPE joins."""
    fields = json.loads(tokenizer.to_str())
    vocabulary, merges = fields["model"]["vocab"], fields["model"]["merges"]
    for left, right in (("y", "e"), ("ye", "s"), ("n", "o")):
        if left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append([left, right])
    return tokenizers.Tokenizer.from_str(json.dumps(fields))


def make_reranker(name, llama):
    import tempfile
    from make_encoders import PAIRS, numbers
    fixture, folder = RERANKERS[name], ROOT / "fixtures" / "rerankers" / name
    is_judge = fixture["type"] == "qwen3"
    with tempfile.TemporaryDirectory(suffix="-qwen3-reranker" if is_judge else "") as place:
        place = pathlib.Path(place)
        tokenizer, special = fixture["tokenizer"](place, fixture["template"])
        if is_judge:
            tokenizer, special = with_answers(tokenizer), dict(special, chat_template=QWEN_TEMPLATE)
        if fixture["tokenizer"] is unigram:
            tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=fixture["length"], **special).save_pretrained(place)
        config = transformers.AutoConfig.for_model(fixture["type"], vocab_size=tokenizer.get_vocab_size(), **fixture["fields"])
        torch.manual_seed(1)
        kind = transformers.AutoModelForCausalLM if is_judge else transformers.AutoModelForSequenceClassification
        model = kind.from_config(config, attn_implementation="eager").to(torch.float32).eval()
        fill(model, 1)
        model.to(torch.bfloat16).save_pretrained(place)
        encoder = sentence_transformers.CrossEncoder(str(place), device="cpu", model_kwargs=dict(dtype=torch.float32))
        results = [dict(first=first, second=second, ids=ids, types=[0] * len(ids),
                        logits=numbers(encoder.predict([(first, second)], activation_fn=torch.nn.Identity(), show_progress_bar=False)),
                        scores=numbers(encoder.predict([(first, second)], show_progress_bar=False)))
                   for first, second in PAIRS for ids in [encoder[0].preprocess([(first, second)])["input_ids"][0].tolist()]]
        convert(llama, place, fixture["pre"])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(place / "model.gguf", folder)
    (folder / "golden.json").write_text(json.dumps(dict(
        made_by="tests/parity/make_embedders.py", sentence_transformers=sentence_transformers.__version__,
        transformers=transformers.__version__, torch=torch.__version__, labels=1, results=results)) + "\n")
    print("reranker", name, sum(f.stat().st_size for f in folder.iterdir()), "bytes", [(len(r["ids"]), r["scores"][0]) for r in results])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama.cpp", dest="llama", type=pathlib.Path, help="llama.cpp's source: write model.gguf too")
    parser.add_argument("names", nargs="*", default=[*FIXTURES, *(f"reranker:{name}" for name in RERANKERS)])
    arguments = parser.parse_args()
    for name in arguments.names:
        if not name.startswith("reranker:"):
            make(name, arguments.llama)
        elif arguments.llama:
            make_reranker(name.split(":")[1], arguments.llama)


if __name__ == "__main__":
    main()
