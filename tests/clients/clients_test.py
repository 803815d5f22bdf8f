"""Real clients against `mlxcel serve`: openai, anthropic, ollama, langchain-openai, litellm, curl, and the request shapes of Codex,
Claude Code, aider and Open WebUI.

    python3 tests/clients/clients_test.py MLXCEL MODEL [CASE...]

The packages of requirements.txt must be importable. Every case states what its client must see; a case that a missing package
prevents is reported as skipped.
"""
import asyncio
import importlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server import Cases  # noqa: E402

PROMPT = [{"role": "user", "content": "Name one colour."}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": None, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}}}
CASES = Cases()
case = CASES.case


def openai_client(server, **extra):
    return importlib.import_module("openai").OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300, **extra)


def anthropic_client(server):
    return importlib.import_module("anthropic").Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)


# ---- openai -------------------------------------------------------------------------------------------------------------

@case("openai")
def openai_lists_models(server):
    client = openai_client(server)
    names = [model.id for model in client.models.list()]
    assert len(names) == 1, names
    assert client.models.retrieve(names[0]).id == names[0]


@case("openai")
def openai_chat_equals_the_command_line(server):
    answer = openai_client(server).chat.completions.create(model="any", messages=PROMPT, temperature=0, max_tokens=16)
    expected = server.run("-p", PROMPT[0]["content"], "--temp", "0", "-n", "16")
    assert answer.choices[0].message.content == expected, (answer, expected)
    assert answer.usage.completion_tokens == 16 or answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].message.role == "assistant"


@case("openai")
def openai_stream_equals_the_whole(server):
    client = openai_client(server)
    arguments = dict(model="any", messages=PROMPT, temperature=0, max_completion_tokens=16)
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices and chunk.choices[0].delta.role] == ["assistant"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 0
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


@case("openai")
def openai_choices_seeds_stops_and_logprobs(server):
    client = openai_client(server)
    arguments = dict(model="any", messages=PROMPT, max_tokens=12, temperature=1.0, seed=7)
    many = client.chat.completions.create(**arguments, n=3)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert client.chat.completions.create(**arguments).choices[0].message.content == client.chat.completions.create(**arguments).choices[0].message.content
    scored = client.chat.completions.create(model="any", messages=PROMPT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
    tokens = scored.choices[0].logprobs.content
    assert len(tokens) == scored.usage.completion_tokens or len(tokens) == scored.usage.completion_tokens - 1
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 and token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob for token in tokens)
    text = scored.choices[0].message.content
    stopped = client.chat.completions.create(model="any", messages=PROMPT, max_tokens=16, temperature=0, stop=[text[3:5]])
    assert stopped.choices[0].message.content == text[:text.index(text[3:5])] and stopped.choices[0].finish_reason == "stop"


@case("openai", "pydantic")
def openai_structured_output(server):
    pydantic = importlib.import_module("pydantic")
    person = pydantic.create_model("Person", name=(str, pydantic.Field(max_length=12)), age=(int, pydantic.Field(ge=1, le=99)))
    answer = openai_client(server).chat.completions.parse(model="any", messages=[{"role": "user", "content": "Describe a person."}],
                                                          response_format=person, max_tokens=100, temperature=0)
    assert 1 <= answer.choices[0].message.parsed.age <= 99
    answer = openai_client(server).chat.completions.create(model="any", messages=PROMPT, response_format={"type": "json_object"}, max_tokens=100,
                                                           temperature=0)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@case("openai")
def openai_tools(server):
    client = openai_client(server)
    arguments = dict(model="any", messages=[{"role": "user", "content": "Weather in Paris?"}], tools=[WEATHER], temperature=0, max_tokens=100)
    answer = client.chat.completions.create(**arguments, tool_choice="required", parallel_tool_calls=False)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and len(message.tool_calls) == 1
    call = message.tool_calls[0]
    assert call.function.name == "get_weather" and set(json.loads(call.function.arguments)) == {"city"}
    chunks = list(client.chat.completions.create(**arguments, tool_choice={"type": "function", "function": {"name": "get_weather"}}, stream=True))
    deltas = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or []]
    assert deltas[0].index == 0 and deltas[0].id and deltas[0].function.name == "get_weather"
    assert set(json.loads("".join(d.function.arguments or "" for d in deltas))) == {"city"}
    history = arguments["messages"] + [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(model="any", messages=history, tools=[WEATHER], max_tokens=8).choices[0].message is not None
    none = client.chat.completions.create(**{**arguments, "max_tokens": 8}, tool_choice="none")
    assert not none.choices[0].message.tool_calls


@case("openai")
def openai_tool_history_hits_the_prefix_cache(server):
    client = openai_client(server)
    messages = [{"role": "user", "content": "Please tell me the weather in the city of Paris, and be quick. " * 6}]
    first = client.chat.completions.create(model="any", messages=messages, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=100)
    message = first.choices[0].message
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    second = client.chat.completions.create(model="any", messages=messages, tools=[WEATHER], temperature=0, max_tokens=4)
    # A forced call may consist of other tokens than its text gives. The cache covers it all the same, but for its last token.
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 1, (first.usage, second.usage)


@case("openai")
def openai_completions(server):
    client = openai_client(server)
    answer = client.completions.create(model="any", prompt="The capital of France is", max_tokens=8, temperature=0)
    assert answer.choices[0].text == server.run("--raw", "-p", "The capital of France is", "--temp", "0", "-n", "8")
    many = client.completions.create(model="any", prompt=["The capital of France is", "One two three"], max_tokens=4, temperature=0, logprobs=2)
    assert len(many.choices) == 2 and len(many.choices[0].logprobs.tokens) == 4
    assert "".join(c.choices[0].text for c in client.completions.create(model="any", prompt="The capital of France is", max_tokens=8, temperature=0,
                                                                         stream=True) if c.choices) == answer.choices[0].text


@case("openai")
def openai_completions_score_the_prompt(server):
    """As evaluation harnesses ask: echo with logprobs, and no or one generated token."""
    client = openai_client(server)
    prompt = "The capital of France is"
    written = client.completions.create(model="any", prompt=prompt, max_tokens=8, temperature=0, logprobs=1).choices[0]
    tokenize = json.load(urllib.request.urlopen(server.url + "/tokenize", json.dumps({"prompt": prompt + written.text}).encode()))
    for given, max_tokens in ((prompt + written.text, 1), (tokenize["tokens"], 0)):
        choice = client.completions.create(model="any", prompt=given, max_tokens=max_tokens, temperature=0, logprobs=1, echo=True).choices[0]
        scores = choice.logprobs
        count = len(tokenize["tokens"])
        assert choice.text.startswith(prompt + written.text), choice.text
        assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.text_offset) == count + max_tokens
        assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
        for i, expected in enumerate(written.logprobs.token_logprobs):
            at = count - 8 + i
            assert abs(scores.token_logprobs[at] - expected) < 1e-4, (i, scores.token_logprobs[at], expected)
            assert scores.token_logprobs[at] == max(scores.top_logprobs[at].values())  # greedy
    two = client.completions.create(model="any", prompt=[tokenize["tokens"], tokenize["tokens"][:4]], max_tokens=0, logprobs=0, echo=True)
    assert [len(choice.logprobs.tokens) for choice in two.choices] == [count, 4]
    a, b = (choice.logprobs.token_logprobs[1:4] for choice in two.choices)
    assert max(abs(x - y) for x, y in zip(a, b)) < 1e-4 and two.usage.completion_tokens == 0, (a, b)


@case("openai")
def openai_responses(server):
    client = openai_client(server)
    answer = client.responses.create(model="any", instructions="Be brief.", input="Name one colour.", max_output_tokens=12, temperature=0)
    assert answer.status in ("completed", "incomplete") and answer.output_text
    with client.responses.stream(model="any", instructions="Be brief.", input="Name one colour.", max_output_tokens=12, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == answer.output_text
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds.index("response.output_item.added") < kinds.index("response.output_text.delta") < kinds.index("response.output_item.done")
    assert kinds[-1] in ("response.completed", "response.incomplete")
    tool = {"type": "function", **WEATHER["function"]}
    called = client.responses.create(model="any", input="Weather in Paris?", tools=[tool], tool_choice="required", max_output_tokens=100)
    call = next(item for item in called.output if item.type == "function_call")
    assert call.name == "get_weather" and set(json.loads(call.arguments)) == {"city"}
    schema = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    assert set(json.loads(client.responses.create(model="any", input="A person.", text=schema, max_output_tokens=100).output_text)) == {"name", "age"}


@case("openai")
def openai_stored_responses(server):
    client = openai_client(server)
    ask = dict(model="any", max_output_tokens=8, temperature=0)
    first = client.responses.create(input="Name one colour.", **ask)
    second = client.responses.create(input="And another.", previous_response_id=first.id, **ask)
    assert second.previous_response_id == first.id
    whole = client.responses.create(input=[{"role": "user", "content": "Name one colour."}, *[item.model_dump(exclude_none=True) for item in first.output],
                                           {"role": "user", "content": "And another."}], store=False, **ask)
    assert second.output_text == whole.output_text
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))  # the client fetches the other pages
    assert [item.content[0].text for item in items if item.role == "user"] == ["Name one colour.", "And another."], items
    client.responses.delete(first.id)
    assert client.responses.create(input="More.", previous_response_id=second.id, **ask).output_text is not None
    openai = importlib.import_module("openai")
    for call in (lambda: client.responses.retrieve(first.id), lambda: client.responses.retrieve(whole.id)):
        try:
            call()
        except openai.NotFoundError:
            continue
        raise AssertionError("a response that is not stored was found")


@case("openai")
def openai_embeddings(server):
    client = openai_client(server)
    answer = client.embeddings.create(model="any", input=["a dog", "a puppy", "the stock market fell"])
    a, b, c = (item.embedding for item in answer.data)
    assert abs(sum(x * x for x in a) - 1) < 1e-3 and sum(x * y for x, y in zip(a, b)) > sum(x * y for x, y in zip(a, c))
    plain = client.embeddings.create(model="any", input="a dog", encoding_format="float").data[0].embedding
    assert max(abs(x - y) for x, y in zip(a, plain)) < 1e-5


@case("openai")
def openai_async_requests_run_together(server):
    openai = importlib.import_module("openai")

    async def main():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            ask = lambda i: client.chat.completions.create(model="any", messages=[{"role": "user", "content": f"Count from {i}."}], max_tokens=12, temperature=0)
            together = await asyncio.gather(*(ask(i) for i in range(12)))
            alone = [await ask(i) for i in range(12)]
        for x, y in zip(together, alone):
            assert x.choices[0].message.content == y.choices[0].message.content
    asyncio.run(main())


@case("openai")
def openai_errors(server):
    openai, client = importlib.import_module("openai"), openai_client(server)

    def refused(kind, **arguments):
        try:
            client.chat.completions.create(**{"model": "any", "messages": PROMPT, "max_tokens": 4, **arguments})
        except kind as error:
            return error
        raise AssertionError(f"not refused: {arguments}")
    assert "messages[0].role" in refused(openai.BadRequestError, messages=[{"role": "robot", "content": "x"}]).message
    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    raw = client.chat.completions.with_raw_response.create(model="any", messages=PROMPT, max_tokens=4, extra_body={"no_such_field": 1})
    assert raw.headers["x-mlxcel-ignored"] == "no_such_field", raw.headers
    error = refused(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 20000}])
    assert error.type == "exceed_context_size_error" and error.body["n_prompt_tokens"] > error.body["n_ctx"], error.body
    assert refused(openai.BadRequestError, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}})


# ---- anthropic ----------------------------------------------------------------------------------------------------------

@case("anthropic")
def anthropic_messages(server):
    client = anthropic_client(server)
    arguments = dict(model="any", max_tokens=16, system="Be brief.", messages=PROMPT, extra_body={"temperature": 0})
    answer = client.messages.create(**arguments)
    assert answer.type == "message" and answer.content[0].type == "text" and answer.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer.content[0].text == final.content[0].text and final.usage.output_tokens == answer.usage.output_tokens
    count = client.messages.count_tokens(model="any", system="Be brief.", messages=PROMPT)
    assert count.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    stopped = client.messages.create(**{**arguments, "stop_sequences": [text[2:5]]})
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text[2:5]


@case("anthropic")
def anthropic_tools(server):
    client = anthropic_client(server)
    tool = {"name": "get_weather", "description": "x", "input_schema": WEATHER["function"]["parameters"]}
    arguments = dict(model="any", max_tokens=100, messages=[{"role": "user", "content": "Weather in Paris?"}], tools=[tool], tool_choice={"type": "any"})
    answer = client.messages.create(**arguments)
    use = next(block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use" and use.name == "get_weather" and set(use.input) == {"city"}
    with client.messages.stream(**arguments) as stream:
        streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
    assert set(streamed.input) == {"city"}
    messages = arguments["messages"] + [{"role": "assistant", "content": [block.model_dump() for block in answer.content]},
                                        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]
    assert client.messages.create(model="any", max_tokens=8, messages=messages, tools=[tool]).content


@case("anthropic")
def anthropic_errors(server):
    anthropic = importlib.import_module("anthropic")
    try:
        anthropic_client(server).messages.create(model="any", max_tokens=4, messages=[{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}])
    except anthropic.BadRequestError as error:
        assert error.body["type"] == "error" and "messages[0].content[0]" in error.body["error"]["message"], error.body
    else:
        raise AssertionError("an image was accepted")


# ---- ollama, langchain, litellm -----------------------------------------------------------------------------------------

@case("ollama")
def ollama_client(server):
    client = importlib.import_module("ollama").Client(host=server.url, timeout=300)
    name = client.list().models[0].model
    options = {"temperature": 0, "num_predict": 12}
    whole = client.chat(model=name, messages=PROMPT, options=options)
    parts = list(client.chat(model=name, messages=PROMPT, options=options, stream=True))
    assert whole.done and "".join(part.message.content for part in parts) == whole.message.content and parts[-1].eval_count == whole.eval_count
    text = client.generate(model=name, prompt="The capital of France is", raw=True, options=options)
    assert text.response == server.run("--raw", "-p", "The capital of France is", "--temp", "0", "-n", "12")
    assert set(json.loads(client.chat(model=name, messages=PROMPT, format=PERSON, options={"num_predict": 100}).message.content)) == {"name", "age"}
    assert client.show(name).details.family
    assert client.ps().models[0].model == name
    assert len(client.embed(model=name, input=["a", "b"]).embeddings) == 2


@case("langchain_openai")
def langchain_openai(server):
    chat = importlib.import_module("langchain_openai").ChatOpenAI(base_url=server.url + "/v1", api_key="none", model="any", temperature=0, max_tokens=40, max_retries=0)
    whole = chat.invoke("Name one colour.").content
    assert "".join(chunk.content for chunk in chat.stream("Name one colour.")) == whole
    assert set(chat.with_structured_output({"title": "person", "description": "A person.", **PERSON}, method="json_schema").invoke("A person.")) == {"name", "age"}
    bound = chat.bind_tools([{**WEATHER["function"], "description": "The weather of a city."}], tool_choice="get_weather")
    assert bound.invoke("Weather in Paris?").tool_calls[0]["name"] == "get_weather"


@case("litellm")
def litellm_completion(server):
    litellm = importlib.import_module("litellm")
    arguments = dict(model="openai/any", api_base=server.url + "/v1", api_key="none", messages=PROMPT, max_tokens=12, temperature=0, num_retries=0)
    whole = litellm.completion(**arguments).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**arguments, stream=True)) == whole
    claude = litellm.completion(**{**arguments, "model": "anthropic/any", "api_base": server.url})
    assert claude.choices[0].message.content == whole


# ---- request shapes -----------------------------------------------------------------------------------------------------

def post(server, path, body, headers=None):
    """The response body. A status other than 200 raises."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        error.msg = error.read().decode()
        raise


def frames(text):
    """The event names and data of a stream of server-sent events."""
    found = []
    for frame in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("event"), lines["data"]))
    return found


@case()
def codex_request_shape(server):
    body = {"model": "any", "instructions": "You are a coding agent.", "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list files"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "a.c b.c"}]}],
        "tools": [{"type": "function", "name": "shell", "description": "Runs a command", "strict": False, "parameters": {"type": "object", "properties": {
            "command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"], "additionalProperties": False}},
            {"type": "custom", "name": "apply_patch", "description": "x", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
            {"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"},
            {"type": "namespace", "name": "mcp", "description": "x", "tools": []}],
        "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "abc", "text": {"verbosity": "medium"}, "client_metadata": {"x": "y"},
        "max_output_tokens": 8}
    events = [(name, json.loads(data)) for name, data in frames(post(server, "/v1/responses", body, {"originator": "codex_cli_rs", "session_id": "x"}))]
    kinds = [data["type"] for _, data in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert all(name == data["type"] for name, data in events) and events[-1][1]["response"]["usage"]["output_tokens"] >= 1
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    try:
        post(server, "/v1/responses", {"model": "any", "input": "x", "previous_response_id": "resp_1"})
    except urllib.error.HTTPError as error:
        assert error.code == 400 and "previous_response_id" in error.msg
    else:
        raise AssertionError("previous_response_id was accepted")


def claude_code_body(number):
    return {"model": "any", "max_tokens": 8, "stream": True, "system": [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={number:05x};"},
        {"type": "text", "text": "You are Claude Code. " * 30, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
                     {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "abc"}, {"type": "text", "text": "Hello."}]},
                     {"role": "user", "content": "go on"}],
        "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"],
                                                                                    "additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"}},
                  {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "metadata": {"user_id": "user_x"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "context_management": {"edits": []}, "output_config": {"effort": "medium"}}


@case()
def claude_code_request_shape(server):
    headers = {"x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    for number in (1, 2):
        events = [(name, json.loads(data)) for name, data in frames(post(server, "/v1/messages?beta=true", claude_code_body(number), headers))]
    assert events[0][0] == "message_start" and events[-1][0] == "message_stop" and all(name == data["type"] for name, data in events)
    assert events[0][1]["message"]["usage"]["cache_read_input_tokens"] >= 64, "the rotating header defeated the prefix cache"
    body = {key: value for key, value in claude_code_body(3).items() if key not in ("max_tokens", "stream")}
    assert json.loads(post(server, "/v1/messages/count_tokens?beta=true", body, headers))["input_tokens"] > 64


@case()
def open_webui_and_aider_request_shapes(server):
    assert json.loads(urllib.request.urlopen(server.url + "/models").read())["data"]
    body = {"model": "any", "stream": True, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stream_options": {"include_usage": True},
            "max_tokens": 8, "user": "x", "metadata": {"chat_id": "y"}}
    data = [json.loads(data) for _, data in frames(post(server, "/chat/completions", body)) if data != "[DONE]"]
    assert any("timings" in chunk for chunk in data) and data[-1]["choices"] == []
    aider = {"model": "any", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "not json"}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "y"},
        {"role": "user", "content": "go"}], "temperature": 0, "stream": False, "max_tokens": 4}
    assert json.loads(post(server, "/v1/chat/completions", aider))["choices"][0]["message"]["role"] == "assistant"


AGENT_TOOLS = [{"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "number"}}, "required": ["path"], "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#"}}}]


def stream_of(server, body, headers=None, path="/v1/chat/completions"):
    data = [data for _, data in frames(post(server, path, body, headers))]
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(text) for text in data[:-1]]


@case()
def opencode_request_shape(server):
    """@ai-sdk/openai-compatible: a call of a tool and its result, and the title of the session by a small request."""
    headers = {"Authorization": "Bearer none", "User-Agent": "opencode/1.1.35 ai-sdk/openai-compatible/1.0.27"}
    body = {"model": "any", "max_tokens": 8, "temperature": 0, "top_p": 1, "messages": [
        {"role": "system", "content": "You are opencode."}, {"role": "user", "content": [{"type": "text", "text": "read"}, {"type": "text", "text": "a.c"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a.c\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "int a;"}], "tools": AGENT_TOOLS, "tool_choice": "auto",
        "stream": True, "stream_options": {"include_usage": True}}
    chunks = stream_of(server, body, headers)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] >= 1
    assert any(chunk["choices"] and chunk["choices"][0]["finish_reason"] for chunk in chunks)
    title = {"model": "any", "max_tokens": 8, "temperature": 0.5, "stream": True, "stream_options": {"include_usage": True},
             "messages": [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "read a.c"}]}
    assert stream_of(server, title, headers)[-1]["usage"]


@case()
def continue_request_shapes(server):
    """Chat by its provider openai, autocompletion by llama.cpp."""
    body = {"messages": [{"role": "system", "content": "You are in chat mode."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "model": "any", "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}, "tools": AGENT_TOOLS, "parallel_tool_calls": False}
    assert stream_of(server, body, {"Authorization": "Bearer none", "api-key": "none"})[-1]["usage"]["prompt_tokens"] > 0
    fill = {"prompt": "int main() {", "stream": True, "n_predict": 8, "stop": ["\n\n"], "temperature": 0.01, "top_k": 40, "min_p": None, "mirostat": None}
    parts = [json.loads(data) for _, data in frames(post(server, "/completion", fill, {"Authorization": "Bearer "}))]
    assert parts[-1]["stop"] and not any(part["stop"] for part in parts[:-1])


@case()
def cline_request_shape(server):
    body = {"model": "any", "messages": [{"role": "system", "content": "You are Cline."}, {"role": "user", "content": [
        {"type": "text", "text": "<task>hi</task>"}, {"type": "text", "text": "<environment_details>x</environment_details>"}]},
        {"role": "assistant", "content": "<thinking>go</thinking>"}, {"role": "user", "content": [{"type": "text", "text": "go on"}]}],
        "temperature": 0, "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
    assert stream_of(server, body, {"HTTP-Referer": "https://cline.bot", "X-Title": "Cline", "Authorization": "Bearer none"})[-1]["usage"]


@case()
def curl_streams(server):
    body = json.dumps({"messages": PROMPT, "stream": True, "max_tokens": 4})
    done = subprocess.run(["curl", "-sN", server.url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("data: [DONE]\n\n"), done


if __name__ == "__main__":
    CASES.main()
