"""A pytest plugin for llama_server_test.py: which of llama.cpp's server tests run, on which server, and what is changed.

Servers are `mlxcel serve` with models of tests/fixtures, whose weights are random:
  - texts are not compared, only that there is one: match_regex;
  - end-of-text tokens are ignored, unless a request says otherwise. Anthropic's form cannot say so: temperature 0 makes its answers the same;
  - numbers of prompt tokens, and of the steps that read them, must only be above 0: the fixture has another tokenizer;
  - system_fingerprint gets a "b" before it, like llama.cpp's build numbers, and the first content of a chat's stream, "" as of OpenAI,
    becomes llama.cpp's null.
llama-server takes defaults of requests as options (--temp, --seed, --n-predict). Here they are put into the requests.
"""
import fnmatch
import json
import os
import shutil
import sys
import tempfile
import types

import openai
import pytest

sys.modules.setdefault("wget", types.ModuleType("wget"))  # for models that these tests do not pull
import utils  # noqa: E402  of llama.cpp's tests
from server import Server  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.environ["MLXCEL_FIXTURES"]
GENERATES = ("/completion", "/completions", "/infill", "/v1/completions", "/chat/completions", "/v1/chat/completions")
NATIVE = ("/completion", "/infill")
running = {}  # servers by their options
infill = []  # the folder of the model for gaps


class AnyNumber(int):
    """Equal to each number above 0."""

    def __eq__(self, other):
        return isinstance(other, int) and other > 0

    __hash__ = int.__hash__


def make_infill_model():
    """A copy of a fixture whose last tokens are those of Qwen2.5-Coder for gaps."""
    folder = tempfile.mkdtemp()
    copy = os.path.join(folder, "infill")
    shutil.copytree(os.path.join(FIXTURES, "qwen2"), copy)
    path = os.path.join(copy, "tokenizer.json")
    shutil.copy(os.path.join(FIXTURES, "tiny-llama/tokenizer.json"), path)
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    words = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)[-3:]
    like = next(token for token in tokenizer["added_tokens"] if token["special"])
    for old, new in zip(words, ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")):
        number = tokenizer["model"]["vocab"].pop(old)
        tokenizer["model"]["vocab"][new] = number
        tokenizer["model"]["merges"] = [merge for merge in tokenizer["model"]["merges"]
                                        if "".join(merge.split(" ") if isinstance(merge, str) else merge) != old]
        tokenizer["added_tokens"].append({**like, "id": number, "content": new})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    return copy


def model_of(process):
    if process.model_alias == "tinyllama-infill":
        if not infill:
            infill.append(make_infill_model())
        return infill[0]
    if process.server_reranking:
        return os.path.join(FIXTURES, "classifiers/bert")
    if process.server_embeddings:
        return os.path.join(FIXTURES, "embedders/bert")
    return os.path.join(FIXTURES, "tiny-llama")


def start(self, timeout_seconds=None):
    slots = self.n_slots or 1
    options = ["--parallel", str(slots)]
    if not self.server_embeddings and not self.server_reranking:
        context = min(self.n_ctx or 512, 512 if self.model_alias == "tinyllama-infill" else 2048)  # the fixtures'
        options += ["-c", str(context // (1 if self.kv_unified else slots)), "--chat-template", self.chat_template_file or self.chat_template or "chatml"]
    for alias in (self.model_alias or "").split(","):
        options += ["--served-model-name", alias] if alias else []
    options += ["--api-key", self.api_key] if self.api_key else []
    options += ["--no-page"] if self.no_ui else []
    options += ["--reasoning", self.reasoning] if self.reasoning in ("on", "off") else []
    arguments = (model_of(self), *options)
    # Tests of metrics count what only their own server did.
    key = (*arguments, os.environ["PYTEST_CURRENT_TEST"].split()[0]) if self.server_metrics else arguments
    if key not in running:
        running[key] = Server(os.environ["MLXCEL"], *arguments)
    assert running[key].process.poll() is None, "the server ended"
    self.server_host, self.server_port = "127.0.0.1", int(running[key].url.rsplit(":", 1)[1])


def with_defaults(self, path, data):
    path = path.split("?")[0]
    if path == "/v1/messages" and isinstance(data, dict):
        return {"temperature": 0, **data}
    if path not in GENERATES or not isinstance(data, dict):
        return data
    defaults = {"ignore_eos": True}
    if self.debug:
        defaults["verbose"] = True
    if path in NATIVE:
        defaults.update(temperature=self.temperature, seed=self.seed)
    if self.n_predict and self.n_predict > 0 and not {"n_predict", "max_tokens", "max_completion_tokens"} & data.keys():
        defaults["max_tokens"] = self.n_predict
    return {**defaults, **data}


def without_end(create):
    """The same for requests of openai's client."""
    return lambda self, *words, **fields: create(self, *words, **{**fields, "extra_body": {"ignore_eos": True, **(fields.get("extra_body") or {})}})


def as_llama_server(body):
    if isinstance(body, dict) and "system_fingerprint" in body:
        body["system_fingerprint"] = "b" + body["system_fingerprint"]
        for choice in body["choices"]:
            if "role" in choice.get("delta", {}) and choice["delta"]["content"] == "":
                choice["delta"]["content"] = None
    return body


def changed_request(call):
    def wrapper(self, method, path, data=None, *rest, **named):
        response = call(self, method, path, with_defaults(self, path, data), *rest, **named)
        response.body = as_llama_server(response.body)
        return response
    return wrapper


def changed_stream(call):
    def wrapper(self, method, path, data=None, *rest, **named):
        return map(as_llama_server, call(self, method, path, with_defaults(self, path, data), *rest, **named))
    return wrapper


utils.ServerProcess.start = start
utils.ServerProcess.stop = lambda self: None
utils.ServerProcess.make_request = changed_request(utils.ServerProcess.make_request)
utils.ServerProcess.make_stream_request = changed_stream(utils.ServerProcess.make_stream_request)
for resource in (openai.resources.Completions, openai.resources.chat.Completions):
    resource.create = without_end(resource.create)
utils.match_regex = lambda regex, text: isinstance(text, str) and len(text) > 0


def read_cases():
    """Patterns of cases that run, and patterns of those that do not."""
    run, left_out = [], []
    with open(os.path.join(HERE, "llama_server_cases.txt"), encoding="utf-8") as file:
        for line in file:
            line = line.rstrip("\n")
            if line.startswith("unit/"):
                pattern, _, reason = line.partition(" # ")
                (left_out if reason else run).append(pattern)
    return run, left_out


def pytest_collection_modifyitems(config, items):
    run, left_out = read_cases()
    chosen, unknown, used = [], [], set()
    for item in items:
        matches = [pattern for pattern in run + left_out if fnmatch.fnmatchcase(item.nodeid, pattern)]
        used.update(matches)
        if len(matches) != 1:
            unknown.append(f"{item.nodeid}: {matches}")
        elif matches[0] in run:
            chosen.append(item)
        callspec = getattr(item, "callspec", None)
        for name in ("n_prompt", "n_tokens", "batch_count"):
            if callspec and name in callspec.params:
                callspec.params[name] = AnyNumber(callspec.params[name])
    unused = [pattern for pattern in run + left_out if pattern not in used]
    if (unknown or unused) and not os.environ.get("LLAMA_SERVER_ALL"):
        raise pytest.UsageError("llama_server_cases.txt must name each case once: " + "; ".join(unknown + ["no case is " + name for name in unused]))
    if os.environ.get("LLAMA_SERVER_ALL"):
        return
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_sessionfinish():
    for server in running.values():
        server.__exit__()
    if infill:
        shutil.rmtree(os.path.dirname(infill[0]))
