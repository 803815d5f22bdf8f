"""What coding agents sent to `mlxcel serve` (recorded/, by record_agents.py), sent again.

    python3 tests/clients/agents_test.py MLXCEL MODEL [AGENT...]

For each agent: every request has the status of the recording and a whole stream; every tool of the agent can be called;
and a call with the arguments of the recording arrives whole, under the name that the agent gave the tool.
"""
import http.client
import json
import os
import sys

from record_agents import AGENTS, CALLS, FOLDER, name_of, steer
from server import Cases

CASES = Cases()
LIMIT = 12  # tokens of an answer that is not steered
NAME_LIMIT = 48  # tokens of an answer up to the name of a tool


def send(server, entry, body):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=600)
    connection.request(entry["method"], entry["path"], json.dumps(body) if body is not None else None, entry["headers"])
    answer = connection.getresponse()
    return answer, answer.read().decode()


def frames(text):
    """The event names and data of a stream of server-sent events."""
    found = []
    for frame in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in lines and lines["data"] != "[DONE]":
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


def calls_of_messages(text, body):
    """Checks an Anthropic stream: blocks one after the other, each opened, filled and closed. Returns its calls."""
    events = [(name, data) for name, data in frames(text) if name != "ping"]
    kinds = [name for name, _ in events]
    assert all(name == data["type"] for name, data in events)
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    calls, open_block, next_block = [], None, 0
    for kind, data in events[1:-2]:
        if kind == "content_block_start":
            assert open_block is None and data["index"] == next_block, data
            open_block, next_block = data["content_block"], next_block + 1
            if open_block["type"] == "tool_use":
                calls.append([open_block["name"], None, ""])
        else:
            assert open_block is not None and data["index"] == next_block - 1, data
            if kind == "content_block_stop":
                open_block = None
            elif data["delta"]["type"] == "input_json_delta":
                calls[-1][2] += data["delta"]["partial_json"]
    assert open_block is None and events[-2][1]["delta"]["stop_reason"] and events[-2][1]["usage"]["output_tokens"] >= 1
    assert body.get("thinking") or not any(data.get("content_block", {}).get("type") == "thinking" for _, data in events)
    return calls


def calls_of_chat(text, body):
    """Checks a stream of a chat completion."""
    assert text.rstrip().endswith("data: [DONE]"), text[-200:]
    chunks = [data for _, data in frames(text)]
    assert len({chunk["id"] for chunk in chunks}) == 1 and all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    if body.get("stream_options", {}).get("include_usage"):
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] >= 1, chunks[-1]
        chunks.pop()
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"]["role"] == "assistant"
    assert [bool(choice["finish_reason"]) for choice in choices].index(True) == len(choices) - 1, choices
    calls = []
    for call in (call for choice in choices for call in choice["delta"].get("tool_calls", [])):
        if call["index"] == len(calls):
            assert call["id"] and call["type"] == "function"
            calls.append([call["function"]["name"], None, ""])
        calls[call["index"]][2] += call["function"].get("arguments") or ""
    return calls


def calls_of_responses(text, _):
    """Checks a stream of a response: items one after the other, and the same items at its end."""
    events = frames(text)
    kinds = [name for name, _ in events if name != "keepalive"]
    assert all(name == data["type"] for name, data in events) and kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert [data["sequence_number"] for name, data in events if name != "keepalive"] == list(range(len(kinds)))
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")
    items = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert items == events[-1][1]["response"]["output"]
    return [[item["name"], item.get("namespace"), item["arguments"]] for item in items if item["type"] == "function_call"]


def check_of(path):
    return calls_of_messages if "/messages" in path else calls_of_responses if path.endswith("/responses") else calls_of_chat


def tools_of(body):
    """(namespace, name) of each tool that the server offers to the model."""
    return [(space, name_of(tool)) for outer in body.get("tools", []) for space, tool in [(None, outer)] + [(outer.get("name"), inner) for inner in outer.get("tools", [])]
            if tool.get("type", "function") in ("function", "custom") and name_of(tool) and ("input_schema" in tool or "parameters" in tool.get("function", tool))
            and (not tool.get("defer_loading") or f'"tool_name": "{name_of(tool)}"' in json.dumps(body["messages"]))]


def limited(path, body, limit):
    if path.endswith("/responses"):
        return {**body, "max_output_tokens": limit}
    return {**body, "max_tokens": limit}


def answer_of(server, entry, body):
    answer, text = send(server, entry, body)
    assert answer.status == 200, (answer.status, text[:600])
    assert answer.getheader("content-type").startswith("text/event-stream")
    return check_of(entry["path"])(text, body)


def replay(server, entry):
    body = entry.get("body")
    answer, text = send(server, entry, limited(entry["path"], body, LIMIT) if body else None)
    assert answer.status == entry["status"], (entry["path"], answer.status, text[:600])
    if body:
        assert body["stream"] is True
        check_of(entry["path"])(text, body)


def call_every_tool(server, entry):
    for space, name in tools_of(entry["body"]):
        choice = {"type": "tool", "name": name} if "/messages" in entry["path"] else {"type": "function", "name": f"{space}__{name}" if space else name}
        if entry["path"].endswith("/chat/completions"):
            choice = {"type": "function", "function": {"name": name}}
        calls = answer_of(server, entry, limited(entry["path"], {**entry["body"], "tool_choice": choice}, NAME_LIMIT))
        assert calls[0][:2] == [name, space], (name, space, calls)


def call_whole(server, entry, name):
    for index, (tool, arguments) in enumerate(CALLS[name]):
        body = steer(entry["path"], entry["body"], [[tool, arguments]] * 99)
        calls = answer_of(server, entry, body)
        assert calls[0][0] == tool and json.loads(calls[0][2]) == arguments, (index, calls)


def add(name):
    def case(server):
        with open(os.path.join(FOLDER, name + ".json"), encoding="utf-8") as file:
            recording = json.load(file)
        requests = recording["requests"]
        assert [entry for entry in requests if entry["method"] == "POST"] and recording["agent"] == AGENTS[name][0]
        for entry in requests:
            replay(server, entry)
        last = requests[-1]
        if CALLS[name]:
            assert len(tools_of(last["body"])) >= len(CALLS[name])
            call_every_tool(server, last)
            call_whole(server, last, name)
    case.__name__ = name
    CASES.case()(case)


for agent in AGENTS:
    add(agent)

if __name__ == "__main__":
    if len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
        print(f"skipped: there is no {sys.argv[2]}: ./build.sh test --all fetches it")
        sys.exit(77)
    CASES.main()
