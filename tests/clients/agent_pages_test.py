"""The configurations of docs/agents.md against a server: each address, key and model name of the page is used as the agent uses it.

    python3 tests/clients/agent_pages_test.py MLXCEL MODEL [CASE...]

Every setting of a configuration must be known here, so that a new one gets a request. The server has two models, so that a wrong name is an
error, and a key.
"""
import json
import os
import re
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server import Cases  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ADDRESS, NAME, KEY = "http://127.0.0.1:8080", "NAME", "none"  # of the page
MESSAGES = [{"role": "user", "content": "hi"}]
CASES = Cases()


def section(agent):
    with open(os.path.join(HERE, "../../docs/agents.md"), encoding="utf-8") as file:
        parts = file.read().split("\n## ")
    return next(part for part in parts if part.startswith(agent + "\n"))


def block(agent):
    """The first code block of the section."""
    return re.search(r"```\n(.*?)```", section(agent), re.S)[1]


def exports(agent):
    """Environment variables, and the command after them."""
    lines = block(agent).splitlines()
    variables = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    return variables, [line for line in lines if not line.startswith("export ")]


def send(server, url, body, headers):
    assert url.startswith(ADDRESS + "/"), url
    request = urllib.request.Request(server.url + url[len(ADDRESS):], json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=300) as response:
        assert not response.headers["X-Mlxcel-Ignored"], response.headers["X-Mlxcel-Ignored"]
        return response.read().decode()


def bearer(key):
    return {"Authorization": "Bearer " + key}


def chat(server, base, model, key):
    """A stream of chat completions, as OpenAI's clients ask for it: their base address has /v1."""
    body = {"model": model, "messages": MESSAGES, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    assert send(server, base.rstrip("/") + "/chat/completions", body, bearer(key)).endswith("data: [DONE]\n\n")


@CASES.case()
def the_server_needs_the_name_and_the_key(server):
    for model, key, status in (("OTHER", KEY, 404), (NAME, "wrong", 401)):
        try:
            chat(server, ADDRESS + "/v1", model, key)
        except urllib.error.HTTPError as error:
            assert error.code == status, error.code
        else:
            raise AssertionError(f"{model} with the key {key} was accepted")


@CASES.case()
def claude_code(server):
    variables, commands = exports("Claude Code")
    assert commands == ["claude"]
    base, token = variables.pop("ANTHROPIC_BASE_URL"), variables.pop("ANTHROPIC_AUTH_TOKEN")
    assert variables.pop("ANTHROPIC_API_KEY") == "", "it takes precedence over the token"
    models = [variables.pop(name) for name in ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL")]
    context, output = (int(variables.pop(f"CLAUDE_CODE_MAX_{what}_TOKENS")) for what in ("CONTEXT", "OUTPUT"))
    assert output * 8 == context, "the page says an eighth"
    assert not variables, variables
    headers = {**bearer(token), "anthropic-version": "2023-06-01"}
    for model in models:
        answer = json.loads(send(server, base + "/v1/messages?beta=true", {"model": model, "messages": MESSAGES, "max_tokens": 2}, headers))
        assert answer["type"] == "message"
        assert json.loads(send(server, base + "/v1/messages/count_tokens?beta=true", {"model": model, "messages": MESSAGES}, headers))["input_tokens"] > 0


@CASES.case("tomllib")
def codex(server):
    import tomllib
    config = tomllib.loads(block("Codex"))
    provider = config["model_providers"].pop(config.pop("model_provider"))
    model = config.pop("model")
    assert config.pop("model_context_window") > 0
    assert config == {"model_providers": {}}, config
    base, wire, _ = provider.pop("base_url"), provider.pop("wire_api"), provider.pop("name")
    assert wire == "responses" and not provider, provider
    assert '`env_key = "MLXCEL_KEY"`' in section("Codex")  # the variable's value is a bearer token
    answer = send(server, base + "/responses", {"model": model, "input": "hi", "stream": True, "store": False, "max_output_tokens": 2}, bearer(KEY))
    assert "event: response.created" in answer


@CASES.case()
def aider(server):
    variables, commands = exports("aider")
    base, key = variables.pop("OPENAI_API_BASE"), variables.pop("OPENAI_API_KEY")
    assert not variables, variables
    provider, model = re.fullmatch(r"aider --model (\w+)/(\w+)", commands[0]).groups()
    assert provider == "openai" and len(commands) == 1
    chat(server, base, model, key)


@CASES.case()
def opencode(server):
    config = json.loads(block("opencode"))
    name, model = config.pop("model").split("/")
    provider = config.pop("provider").pop(name)
    assert config.pop("$schema") and not config, config
    assert provider.pop("npm") == "@ai-sdk/openai-compatible" and provider.pop("name")
    assert model in provider.pop("models")
    options = provider.pop("options")
    chat(server, options.pop("baseURL"), model, options.pop("apiKey"))
    assert not options and not provider, (options, provider)


@CASES.case("yaml")
def continue_dev(server):
    import yaml
    config = yaml.safe_load(block("Continue"))
    models = config.pop("models")
    assert config.pop("name") and config.pop("version") and config.pop("schema") == "v1" and not config, config
    assert {role for model in models for role in model["roles"]} == {"chat", "edit", "apply", "autocomplete"}
    for model in models:
        assert model.pop("roles") and model.pop("name")
        provider, base, key, name = (model.pop(field) for field in ("provider", "apiBase", "apiKey", "model"))
        options = model.pop("defaultCompletionOptions", {"contextLength": 1})
        assert not model and options.pop("contextLength") > 0 and not options, (model, options)
        if provider == "openai":
            chat(server, base, name, key)
        else:
            assert provider == "llama.cpp" and base.endswith("/"), "it appends completion"
            body = {"model": name, "prompt": "int a", "stream": True, "n_predict": 2}
            assert '"stop":true' in send(server, base + "completion", body, bearer(key)).replace('"stop": true', '"stop":true')


@CASES.case()
def cline(server):
    rows = dict(re.findall(r"^\| ([A-Z][\w ]+) \| `?([^`|]+?)`? \|$", section("Cline"), re.M))
    assert rows.pop("API Provider") == "OpenAI Compatible"
    chat(server, rows.pop("Base URL"), rows.pop("Model ID"), rows.pop("API Key"))
    assert not rows, rows
    commands = block("Cline").split("\n")
    model, base = re.fullmatch(r"cline auth -p openai -k none -m (\w+) -b (\S+)", commands[0]).groups()
    chat(server, base, model, KEY)


if __name__ == "__main__":
    other = os.path.join(HERE, "../fixtures/qwen2")
    CASES.main("-m", other, "--alias", NAME + "=" + os.path.basename(os.path.normpath(sys.argv[2])), "--api-key", KEY, "--chat-template", "chatml")
