#!/usr/bin/env python3
"""The Python module with the library of this build: results, batches, tool calls, asyncio, threads, and the examples of the documentation.

    tests/python/python_test.py BUILD [CASE...]

The package is made of python/mlxcel and of the declarations that python/abi.py reads from the headers. tests/release/packages_test.py tries the wheel.
"""
import asyncio
import ctypes
import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest
import unittest.mock
import urllib.request

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv.pop(1))
FIXTURE = os.path.join(ROOT, "tests", "fixtures", "tiny-llama")
PROMPT, TOKENS = "the quick brown", [142, 218, 177, 4, 129, 92, 159, 114, 218]  # Hugging Face's
# The tags are those of Hermes and of Qwen 3, so that tool calls and reasoning are read.
TEMPLATE = ("{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %}"
            "{{ c.function.name }}({{ c.function.arguments.days + 1 }}){% endfor %}{% endfor %}[assistant]{{ thought or '<think></think>' }}")
MESSAGES = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {
    "type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"]}}}
THREE = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"days": {"enum": [3]}}, "required": ["days"], "additionalProperties": False}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"days": 3}}\n</tool_call>'
CONTEXT = 200000
ENDLESS = {"max_tokens": -1, "ignore_eos": True, "temperature": 0}  # minutes of work


def literal(text):
    """A grammar that allows one text."""
    return "root ::= " + json.dumps(text, ensure_ascii=False)


def setUpModule():
    global folder, bundle, model, mlxcel
    folder = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, folder)
    source, bundle, package = (os.path.join(folder, name) for name in ("tiny", "model.mlxb", "package"))
    shutil.copytree(FIXTURE, source)
    with open(os.path.join(source, "tokenizer_config.json"), "w") as file:
        json.dump({"chat_template": TEMPLATE}, file)
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(source, "config.json"), "w") as file:
        json.dump({**config, "max_position_embeddings": CONTEXT}, file)
    subprocess.run([os.path.join(BUILD, "bin", "mlxcel"), "compile", source, "-o", bundle], check=True, capture_output=True)
    shutil.copytree(os.path.join(ROOT, "python", "mlxcel"), os.path.join(package, "mlxcel"))
    name = next(name for name in os.listdir(os.path.join(BUILD, "lib")) if re.fullmatch(r"libmlxcel\.so\.\d+\.\d+", name))
    os.environ.update(MLXCEL_LIBRARY=os.path.join(BUILD, "lib", name), PYTHONPATH=package, PYTHONDONTWRITEBYTECODE="1")
    with open(os.path.join(package, "mlxcel", "_abi.py"), "w") as file:
        version = name[len("libmlxcel.so."):] + ".0"
        subprocess.run([sys.executable, os.path.join(ROOT, "python", "abi.py"), os.path.join(BUILD, "generated", "include", "mlxcel"), name, version],
                       check=True, stdout=file)
    sys.path.insert(0, package)
    import mlxcel
    model = mlxcel.load(bundle, device="cpu", context=2048)
    unittest.addModuleCleanup(model.close)


def load(**options):
    return mlxcel.load(bundle, device="cpu", **options)


class Encoder(unittest.TestCase):
    """A real embedding model, whose golden is by sentence-transformers."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, "tests", "goldens", "all-minilm-l6-v2.json")) as file:
            results = json.load(file)["results"]
        cls.texts, cls.golden = [result["text"] for result in results], [result["embedding"] for result in results]
        cls.encoder = mlxcel.load(os.path.join(BUILD, "models", "all-MiniLM-L6-v2"), device="cpu")
        cls.addClassCleanup(cls.encoder.close)

    def test_embeddings_equal_sentence_transformers(self):
        vectors = self.encoder.embed(self.texts)
        self.assertLess(max(abs(a - b) for vector, golden in zip(vectors, self.golden) for a, b in zip(vector, golden)), 1e-5)
        self.assertEqual(self.encoder.embed(self.texts[4]), vectors[4])
        self.assertEqual(asyncio.run(self.encoder.aembed(self.texts)), vectors)
        self.assertEqual((self.encoder.info["is_encoder"], self.encoder.info["pooling"], self.encoder.info["sequences"]), (True, "mean", 64))

    def test_dimensions_keep_the_norm(self):
        for vector in self.encoder.embed(self.texts[:2], dimensions=32):
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)

    def test_list_is_one_batch(self):
        with unittest.mock.patch.object(mlxcel._embeddings.library, "mlxcel_engine_embed", wraps=mlxcel._embeddings.library.mlxcel_engine_embed) as embed:
            self.encoder.embed(["a"] * 100)
        self.assertEqual(embed.call_count, 1)

    def test_threads_share_an_encoder(self):
        found = [None] * 4
        threads = [threading.Thread(target=lambda k=k: found.__setitem__(k, self.encoder.embed(self.texts))) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(all(one == found[0] for one in found))

    def test_prompts_have_the_names_of_the_model(self):
        folder = os.path.join(tempfile.mkdtemp(), "prompts")
        self.addCleanup(shutil.rmtree, os.path.dirname(folder))
        shutil.copytree(os.path.join(ROOT, "tests", "fixtures", "embedders", "bert"), folder)
        with open(os.path.join(folder, "config_sentence_transformers.json"), "w", encoding="utf-8") as file:
            json.dump({"prompts": {"passage": "passage: ", "STS": "compare: "}, "default_prompt_name": "STS", "similarity_fn_name": "dot"}, file)
        with mlxcel.load(folder, device="cpu") as encoder:
            self.assertEqual((encoder.info["default_prompt"], encoder.info["similarity"]), ("compare: ", "dot"))
            for prompt, text in (None, "compare: a"), ("STS", "compare: a"), ("document", "passage: a"), ("passage", "passage: a"), ("query", "a"):
                self.assertEqual(encoder.embed("a", prompt=prompt), encoder.embed(text, prompt=""), prompt)
            self.assertRaisesRegex(ValueError, "no prompt of that name", lambda: encoder.embed("a", prompt="sts"))

    def test_encoder_generates_nothing(self):
        self.assertRaisesRegex(mlxcel.Error, "encoder", lambda: self.encoder.generate("x"))

    def test_close_ends_a_batch(self):
        other = mlxcel.load(os.path.join(BUILD, "models", "all-MiniLM-L6-v2"), device="cpu")
        thread = threading.Thread(target=lambda: self.assertRaises(Exception, lambda: other.embed(["word " * 200] * 20000)))
        thread.start()
        time.sleep(0.5)
        other.close()
        thread.join(60)
        self.assertFalse(thread.is_alive())


class Results(unittest.TestCase):
    def test_result_has_text_reason_usage_and_ids(self):
        result = model.generate(PROMPT, max_tokens=9, temperature=0)
        self.assertEqual(result.token_ids, TOKENS)
        self.assertEqual(result.text, model.detokenize(TOKENS))
        self.assertEqual(str(result), result.text)
        self.assertEqual(result.finish_reason, "length")
        self.assertEqual((result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens), (len(model.tokenize(PROMPT)), 9, 9 + 7))
        self.assertEqual((result.logprobs, result.message, result.tool_calls), (None, None, None))
        again = model.generate(PROMPT, max_tokens=9, temperature=0)
        self.assertEqual(again.usage.cached, result.usage.prompt_tokens - 1)

    def test_stop_may_be_a_string(self):
        text = model.generate(PROMPT, max_tokens=9, temperature=0).text
        for stop in text[2:4], [text[2:4]], (text[2:4], "never"):
            result = model.generate(PROMPT, max_tokens=9, temperature=0, stop=stop)
            self.assertEqual((result.text, result.finish_reason), (text[:2], "stop"))
        self.assertEqual(model.generate(PROMPT, max_tokens=9, temperature=0, stop="little").text, text)

    def test_routes_are_the_experts_of_each_token_but_the_last(self):
        moe = os.path.join(folder, "moe")
        shutil.copytree(os.path.join(ROOT, "tests", "fixtures", "qwen3_moe"), moe)
        shutil.copy(os.path.join(FIXTURE, "tokenizer.json"), moe)
        with mlxcel.load(moe, device="cpu") as experts:
            result = experts.generate(PROMPT, max_tokens=6, ignore_eos=True, temperature=0, routes=True)
            later = experts.generate(PROMPT, max_tokens=6, ignore_eos=True, temperature=0, routes=True, routes_from=3)
            self.assertIsNone(experts.generate(PROMPT, max_tokens=1).routes)
        self.assertEqual(result.routes.shape, (result.usage.prompt_tokens + 5, 2, 2))
        self.assertTrue(all(0 <= expert < 6 for token in result.routes.tolist() for layer in token for expert in layer))
        self.assertEqual(later.routes.tolist(), result.routes.tolist()[3:])
        with self.assertRaisesRegex(mlxcel.Error, "has no experts"):
            model.generate(PROMPT, max_tokens=1, routes=True)

    def test_logprobs_have_each_token_and_its_alternatives(self):
        result = model.generate(PROMPT, max_tokens=9, temperature=0, logprobs=3)
        self.assertEqual([token.id for token in result.logprobs], TOKENS)
        for token in result.logprobs:
            self.assertEqual([token.id, token.bytes, token.logprob], [token.top[0].id, token.top[0].bytes, token.top[0].logprob])
            values = [other.logprob for other in token.top]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertLess(sum(math.exp(value) for value in values), 1)
            self.assertEqual(len(values), 3)
        self.assertEqual(b"".join(token.bytes for token in result.logprobs).decode("utf-8", "replace"), result.text)
        self.assertEqual(result.logprobs[3].text, '"')
        self.assertEqual([token.top for token in model.generate(PROMPT, max_tokens=2, logprobs=0).logprobs], [[], []])

    def test_stream_has_pieces_and_a_result(self):
        stream = model.stream(PROMPT, max_tokens=9, temperature=0)
        with self.assertRaisesRegex(ValueError, "before its end"):
            stream.result
        pieces = list(stream)
        self.assertGreater(len(pieces), 1)
        self.assertTrue(all(type(piece) is str for piece in pieces))
        self.assertEqual("".join(pieces), stream.result.text)
        self.assertEqual(stream.result.token_ids, TOKENS)
        self.assertEqual(list(stream), [])

    def test_options_are_checked_and_typed(self):
        with self.assertRaisesRegex(TypeError, "unknown option 'heat'; options are: dry_allowed_length, "):
            model.generate("x", heat=1)
        with self.assertRaisesRegex(TypeError, "'tools' is an option of a chat"):
            model.generate("x", tools=[WEATHER])
        for call in (lambda: model.generate(MESSAGES), lambda: model.chat("x"), lambda: model.chat(["x"]), lambda: model.chat(MESSAGES[0])):
            with self.assertRaisesRegex(TypeError, "expected"):
                call()
        for function in (mlxcel.load, mlxcel.Model.generate, mlxcel.Model.stream, mlxcel.Model.achat):
            self.assertIn("return", typing.get_type_hints(function))
        from mlxcel import _abi
        numbers = {name for name, kind in _abi.mlxcel_sampling_t._fields_ if kind is not ctypes.c_void_p and not name.endswith("_count")}
        self.assertLessEqual(numbers, set(mlxcel.Options.__annotations__))
        self.assertEqual(model.generate(PROMPT, max_tokens=1, stop=None, grammar=None, logprobs=None, temperature=0).token_ids, TOKENS[:1])
        with self.assertRaisesRegex(mlxcel.Error, "temp"):
            model.generate("x", temperature=-1)


class Loading(unittest.TestCase):
    def test_gguf_file_and_directory_are_loaded(self):
        for source in FIXTURE + ".gguf", FIXTURE:
            with mlxcel.load(source, device="cpu", context=256) as other:
                self.assertEqual(other.generate(PROMPT, max_tokens=9, temperature=0, ignore_eos=True).token_ids, TOKENS)

    def test_options_reach_the_compiler(self):
        with mlxcel.load(FIXTURE, device="cpu", context=256, dtype="bf16") as other:
            self.assertEqual(other.info["dtype"], "bf16")
        with self.assertRaisesRegex(mlxcel.Error, "banana"):
            mlxcel.load(FIXTURE, dtype="banana")

    def test_unknown_name_is_an_error_with_a_hint(self):
        with self.assertRaisesRegex(mlxcel.Error, "(?s)no model 'no-such-model'.*hint: .*list --available"):
            mlxcel.load("no-such-model")

    def test_name_of_the_hub_is_pulled_once(self):
        shutil.copytree(FIXTURE, os.path.join(folder, "hub", "org", "tiny"))
        hub = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "support", "hub_server.py"), os.path.join(folder, "hub")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(hub.communicate)  # closes its stdin, which ends it
        address = f"http://127.0.0.1:{int(hub.stdout.readline())}"
        with unittest.mock.patch.dict(os.environ, MLXCEL_CACHE=os.path.join(folder, "hub-cache"), HF_ENDPOINT=address):
            for name in "hf:org/tiny", "org/tiny", "hf:org/tiny":
                with mlxcel.load(name, device="cpu", context=256) as other:
                    self.assertEqual(other.generate(PROMPT, max_tokens=9, temperature=0, ignore_eos=True).token_ids, TOKENS)
            with self.assertRaisesRegex(mlxcel.Error, "org/none"):
                mlxcel.load("hf:org/none")
        with urllib.request.urlopen(address + "/_log") as answer:
            requests = answer.read().decode()
        self.assertEqual(requests.count("/config.json"), 1, requests)

    def test_exception_of_progress_ends_the_work(self):
        texts = []

        def progress(text):
            texts.append(text)
            if text.startswith("compiling"):
                raise LookupError("enough")

        with unittest.mock.patch.dict(os.environ, MLXCEL_CACHE=os.path.join(folder, "empty-cache")):
            with self.assertRaisesRegex(LookupError, "enough"):
                mlxcel.load(FIXTURE, device="cpu", progress=progress)
        self.assertIn("compiling tiny-llama for cpu: happens once, then cached", texts)
        self.assertFalse([text for text in texts if text.startswith("compiled")])


class Batches(unittest.TestCase):
    TEXTS = [PROMPT, "fox", "a", "the lazy dog jumps", PROMPT + " fox"] * 3  # more than run at the same time

    def test_list_gives_the_results_of_each_text_in_order(self):
        alone = [model.generate(text, max_tokens=12, temperature=0).token_ids for text in self.TEXTS]
        self.assertEqual([result.token_ids for result in model.generate(self.TEXTS, max_tokens=12, temperature=0)], alone)
        self.assertEqual(model.generate([]), [])
        chats = [MESSAGES, [{"role": "user", "content": "fox"}]]
        alone = [model.chat(chat, max_tokens=5, seed=4).token_ids for chat in chats]
        self.assertEqual([result.token_ids for result in model.chat(chats, max_tokens=5, seed=4)], alone)

    def test_list_runs_as_one_batch(self):
        with load(context=256, sequences=8) as one, load(context=256, sequences=8) as other:
            texts, options = ["a b", "c d", "e f", "g h"], {"max_tokens": 40, "grammar": "root ::= [a-z]{99}"}  # a grammar: one token for each step
            one.generate(texts, **options)
            for text in texts:
                other.generate(text, **options)
            steps = [self.steps(one), self.steps(other)]
        self.assertLess(steps[0] * 2, steps[1])

    @staticmethod
    def steps(model):
        from mlxcel._library import library
        time.sleep(0.05)  # the driver waits for the next request
        return library.mlxcel_scheduler_stats(model._driver._scheduler).steps

    def test_list_of_embeddings(self):
        vectors = model.embed(self.TEXTS[:2])
        self.assertEqual(vectors, [model.embed(text) for text in self.TEXTS[:2]])
        self.assertEqual(len(vectors[0]), model.info["hidden"])
        self.assertAlmostEqual(sum(x * x for x in vectors[1]), 1, places=5)
        self.assertEqual(model.embed([]), [])

    def test_list_of_embeddings_is_a_buffer(self):
        vectors = model.embed(self.TEXTS[:2])
        view = memoryview(vectors)
        self.assertEqual((view.shape, view.format[-1], view.contiguous), ((2, model.info["hidden"]), "f", True))
        self.assertEqual(view.cast("B").cast("f").tolist(), vectors[0] + vectors[1])
        self.assertEqual((vectors[-1], vectors[:1], list(vectors)), (vectors[1], [vectors[0]], vectors.tolist()))
        self.assertRaises(IndexError, lambda: vectors[2])
        self.assertEqual(pickle.loads(pickle.dumps(vectors)), vectors)
        self.assertEqual((type(vectors[0][0]), vectors.shape), (float, view.shape))

    def test_numpy_shares_the_memory_of_embeddings(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        vectors = model.embed(self.TEXTS[:3])
        array = numpy.asarray(vectors)
        self.assertEqual((array.shape, array.dtype), (vectors.shape, numpy.float32))
        array[1, 2] = 5
        self.assertEqual(vectors[1][2], 5)
        self.assertEqual(numpy.asarray(model.embed([])).shape, (0, model.info["hidden"]))

    def test_dimensions_and_prompts_of_embeddings(self):
        size = model.info["hidden"] // 2
        whole, short = model.embed(self.TEXTS[0]), model.embed(self.TEXTS[:2], dimensions=size)
        norm = math.sqrt(sum(x * x for x in whole[:size]))
        self.assertEqual(short.shape, (2, size))
        for a, b in zip(whole, short[0]):
            self.assertAlmostEqual(a / norm, b, places=6)
        self.assertEqual(len(model.embed(self.TEXTS[0], dimensions=1)), 1)
        self.assertEqual(model.embed(self.TEXTS[0], prompt="query"), whole)  # this model has no prompts
        self.assertEqual(model.embed(self.TEXTS[0], prompt=""), whole)
        for wrong in {"dimensions": 0}, {"dimensions": size * 4}, {"prompt": "question"}:
            self.assertRaises(ValueError, lambda: model.embed(self.TEXTS, **wrong))

    def test_rerank_has_the_scores_of_sentence_transformers(self):
        classifiers = os.path.join(ROOT, "tests", "fixtures", "classifiers")
        with open(os.path.join(classifiers, "bert", "golden.json"), encoding="utf-8") as file:
            results = [one for one in json.load(file)["results"]][:9]  # they have the same query
        with mlxcel.load(os.path.join(classifiers, "bert"), device="cpu") as reranker:
            ranked = reranker.rerank(results[0]["first"], [one["second"] for one in results])
            best = reranker.rerank(results[0]["first"], [one["second"] for one in results], top=2)
            self.assertEqual(reranker.rerank("a query", []), [])
        self.assertEqual(sorted(one.index for one in ranked), list(range(9)))
        self.assertEqual(ranked, sorted(ranked, key=lambda one: -one.score))
        self.assertEqual(best, ranked[:2])
        for one in ranked:
            self.assertEqual(one.document, results[one.index]["second"])
            self.assertAlmostEqual(one.score, results[one.index]["scores"][0], delta=1e-5)
        with self.assertRaisesRegex(mlxcel.Error, "no class head"):
            model.rerank("a query", ["a text"])
        with mlxcel.load(os.path.join(classifiers, "roberta"), device="cpu") as classifier:
            with self.assertRaisesRegex(ValueError, "gives a text 3 scores"):
                classifier.rerank("a query", ["a text"])

    def test_rerank_of_a_decoder_reads_an_instruction(self):
        folder = os.path.join(ROOT, "tests", "fixtures", "classifiers", "qwen3")
        with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
            results = [one for one in json.load(file)["results"]][:9]
        query, documents = results[0]["first"], [one["second"] for one in results]
        with mlxcel.load(folder, device="cpu") as reranker:
            usual = {one.index: one.score for one in reranker.rerank(query, documents)}
            same = {one.index: one.score for one in reranker.rerank(query, documents, instruction="retrieve passages")}
            other = {one.index: one.score for one in reranker.rerank(query, documents, instruction="find the opposite")}
        for index, one in enumerate(results):
            self.assertAlmostEqual(usual[index], one["scores"][0], delta=1e-5)
        self.assertEqual(usual, same)
        self.assertNotEqual(usual, other)

    def test_embed_works_beside_a_stream(self):
        alone = model.embed(PROMPT)
        with model.stream(PROMPT, **ENDLESS) as stream:
            next(stream)
            self.assertEqual(model.embed(PROMPT), alone)

    def test_failure_of_one_ends_the_others(self):
        with load(context=CONTEXT, sequences=1) as small:
            with self.assertRaisesRegex(mlxcel.Error, "context"):
                small.generate(["endless", "long " * CONTEXT], **ENDLESS)
            self.check_free(small)
            with self.assertRaises(mlxcel.Error):
                asyncio.run(small.agenerate(["endless", "long " * CONTEXT], **ENDLESS))
            self.check_free(small)

    def check_free(self, small):
        """The only sequence is free at once; an endless request would have it for minutes."""
        start = time.monotonic()
        self.assertEqual(small.generate(PROMPT, max_tokens=9, temperature=0).token_ids, TOKENS)
        self.assertLess(time.monotonic() - start, 20)


class Chats(unittest.TestCase):
    TALK = {"grammar": literal("Let me see.\n" + CALL), "temperature": 2, "max_tokens": 200, "parallel_tool_calls": False}

    def talking_seed(self):
        """The grammar also allows a call without text. A seed with which the model chooses the text."""
        seeds = (seed for seed in range(200) if model.chat(MESSAGES, tools=[THREE], seed=seed, **{**self.TALK, "max_tokens": 4}).text.startswith("L"))
        return next(seeds)

    def test_required_call_is_constrained_and_parsed(self):
        result = model.chat(MESSAGES, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
        self.assertEqual((result.text, result.finish_reason), ("", "tool_calls"))
        (call,) = result.tool_calls
        self.assertEqual(call.name, "get_weather")
        self.assertIn(call.arguments["days"], range(1, 10))
        self.assertEqual(result.message, {"role": "assistant", "content": None, "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": "get_weather", "arguments": result.message["tool_calls"][0]["function"]["arguments"]}}]})
        self.assertEqual(json.loads(result.message["tool_calls"][0]["function"]["arguments"]), call.arguments)
        named = model.chat(MESSAGES, tools=[WEATHER, {"type": "function", "function": {"name": "get_time"}}],
                           tool_choice={"type": "function", "function": {"name": "get_time"}})
        self.assertEqual([(call.name, call.arguments) for call in named.tool_calls], [("get_time", {})])

    def test_calls_and_reasoning_are_found_in_the_output(self):
        result = model.chat(MESSAGES, tools=[THREE], seed=self.talking_seed(), **self.TALK)
        self.assertEqual((result.text, result.finish_reason), ("Let me see.", "tool_calls"))
        self.assertEqual([(call.name, call.arguments) for call in result.tool_calls], [("get_weather", {"days": 3})])
        plain = model.chat(MESSAGES, grammar=literal(CALL))  # without tools, a call is text
        self.assertEqual((plain.text, plain.tool_calls, plain.finish_reason), (CALL, [], "stop"))
        thought = model.chat(MESSAGES, max_tokens=9, temperature=0, ignore_eos=True, variables={"thought": "<think>"})
        self.assertEqual((thought.text, thought.reasoning), ("", model.detokenize(thought.token_ids).strip()))
        self.assertTrue(thought.reasoning)

    def test_stream_of_a_chat_yields_the_answer_only(self):
        stream = model.stream(MESSAGES, tools=[THREE], seed=self.talking_seed(), **self.TALK)
        self.assertEqual("".join(stream), "Let me see.")
        self.assertEqual(stream.result.tool_calls[0].arguments, {"days": 3})
        self.assertEqual("".join(model.stream(MESSAGES, grammar=literal("a <"))), "a <")  # held back until the end

    def test_message_of_a_result_can_be_sent_back(self):
        result = model.chat(MESSAGES, tools=[THREE], tool_choice="required", parallel_tool_calls=False)
        messages = MESSAGES + [result.message, {"role": "tool", "tool_call_id": result.tool_calls[0].id, "content": "rain"}]
        self.assertEqual(model.render(messages), "[user] hello[assistant] get_weather(4)[tool] rain[assistant]<think></think>")  # the arguments are an object

    def test_tools_and_variables_reach_the_template(self):
        self.assertEqual(model.render(MESSAGES, variables={"thought": "T"}), "[user] hello[assistant]T")
        self.assertIn('"name": "get_weather"', model.render(MESSAGES, tools=[WEATHER]))
        with_tools = model.chat(MESSAGES, tools=[WEATHER], max_tokens=1)
        self.assertGreater(with_tools.usage.prompt_tokens, model.chat(MESSAGES, max_tokens=1).usage.prompt_tokens)
        self.assertEqual(model.chat(MESSAGES, max_tokens=1, variables={"thought": "T"}).usage.prompt_tokens, len(model.tokenize("[user] hello[assistant]T")))
        for tools in [{"name": "f"}], [{"type": "web_search"}], ["f"]:
            with self.assertRaisesRegex(ValueError, r"tools\[0\]: expected"):
                model.chat(MESSAGES, tools=tools)
        with self.assertRaisesRegex(mlxcel.Error, "no tool has the name 'g'"):
            model.chat(MESSAGES, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "g"}})

    def test_response_format(self):
        schema = {"type": "integer", "minimum": 3, "maximum": 5}
        formats = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        self.assertIn(json.loads(model.chat(MESSAGES, response_format=formats).text), (3, 4, 5))
        self.assertIn(json.loads(model.generate("n:", response_format=formats).text), (3, 4, 5))
        self.assertIn(json.loads(model.generate("n:", json_schema=schema).text), (3, 4, 5))
        self.assertTrue(model.chat(MESSAGES, response_format={"type": "json_object"}, max_tokens=8).text.startswith("{"))
        self.assertEqual(model.generate(PROMPT, response_format={"type": "text"}, max_tokens=9, temperature=0).token_ids, TOKENS)
        for bad in {"type": "xml"}, {"type": "json_schema"}, "json":
            with self.assertRaisesRegex(ValueError, "response_format: expected"):
                model.generate("x", response_format=bad)
        with self.assertRaisesRegex(ValueError, "grammar or response_format, not both"):
            model.generate("x", response_format=formats, grammar="root ::= \"a\"")
        with self.assertRaisesRegex(mlxcel.Error, "response_format.json_schema.schema"):
            model.generate("x", response_format={"type": "json_schema", "json_schema": {"schema": {"type": "what"}}})
        with self.assertRaisesRegex(mlxcel.Error, "grammar: line 1"):
            model.generate("x", grammar="root ::= (")


class Asyncio(unittest.TestCase):
    def test_stream_and_generate(self):
        async def main():
            stream = model.astream(PROMPT, max_tokens=9, temperature=0)
            pieces = [piece async for piece in stream]
            self.assertEqual("".join(pieces), stream.result.text)
            self.assertEqual(stream.result.token_ids, TOKENS)
            self.assertEqual((await model.agenerate(PROMPT, max_tokens=9, temperature=0)).token_ids, TOKENS)
            self.assertEqual([len(result.token_ids) for result in await model.agenerate(["a", "b"], max_tokens=3, ignore_eos=True)], [3, 3])
            chat = await model.achat(MESSAGES, tools=[THREE], tool_choice="required", parallel_tool_calls=False)
            self.assertEqual(chat.tool_calls[0].arguments, {"days": 3})
            self.assertEqual(await model.aembed([PROMPT]), [model.embed(PROMPT)])
            with self.assertRaises(mlxcel.Error):
                await model.agenerate("x", temperature=-1)

        asyncio.run(main())

    def test_many_tasks_share_the_model(self):
        texts = Batches.TEXTS * 4
        alone = {text: model.generate(text, max_tokens=12, temperature=0).token_ids for text in texts}

        async def main():
            return await asyncio.gather(*(model.agenerate(text, max_tokens=12, temperature=0) for text in texts))

        self.assertEqual([result.token_ids for result in asyncio.run(main())], [alone[text] for text in texts])

    def test_loop_runs_while_the_model_generates(self):
        async def main():
            task = asyncio.ensure_future(model.agenerate(PROMPT, max_tokens=1500, ignore_eos=True, temperature=0))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            return turns

        self.assertGreater(asyncio.run(main()), 20)

    def test_cancelled_task_ends_its_request(self):
        with load(context=CONTEXT, sequences=1) as small:
            async def stream():
                async for _ in small.astream(PROMPT, **ENDLESS):
                    pass

            async def main():
                for work in small.agenerate(PROMPT, **ENDLESS), small.achat(MESSAGES, **ENDLESS), stream():
                    task = asyncio.ensure_future(work)
                    await asyncio.sleep(0.1)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(small.agenerate(PROMPT, **ENDLESS), 0.1)

            asyncio.run(main())
            Batches.check_free(self, small)


class Threads(unittest.TestCase):
    def test_threads_get_the_tokens_they_would_get_alone(self):
        texts = Batches.TEXTS
        alone = {text: model.generate(text, max_tokens=30, temperature=0).token_ids for text in texts}
        found, running = {}, threading.Barrier(len(texts))

        def work(index):
            running.wait()
            stream = model.stream(texts[index], max_tokens=30, temperature=0)
            pieces = "".join(stream)
            found[index] = stream.result.token_ids
            self.assertEqual(pieces, stream.result.text)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found.get(index) for index in range(len(texts))], [alone[text] for text in texts])

    def test_close_while_streams_run(self):
        for _ in range(5):
            other, errors, begun = load(context=CONTEXT, sequences=2), [], threading.Semaphore(0)

            def work():
                try:
                    for count, _ in enumerate(other.stream(PROMPT, **ENDLESS)):
                        if not count:
                            begun.release()
                except ValueError as error:
                    errors.append(str(error))

            threads = [threading.Thread(target=work) for _ in range(4)]  # two of them wait for a sequence
            for thread in threads:
                thread.start()
            begun.acquire()
            other.close()
            other.close()
            for thread in threads:
                thread.join()
            self.assertEqual(len(errors), 4)
            for error in errors:
                self.assertRegex(error, "the model (was|is) closed")
            for call in (lambda: other.generate("x"), lambda: other.embed("x"), lambda: other.tokenize("x"), lambda: other.info):
                with self.assertRaisesRegex(ValueError, "the model is closed"):
                    call()

    def test_streams_keep_their_model(self):
        stream = load(context=256).stream(PROMPT, max_tokens=9, temperature=0)
        self.assertEqual("".join(stream), stream.result.text)

    def test_dropped_stream_ends_its_request(self):
        with load(context=CONTEXT, sequences=1) as small:
            next(small.stream(PROMPT, **ENDLESS))
            for _ in small.stream(PROMPT, **ENDLESS):
                break
            Batches.check_free(self, small)

    def test_model_without_references_is_freed(self):
        other = load(context=256)
        thread = other._driver._thread
        del other
        thread.join(20)
        self.assertFalse(thread.is_alive())

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_forked_process_gets_an_error(self):
        child = os.fork()
        if not child:
            try:
                model.generate("x")
            except ValueError as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class Programs(unittest.TestCase):
    def test_ctrl_c_interrupts_and_the_model_goes_on(self):
        program = """
import sys, mlxcel
with mlxcel.load(sys.argv[1], device="cpu", context=int(sys.argv[2]), sequences=1) as model:
    for attempt in range(6):
        try:
            stream = model.stream("the", max_tokens=-1, ignore_eos=True)
            print(len(next(stream)) and "begun", flush=True)
            if attempt % 2:
                model.generate("the", max_tokens=-1, ignore_eos=True)
            for piece in stream:
                pass
        except KeyboardInterrupt:
            stream.close()
            print(len(model.generate("the", max_tokens=4, ignore_eos=True).token_ids), flush=True)
"""
        child = subprocess.Popen([sys.executable, "-c", program, bundle, str(CONTEXT)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        for _ in range(6):
            self.assertEqual(child.stdout.readline(), "begun\n")
            time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.stdout.readline(), "4\n")
        out, errors = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out, errors), (0, "", ""))

    def test_ctrl_c_ends_load(self):
        program = """
import sys, mlxcel
try:
    mlxcel.load(sys.argv[1], device="cpu", progress=lambda text: print(text, flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""
        tool = os.path.join(folder, "iree-compile")
        with open(tool, "w") as file:  # compiles without end
            file.write('#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\nexec sleep 600\n')
        os.chmod(tool, 0o755)
        child = subprocess.Popen([sys.executable, "-c", program, FIXTURE], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "MLXCEL_IREE_COMPILE": tool})
        while not child.stdout.readline().startswith("compiling"):
            self.assertIsNone(child.poll())
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out.splitlines()[-1], errors), (0, "interrupted", ""))

    def test_program_may_end_while_the_model_generates(self):
        program = """
import sys, mlxcel
model = mlxcel.load(sys.argv[1], device="cpu", context=int(sys.argv[2]))
chat = model.stream([{"role": "user", "content": "hello"}], grammar="root ::= [a-z]+")
stream = model.stream("the", max_tokens=-1, ignore_eos=True)
next(stream), next(chat)
"""
        done = subprocess.run([sys.executable, "-c", program, bundle, str(CONTEXT)], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_examples_of_the_documentation_run(self):
        for page, least in ("docs/packages.md", 4), ("python/README.md", 1):
            with open(os.path.join(ROOT, page), encoding="utf-8") as file:
                examples = re.findall(r"^```python\n(.*?)^```", file.read(), re.M | re.S)
            self.assertGreaterEqual(len(examples), least)
            for example in examples:
                example = re.sub(r'"(model\.gguf|hf:[^"]*)"', '"tiny"', example)  # the folder that the bundle was compiled from
                done = subprocess.run([sys.executable, "-W", "error", "-c", example], cwd=folder, capture_output=True, text=True, timeout=120)
                self.assertEqual((done.returncode, done.stderr), (0, ""), example)


unittest.main()
