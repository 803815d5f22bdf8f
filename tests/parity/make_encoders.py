#!/usr/bin/env python3
"""Makes the fixtures of tests/models/encoder_test.c and classifier_test.c and their goldens by Hugging Face.

  make_encoders.py [NAME...]   writes tests/fixtures/encoders/NAME (config, weights, pooling, golden.json) or, for classifier:NAME,
                               tests/fixtures/classifiers/NAME, which has a tokenizer; all of them without a NAME.
                               Needs torch, transformers and sentence-transformers.

A fixture is a random model of Hugging Face's own class. Weights come from numpy's generator with a fixed seed and are stored as bf16;
everything is computed in f32. A golden has texts as token ids and their embeddings; that of a classifier has pairs of texts, their token
ids and types, and their scores before and after sentence-transformers' activation.
"""
import json
import pathlib
import shutil
import sys

import numpy as np
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_fixtures import fill  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "encoders"
VOCAB = 320
SIZES = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
# Shorter and longer than a page, a group of pages and the local attention.
LENGTHS = [1, 2, 7, 15, 16, 17, 40, 130, 200]
LONG_LENGTHS = [513, 1500]  # more than a step of short texts has
LONGEST = 1500

# name: (model_type, fields, pooling, whether a Normalize module follows)
FIXTURES = {
    "bert": ("bert", dict(SIZES, max_position_embeddings=200, type_vocab_size=2), "mean", True),
    "bert-cls": ("bert", dict(SIZES, max_position_embeddings=200, hidden_act="relu", layer_norm_eps=1e-5), "cls", False),
    "distilbert": ("distilbert", dict(vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=200),
                   "mean", True),
    "eurobert": ("eurobert", dict(SIZES, num_key_value_heads=2, max_position_embeddings=LONGEST, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                  mask_token_id=3), "mean", True),
    "gemma3": ("gemma3_text", dict(SIZES, num_hidden_layers=6, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=16, sliding_window=12,
                                   use_bidirectional_attention=True, max_position_embeddings=LONGEST, pad_token_id=0, bos_token_id=1,
                                   eos_token_id=2), "mean", True),
    "gte": ("gte", dict(SIZES, max_position_embeddings=LONGEST, type_vocab_size=1, pad_token_id=0), "cls", True),
    # GTE's scaling is a larger base and, for all frequencies, what transformers calls linear.
    "gte-published": ("gte", dict(SIZES, max_position_embeddings=200, type_vocab_size=0, pad_token_id=0, rope_parameters=dict(
        rope_type="linear", rope_theta=20000.0 * 8, factor=8 ** (2 / 8))), "cls", True),
    "modernbert": ("modernbert", dict(SIZES, num_hidden_layers=4, max_position_embeddings=LONGEST, local_attention=12,
                                      global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                                      sep_token_id=2), "cls", True),
    "mpnet": ("mpnet", dict(SIZES, max_position_embeddings=515), "mean", True),
    "nomic_bert": ("nomic_bert", dict(SIZES, max_position_embeddings=LONGEST), "mean", True),
    "nomic_bert-published": ("nomic_bert", dict(SIZES, max_position_embeddings=200), "mean", False),
    "roberta": ("roberta", dict(SIZES, max_position_embeddings=202, type_vocab_size=1, pad_token_id=1), "max", True),
    "xlm-roberta": ("xlm-roberta", dict(SIZES, max_position_embeddings=202, type_vocab_size=1, pad_token_id=1), "lasttoken", True),
}
# The config of nomic-embed-text v1.5, which is for the code in its folder: names of GPT-2's config.
NOMIC = dict(activation_function="swiglu", architectures=["NomicBertModel"], attn_pdrop=0.0, bos_token_id=None, causal=False,
             dense_seq_output=True, embd_pdrop=0.0, eos_token_id=None, fused_bias_fc=True, fused_dropout_add_ln=True,
             initializer_range=0.02, layer_norm_epsilon=1e-12, max_trained_positions=2048, mlp_fc1_bias=False, mlp_fc2_bias=False,
             model_type="nomic_bert", n_embd=32, n_head=4, n_inner=40, n_layer=2, n_positions=200, pad_vocab_size_multiple=64,
             parallel_block=False, parallel_block_tied_norm=False, prenorm=False, qkv_proj_bias=False, reorder_and_upcast_attn=False,
             resid_pdrop=0.0, rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
             rotary_scaling_factor=None, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, torch_dtype="float32",
             type_vocab_size=2, use_cache=True, use_flash_attn=True, use_rms_norm=False, use_xentropy=True, vocab_size=VOCAB)
# The config of gte-base-en v1.5, in the same form.
GTE = dict(architectures=["NewModel"], attention_probs_dropout_prob=0.0, classifier_dropout=None, hidden_act="gelu", hidden_dropout_prob=0.1,
           hidden_size=32, initializer_range=0.02, intermediate_size=40, layer_norm_eps=1e-12, layer_norm_type="layer_norm",
           logn_attention_clip1=False, logn_attention_scale=False, max_position_embeddings=200, model_type="new", num_attention_heads=4,
           num_hidden_layers=2, pack_qkv=True, pad_token_id=0, position_embedding_type="rope", rope_scaling=dict(factor=8.0, type="ntk"),
           rope_theta=20000, torch_dtype="float32", type_vocab_size=0, unpad_inputs=False, use_memory_efficient_attention=False,
           vocab_size=VOCAB)
PUBLISHED = {"nomic_bert-published": NOMIC, "gte-published": GTE}
MODES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}


def texts(longest):
    rng = np.random.default_rng(7)
    lengths = LENGTHS + [n for n in LONG_LENGTHS if n <= longest]
    return [rng.integers(5, VOCAB, n).tolist() for n in lengths]  # no special token


def embed(model, ids, pooling, normalize):
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).last_hidden_state[0]
    vector = {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.max(0).values, "lasttoken": hidden[-1]}[pooling]
    return vector / vector.norm() if normalize else vector


def write_dense(folder, seed, before, after, act="linear.Identity", bias=False):
    """A module that multiplies by a random matrix."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    tensors = {"linear.weight": rng.standard_normal((after, before)) / before ** 0.5}
    if bias:
        tensors["linear.bias"] = rng.standard_normal(after) / 2
    safetensors.torch.save_file({name: torch.from_numpy(numbers).to(torch.bfloat16) for name, numbers in tensors.items()},
                                folder / "model.safetensors", metadata=dict(format="pt"))
    (folder / "config.json").write_text(json.dumps(dict(
        in_features=before, out_features=after, bias=bias, activation_function=f"torch.nn.modules.{act}"), indent=2) + "\n")


def write_modules(folder, width, pooling, normalize, dense=()):
    """|dense|: the widths of the layers after the pool, or (width, activation, whether it has a bias)."""
    dense = [layer if isinstance(layer, tuple) else (layer, "linear.Identity", False) for layer in dense]
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [(f"{i}_Dense", "Dense") for i in range(2, 2 + len(dense))]
    modules += [(f"{len(modules)}_Normalize", "Normalize")] * normalize
    for i, after in enumerate(dense):
        write_dense(folder / f"{i + 2}_Dense", i, dense[i - 1][0] if i else width, *after)
    (folder / "modules.json").write_text(json.dumps(
        [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}") for i, (path, kind) in enumerate(modules)],
        indent=2) + "\n")
    (folder / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{mode}": name == pooling for name, mode in MODES.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(dict(word_embedding_dimension=width, **flags), indent=2) + "\n")


# ---------------------------------------------------------------------------------------------------------------------------------------
# Classifiers

CLASSIFIERS = FOLDER.parent / "classifiers"
# name: (model_type, fields, tokenizer, labels, longest pair)
HEADS = {
    "bert": ("bert", dict(SIZES, max_position_embeddings=64, type_vocab_size=2), "wordpiece", 1, 48),
    "distilbert": ("distilbert", dict(vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=64),
                   "bert", 1, 64),
    "gte": ("gte", dict(SIZES, max_position_embeddings=64, type_vocab_size=1, pad_token_id=1), "unigram", 1, 60),
    # With two layers this random network is ill-conditioned: transformers' scores in f32 and f64 differ by 9.5e-6.
    "nomic_bert": ("nomic_bert", dict(SIZES, num_hidden_layers=1, max_position_embeddings=64), "wordpiece", 1, 56),
    "modernbert": ("modernbert", dict(SIZES, num_hidden_layers=3, max_position_embeddings=64, local_attention=12, pad_token_id=1,
                                      bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2, classifier_pooling="mean"),
                   "bpe", 1, 49),
    "mpnet": ("mpnet", dict(SIZES, max_position_embeddings=66), "unigram", 1, 60),
    "roberta": ("roberta", dict(SIZES, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1), "bpe", 3, 64),
    "xlm-roberta": ("xlm-roberta", dict(SIZES, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1), "unigram", 1, 64),
}
# The places where sentence-transformers looks for the activation.
ACTIVATIONS = {"xlm-roberta": ("config.json", dict(sentence_transformers=dict(activation_fn="torch.nn.modules.linear.Identity"))),
               "mpnet": ("config.json", dict(sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")),
               "distilbert": ("config_sentence_transformers.json", dict(activation_fn="torch.nn.modules.activation.Sigmoid"))}
SENTENCES = ["How many people live in Berlin?", "Berlin has a population of 3,520,031 registered inhabitants in an area of 891.82 square "
             "kilometers.", "New York City is famous for the Metropolitan Museum of Art.", "Wie viele Menschen leben in Berlin?",
             "The capital of Germany lies on the river Spree.", "what is a cross-encoder", "A cross-encoder reads a query and a document "
             "together; a bi-encoder reads each of them alone.", "Größe, naïve café: 東京 has many people.", "a", "!?"]
LONG = " ".join(SENTENCES)
PAIRS = ([(SENTENCES[0], text) for text in SENTENCES[1:]] + [(SENTENCES[5], SENTENCES[6]), ("a", LONG), (LONG, "b"), (LONG, LONG + " end"),
         (LONG[:120], LONG[:150]), (LONG[:150], LONG[:120]), ("", SENTENCES[1]), (SENTENCES[1], "")])


def make_tokenizer(kind, longest):
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"] if kind in ("wordpiece", "bert") else ["<s>", "<pad>", "</s>", "<unk>"]
    start, pad, end, unknown = special
    if kind in ("wordpiece", "bert"):
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False)
    elif kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=special, unk_token=unknown, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    if kind == "bert":
        tokenizer.post_processor = processors.BertProcessing((end, 2), (start, 0))
    elif kind == "bpe":
        tokenizer.post_processor = processors.RobertaProcessing((end, 2), (start, 0), add_prefix_space=False)
    else:
        pair = f"{start} $A {end} $B:1 {end}:1" if kind == "wordpiece" else f"{start} $A {end} {end} $B {end}"
        tokenizer.post_processor = processors.TemplateProcessing(f"{start} $A {end}", pair, [(start, 0), (end, 2)])
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if kind == "wordpiece" else ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token=start, pad_token=pad, sep_token=end, unk_token=unknown,
                                                model_max_length=longest, model_input_names=inputs)


def add_fields(path, fields):
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(dict(old, **fields), indent=2) + "\n")


def numbers(values):
    return [float(f"{v:.9g}") for v in np.asarray(values, dtype=np.float32).reshape(-1).tolist()]


def score(model, tokenizer, encoder, first, second, longest):
    inputs = tokenizer([(first, second)], truncation="longest_first", max_length=longest, return_tensors="pt", return_token_type_ids=True)
    types = inputs["token_type_ids"] if "token_type_ids" in tokenizer.model_input_names else inputs.pop("token_type_ids") * 0
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    return dict(first=first, second=second, ids=inputs["input_ids"][0].tolist(), types=types[0].tolist(), logits=numbers(logits),
                scores=numbers(encoder.predict([(first, second)], show_progress_bar=False)))


def make_classifier(name):
    from sentence_transformers import CrossEncoder
    kind, fields, tokenizer_kind, labels, longest = HEADS[name]
    tokenizer = make_tokenizer(tokenizer_kind, longest)
    fields = dict(fields, vocab_size=len(tokenizer), num_labels=labels)
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_config(transformers.AutoConfig.for_model(kind, **fields),
                                                                        attn_implementation="eager").to(torch.float32).eval()
    fill(model, 1)
    folder = CLASSIFIERS / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if name in ACTIVATIONS:
        add_fields(folder / ACTIVATIONS[name][0], ACTIVATIONS[name][1])
    # The first model has buffers in bf16 now.
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    encoder = CrossEncoder(str(folder), device="cpu", model_kwargs=dict(dtype=torch.float32))
    results = [score(model, tokenizer, encoder, first, second, longest) for first, second in PAIRS]
    golden = dict(made_by="tests/parity/make_encoders.py", transformers=transformers.__version__, torch=torch.__version__, dtype="float32",
                  labels=labels, results=results)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print("classifier", name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()), "bytes",
          [round(r["scores"][0], 4) for r in results])


# ---------------------------------------------------------------------------------------------------------------------------------------
# Decoders as rerankers

# The template of Qwen3-Reranker with a shorter system message: messages of the roles "query" and "document", and "system" for a task.
TEMPLATE = (
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("retrieve passages") -%}\n'
    '{%- set query_text = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document_text = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    '<|im_start|>system\nJudge the Document: "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {{ instruction }}\n'
    '<Query>: {{ query_text }}\n<Document>: {{ document_text }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
    '{% if add_generation_prompt %}answer: {% endif %}\n')
RERANKER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=40,
                max_position_embeddings=400, bos_token_id=None, eos_token_id=0, pad_token_id=0)
# name: (fields, whether the score has a row of its own, longest pair, the default instruction)
RERANKERS = {
    "qwen3": (dict(RERANKER, tie_word_embeddings=True), False, 220, None),
    "qwen3-prompt": (dict(RERANKER, tie_word_embeddings=False), False, 400, "Given a question, find its answer"),
    "qwen3-class": (dict(RERANKER, tie_word_embeddings=True, num_labels=1), True, 400, None),
}


def make_judge_tokenizer(longest):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.train_from_iterator(SENTENCES + ["yes no"] + ["yes", "no"] * 20, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=special, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], pad_token=special[0], padding_side="left",
                                                model_max_length=longest, chat_template=TEMPLATE)


def write_score_modules(folder, tokenizer, own_row, prompt):
    prefix = "sentence_transformers"
    modules = [("", f"{prefix}.base.modules.transformer.Transformer")]
    task = "sequence-classification" if own_row else "text-generation"
    method, output = ("logits", "scores") if own_row else ("logits", "causal_logits")
    way = dict(method="forward", method_output_name=method)
    add_fields(folder / "sentence_bert_config.json", dict(
        transformer_task=task, modality_config=dict(text=way, message=dict(way, format="flat")), module_output_name=output,
        **({} if own_row else dict(processing_kwargs=dict(chat_template=dict(add_generation_prompt=prompt is not None))))))
    if not own_row:
        modules.append(("1_LogitScore", f"{prefix}.cross_encoder.modules.logit_score.LogitScore"))
        (folder / "1_LogitScore").mkdir()
        yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
        assert yes is not None and no is not None
        add_fields(folder / "1_LogitScore" / "config.json", dict(true_token_id=yes, false_token_id=None if prompt else no))
    (folder / "modules.json").write_text(json.dumps(
        [dict(idx=i, name=str(i), path=path, type=kind) for i, (path, kind) in enumerate(modules)], indent=2) + "\n")
    add_fields(folder / "config_sentence_transformers.json", dict(
        model_type="CrossEncoder", prompts=dict(answer=prompt) if prompt else {}, default_prompt_name="answer" if prompt else None))


def make_reranker(name):
    from sentence_transformers import CrossEncoder
    fields, own_row, longest, prompt = RERANKERS[name]
    tokenizer = make_judge_tokenizer(longest)
    config = transformers.AutoConfig.for_model("qwen3", **dict(fields, vocab_size=len(tokenizer)))
    torch.manual_seed(1)
    kind = transformers.AutoModelForSequenceClassification if own_row else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    fill(model, 1)
    folder = CLASSIFIERS / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_score_modules(folder, tokenizer, own_row, prompt)
    encoder = CrossEncoder(str(folder), device="cpu", model_kwargs=dict(dtype=torch.float32))
    results = []
    for first, second in PAIRS:
        ids = encoder[0].preprocess([(first, second)], prompt=prompt)["input_ids"][0].tolist()
        results.append(dict(first=first, second=second, ids=ids, types=[0] * len(ids),
                            logits=numbers(encoder.predict([(first, second)], activation_fn=torch.nn.Identity(), show_progress_bar=False)),
                            scores=numbers(encoder.predict([(first, second)], show_progress_bar=False))))
    golden = dict(made_by="tests/parity/make_encoders.py", transformers=transformers.__version__, torch=torch.__version__, dtype="float32",
                  labels=1, results=results)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print("reranker", name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()), "bytes",
          [(len(r["ids"]), round(r["scores"][0], 4)) for r in results])


def main():
    for name in sys.argv[1:] or list(FIXTURES) + ["classifier:" + head for head in [*HEADS, *RERANKERS]]:
        if name.startswith("classifier:"):
            name = name.split(":")[1]
            make_reranker(name) if name in RERANKERS else make_classifier(name)
            continue
        kind, fields, pooling, normalize = FIXTURES[name]
        longest = fields["max_position_embeddings"] - 2 * (kind == "mpnet")  # MPNet's begin after the padding
        config = transformers.AutoConfig.for_model(kind, **fields)
        torch.manual_seed(1)
        model = transformers.AutoModel.from_config(config, attn_implementation="eager").to(torch.float32).eval()
        fill(model, 1)
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        results = [dict(ids=ids, embedding=[float(f"{v:.9g}") for v in embed(model, ids, pooling, normalize).tolist()])
                   for ids in texts(longest)]
        model.to(torch.bfloat16).save_pretrained(folder)
        if name in PUBLISHED:
            (folder / "config.json").write_text(json.dumps(PUBLISHED[name], indent=2) + "\n")
        write_modules(folder, 32, pooling, normalize)
        golden = dict(made_by="tests/parity/make_encoders.py", transformers=transformers.__version__, torch=torch.__version__,
                      dtype="float32", pooling=pooling, normalize=normalize, results=results)
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        print(name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()), "bytes")


if __name__ == "__main__":
    main()
