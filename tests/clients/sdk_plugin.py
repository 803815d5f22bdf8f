"""A pytest plugin for sdk_test.py: which of a package's own tests run, and what is changed in their requests.

The tests are written for a mock server that answers any request. This server refuses by name what it cannot do. Each field of REFUSED is
removed from the requests of a test, so that the test checks all other fields. Before that, the plugin sends the field in a valid request, and
the server must refuse it by that name. If the server starts to accept a field of the list, the test fails until the list is shortened.
"""
import copy
import fnmatch
import json
import os
import urllib.error
import urllib.request

import pytest

BASE = os.environ["TEST_API_BASE_URL"]
PACKAGE = os.environ["SDK_PACKAGE"]

# Tests that do not run, as patterns of their ids, with the reason. A pattern that matches no test is an error.
NOT_RUN = {
    "openai": {
        "tests/api_resources/test_completions.py::TestCompletions::*_all_params_overload_1[[]strict]":
            "the first token of an echoed prompt has no log-probability: null, as in OpenAI's API, is no float",
        "tests/api_resources/test_completions.py::TestAsyncCompletions::*_all_params_overload_1[[]strict]": "the same",
        "tests/api_resources/test_completions.py::TestAsyncCompletions::*_all_params_overload_1[[]aiohttp]": "the same",
        "*Completions::*_retrieve[[]*": "stored completions: the server stores nothing",
        "*Completions::*_update[[]*": "stored completions: the server stores nothing",
        "*Completions::*_list[[]*": "stored completions: the server stores nothing",
        "*Completions::*_list_with_all_params[[]*": "stored completions: the server stores nothing",
        "*Completions::*_delete[[]*": "stored completions: the server stores nothing",
        "*Models::test_*_delete[[]*": "models are files: the server deletes none",
        "*Responses::*_retrieve*": "stored responses: the server has none of this id",
        "*Responses::*_delete[[]*": "stored responses: the server has none of this id",
        "*Responses::*_cancel[[]*": "background responses: the server has none",
        "*Responses::*_compact*": "the server has no /v1/responses/compact",
        "*TestEmbeddings::test_*_create[[]strict]": "the client asks for base64 and validates before it decodes",
        "*TestAsyncEmbeddings::test_*_create[[]strict]": "the client asks for base64 and validates before it decodes",
        "*TestAsyncEmbeddings::test_*_create[[]aiohttp]": "the client asks for base64 and validates before it decodes",
    },
    "anthropic": {},
}

# Fields that are removed from requests, because the server refuses their values by name.
REFUSED = {
    "/chat/completions": ["audio", "max_completion_tokens", "max_tokens", "moderation", "web_search_options"],
    "/completions": ["best_of", "suffix"],
    "/embeddings": [],
    "/responses": ["background", "context_management", "conversation", "moderation", "previous_response_id", "prompt", "truncation"],
    "/v1/messages": ["compaction", "container", "fallback_credit_token", "fallbacks", "mcp_servers", "output_config.task_budget",
                     "thread"],
    "/v1/messages/count_tokens": ["compaction", "container", "mcp_servers", "output_config.task_budget", "thread"],
}
# A valid request of each endpoint.
VALID = {
    "/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/completions": {"prompt": "a"},
    "/embeddings": {"input": "a"},
    "/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
}
checked = set()


# Fields that are removed from requests with "tools", because they are the older form of them.
REFUSED_WITH_TOOLS = {"/chat/completions": ["functions", "function_call"]}


def check_refused(path, field, value, beside={}):
    outer, _, inner = field.partition(".")
    body = json.dumps({**VALID[path], **beside, outer: {inner: value} if inner else value})
    if (path, body) in checked:
        return
    checked.add((path, body))
    try:
        urllib.request.urlopen(urllib.request.Request(BASE + path, body.encode(), {"Content-Type": "application/json"}))
    except urllib.error.HTTPError as error:
        message = json.load(error)["error"]["message"]
        assert error.code == 400 and message.startswith(field), f"{path} refuses {field} with {error.code}: {message}"
    else:
        raise AssertionError(f"{path} accepts {field} of {body}: take it from REFUSED in sdk_plugin.py")


def change(path, body):
    path = path.split("?")[0]
    if path not in VALID or not isinstance(body, dict):
        return body
    body = copy.deepcopy(body)
    for field in REFUSED[path]:
        outer, _, inner = field.partition(".")
        owner, key = (body.get(outer), inner) if inner else (body, outer)
        if isinstance(owner, dict) and key in owner:
            check_refused(path, field, owner.pop(key))
    for field in REFUSED_WITH_TOOLS.get(path, ()):
        if field in body and body.get("tools"):
            check_refused(path, field, body.pop(field), {"tools": body["tools"]})
    # In Anthropic's tests a property of a tool is a string, which is no schema. The server reads the schemas of tools when it constrains the output.
    if path == "/v1/messages" and body.get("tools") and isinstance(body.get("output_config"), dict):
        body["output_config"].pop("format", None)
    # The mock server answers a response without input. This server and OpenAI's refuse it.
    return {**VALID[path], **body} if path == "/responses" else body


@pytest.fixture(autouse=True, scope="session")
def changed_requests():
    module = __import__(PACKAGE + "._base_client", fromlist=["BaseClient"])
    build = module.BaseClient._build_request

    def build_changed(self, options, **extra):
        options.json_data = change(options.url, options.json_data)
        return build(self, options, **extra)
    module.BaseClient._build_request = build_changed
    yield
    module.BaseClient._build_request = build


def pytest_collection_modifyitems(config, items):
    patterns = NOT_RUN[PACKAGE]
    left_out = [item for item in items if any(fnmatch.fnmatchcase(item.nodeid, pattern) for pattern in patterns)]
    unused = [pattern for pattern in patterns if not any(fnmatch.fnmatchcase(item.nodeid, pattern) for item in items)]
    if unused:
        raise pytest.UsageError(f"sdk_plugin.py: no test matches {unused}")
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
