"""Records the requests of coding agents to `mlxcel serve`, for agents_test.py.

    python3 tests/clients/record_agents.py MLXCEL MODEL FOLDER [AGENT...]

FOLDER has the agents: each in a folder of its name in AGENTS, from `npm install PACKAGE` there, or, for aider, a virtual
environment. Each agent runs once, with the configuration of docs/agents.md, an empty home and a network that has only
loopback, which needs root. A proxy between agent and server makes the model call the first tool of TOOLS that the agent
has, with fixed arguments, and then end its turn. It cuts long texts of each request and writes the rest to recorded/.
"""
import datetime
import http.client
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading

from server import Server

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded")
SECONDS = 180
PROMPT = "Which files are in this folder?"
KEY = "key-of-the-recording"
HEADERS = ("accept", "anthropic-beta", "anthropic-version", "authorization", "content-type", "openai-beta", "originator", "user-agent", "x-api-key", "x-app")

CODEX = """model = "{model}"
model_provider = "mlxcel"
model_context_window = 65536

[model_providers.mlxcel]
name = "mlxcel"
base_url = "{url}/v1"
wire_api = "responses"

[mcp_servers.notes]
command = "{python}"
args = ["{home}/notes.py"]
"""
# A server of the Model Context Protocol with one tool.
NOTES = '''import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    answer = {{"initialize": {{"protocolVersion": call.get("params", {{}}).get("protocolVersion"), "capabilities": {{"tools": {{}}}}, "serverInfo": {{"name": "notes", "version": "1"}}}},
              "tools/list": {{"tools": [{{"name": "note", "description": "Keeps a note.", "annotations": {{"readOnlyHint": True}}, "inputSchema": {{
                  "type": "object", "properties": {{"text": {{"type": "string"}}}}, "required": ["text"]}}}}]}},
              "tools/call": {{"content": [{{"type": "text", "text": "kept"}}]}}}}.get(call["method"], {{}})
    print(json.dumps({{"jsonrpc": "2.0", "id": call["id"], "result": answer}}), flush=True)
'''
OPENCODE = """{{
  "$schema": "https://opencode.ai/config.json",
  "provider": {{
    "mlxcel": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "mlxcel",
      "options": {{"baseURL": "{url}/v1", "apiKey": "none"}},
      "models": {{"{model}": {{"name": "{model}", "limit": {{"context": 65536, "output": 8192}}}}}}
    }}
  }},
  "model": "mlxcel/{model}"
}}
"""
CONTINUE = """name: mlxcel
version: 1.0.0
schema: v1
models:
  - name: chat
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: none
    defaultCompletionOptions:
      contextLength: 65536
    roles: [chat, edit, apply]
"""

# name: package, variables, files of the home, commands. {model} and {url} are those of the server.
AGENTS = {
    "claude": ("@anthropic-ai/claude-code", {
        "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_API_KEY": "", "ANTHROPIC_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}", "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}", "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192"},
        {}, [["claude", "-p", PROMPT]]),
    "codex": ("@openai/codex", {}, {".codex/config.toml": CODEX, "notes.py": NOTES}, [["codex", "exec", "--skip-git-repo-check", PROMPT]]),
    "aider": ("aider-chat", {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "none"}, {},
              [["aider", "--model", "openai/{model}", "--message", PROMPT, "--yes-always", "--no-git", "--no-check-update"]]),
    "opencode": ("opencode-ai", {}, {".config/opencode/opencode.json": OPENCODE}, [["opencode", "run", PROMPT]]),
    "continue": ("@continuedev/cli", {}, {".continue/config.yaml": CONTINUE}, [["cn", "-p", PROMPT]]),
    "cline": ("cline", {}, {}, [["cline", "auth", "-p", "openai", "-k", "none", "-m", "{model}", "-b", "{url}/v1"], ["cline", PROMPT]]),
}
# The calls that the model is made to write, one after the other: the name of a tool and its arguments.
CALLS = {
    "claude": [("Bash", {"command": "ls"}), ("ToolSearch", {"query": "select:WebFetch", "max_results": 3}), ("Read", {"file_path": "{work}/hello.txt"}),
               ("Write", {"file_path": "{work}/new.txt", "content": "new"})],
    "codex": [("exec_command", {"cmd": "ls"}), ("note", {"text": "x"}), ("get_goal", {})],
    "aider": [],
    "opencode": [("bash", {"command": "ls"}), ("read", {"filePath": "{work}/hello.txt"}), ("todowrite", {"todos": [{"content": "x", "status": "pending", "priority": "low"}]})],
    "continue": [("List", {"dirpath": "."}), ("Read", {"filepath": "hello.txt"}), ("Checklist", {"checklist": "- [ ] x"})],
    "cline": [("run_commands", {"commands": ["ls"]}), ("read_files", {"files": [{"path": "{work}/hello.txt"}]}), ("editor", {"path": "{work}/new.txt", "new_text": "new"})],
}
ANSWER = {"type": "object", "properties": {"answer": {"const": "hello.txt"}}, "required": ["answer"], "additionalProperties": False}


class Shortener:
    """Cuts texts, and replaces ids and what names this machine. The same id gets the same number."""

    def __init__(self, home):
        self.ids, self.home = {}, home

    def number(self, found):
        text = found[0]
        index = self.ids.setdefault(text, len(self.ids) + 1)
        return re.sub("[0-9a-fA-F]", "0", text)[:-4] + f"{index:04}"

    def text(self, text, limit):
        text = text.replace(self.home, "/home/user").replace(socket.gethostname(), "host")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-zA-Z])[0-9a-f]{16,}(?![0-9a-zA-Z])", self.number, text)
        return text if len(text) <= limit else text[:limit] + "…"

    def value(self, value, limit=120, is_schema=False):
        if isinstance(value, dict):
            return {self.text(key, 200): self.value(item, 24 if key == "description" and isinstance(item, str) else 2000 if key in ("arguments", "pattern") else limit)
                    for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, limit) for item in value]
        return self.text(value, limit) if isinstance(value, str) else value


def name_of(tool):
    return tool.get("function", tool).get("name")


def tool_of(body, name):
    """The tool |name|, which may be in a namespace, and the name that the model sees."""
    tools = [(prefix, tool) for outer in body["tools"] for prefix, tool in [("", outer), *((outer["name"] + "__", inner) for inner in outer.get("tools", []))]]
    return next((prefix + name, tool) for prefix, tool in tools if name_of(tool) == name)


def steer(path, body, calls):
    """What the server gets: |body|, with a schema that makes the model write the next of |calls|, or end its turn."""
    body = json.loads(json.dumps(body))
    api = "messages" if "/messages" in path else "responses" if path.endswith("/responses") else "chat"
    if "count_tokens" in path or not isinstance(body, dict) or not body.get("messages", body.get("input")):
        return body
    texts = json.dumps(body.get("messages", body.get("input")))
    done = sum(texts.count(word) for word in ('"type": "tool_result"', '"type": "function_call_output"', '"role": "tool"'))
    if body.get("tools") and done < len(calls):
        name, values = calls[done]
        schema = {"type": "object", "properties": {key: {"const": value} for key, value in values.items()}, "required": list(values), "additionalProperties": False}
        name, tool = tool_of(body, name)
        tool.get("function", tool)["input_schema" if api == "messages" else "parameters"] = schema
        body["tool_choice"] = {"type": "tool" if api == "messages" else "function", **({"function": {"name": name}} if api == "chat" else {"name": name})}
        return body
    if api == "messages":
        body.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": ANSWER}
    elif api == "responses":
        body.setdefault("text", {})["format"] = {"type": "json_schema", "name": "answer", "schema": ANSWER}
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
    if body.get("tools"):
        body["tool_choice"] = {"type": "none"} if api == "messages" else "none"
    return body


def first_and_last(requests):
    """The first and the last request of each conversation; those between have nothing else."""
    groups = {}
    for entry in requests:
        body = entry.get("body", {})
        groups.setdefault((entry["method"], entry["path"], entry["status"], str([name_of(tool) for tool in body.get("tools") or []])), []).append(entry)
    return [entry for entry in requests if any(entry is group[0] or entry is group[-1] for group in groups.values())]


def write_recording(path, recording):
    """JSON with one line for each message and each tool."""
    text = json.dumps({**recording, "requests": []}, ensure_ascii=False)[:-2]
    requests = []
    for entry in recording["requests"]:
        lines = []
        for key, value in entry.get("body", {}).items():
            items = ",\n   ".join(json.dumps(item, ensure_ascii=False) for item in value) if isinstance(value, list) else None
            lines.append(f"  {json.dumps(key)}: " + (f"[\n   {items}]" if items else json.dumps(value, ensure_ascii=False)))
        head = json.dumps({key: value for key, value in entry.items() if key != "body"}, ensure_ascii=False)
        requests.append(head if not lines else head[:-1] + ', "body": {\n' + ",\n".join(lines) + "}}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n " + ",\n ".join(requests) + "\n]}\n")


class Proxy(http.server.ThreadingHTTPServer):
    """Forwards to |server|; |requests| are those of the agent, cut."""

    def __init__(self, server, home, calls):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.shortener, self.requests = server.url.removeprefix("http://"), Shortener(home), []
        self.calls = json.loads(json.dumps(calls).replace("{work}", home + "/project"))
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def forward(self):
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        proxy, entry = self.server, {"method": self.command, "path": self.path}
        entry["headers"] = {key.lower(): value for key, value in self.headers.items() if key.lower() in HEADERS}
        if data:
            entry["body"] = proxy.shortener.value(json.loads(data))
            data = json.dumps(steer(self.path, entry["body"], proxy.calls)).encode()
        connection = http.client.HTTPConnection(proxy.target, timeout=SECONDS)
        connection.request(self.command, self.path, data or None, {"content-type": "application/json"} if data else {})
        answer = connection.getresponse()
        entry["status"] = answer.status
        proxy.requests.append(entry)
        print(f"  {self.command} {self.path} {answer.status}", flush=True)
        self.send_response(answer.status)
        for key in ("content-type", "content-length", "x-request-id"):
            if answer.getheader(key):
                self.send_header(key, answer.getheader(key))
        self.send_header("connection", "close")
        self.end_headers()
        kept = b""
        while part := answer.read1(65536):
            kept += part
            self.wfile.write(part)
            self.wfile.flush()
        if answer.status != 200:
            print("    " + kept.decode()[:600])
        self.close_connection = True

    do_GET = do_POST = do_HEAD = do_DELETE = forward


def record(name, server, folder):
    package, variables, files, commands = AGENTS[name]
    with tempfile.TemporaryDirectory() as home:
        proxy = Proxy(server, home, CALLS[name])
        model = json.loads(http_get(server.url + "/v1/models"))["data"][0]["id"]
        values = {"url": proxy.url, "model": model, "home": home, "python": sys.executable}
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(home, path)), exist_ok=True)
            with open(os.path.join(home, path), "w", encoding="utf-8") as file:
                file.write(text.format(**values))
        work = os.path.join(home, "project")
        os.mkdir(work)
        with open(os.path.join(work, "hello.txt"), "w", encoding="utf-8") as file:
            file.write("hello\n")
        bin_folder = os.path.join(folder, name, "bin" if name == "aider" else "node_modules/.bin")
        environment = {"HOME": home, "PATH": bin_folder + ":" + os.environ["PATH"], "TERM": "dumb", **{key: value.format(**values) for key, value in variables.items()}}
        version = subprocess.run([os.path.join(bin_folder, commands[0][0]), "--version"], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                 timeout=SECONDS, check=False, cwd=work).stdout
        version = re.search(r"\d+(\.\d+)+", version)[0]
        print(f"{name} {version}", flush=True)
        for command in commands:
            command = [word.format(**values) for word in command]
            try:
                done = subprocess.run(command, env=environment, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False)
                print("  exit status", done.returncode, "\n    " + done.stdout[-1500:].replace("\n", "\n    "), flush=True)
            except subprocess.TimeoutExpired as error:
                print(f"  ended after {SECONDS} s\n    " + (error.stdout or b"").decode()[-1500:].replace("\n", "\n    "), flush=True)
        proxy.shutdown()
        for entry in proxy.requests:
            entry["headers"] = {key: "none" if key == "x-api-key" else "Bearer none" if key == "authorization" else value for key, value in entry["headers"].items()}
            if "model" in entry.get("body", {}):
                entry["body"]["model"] = "NAME"
        write_recording(os.path.join(FOLDER, name + ".json"), {"agent": package, "version": version, "date": str(datetime.date.today()), "requests": first_and_last(proxy.requests)})


def http_get(url):
    import urllib.request
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    if not os.environ.get("RECORD_INSIDE"):  # a network namespace without any interface but loopback
        os.execvpe("unshare", ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv], {**os.environ, "RECORD_INSIDE": "1"})
    mlxcel, model, folder = sys.argv[1:4]
    os.makedirs(FOLDER, exist_ok=True)
    with Server(mlxcel, model) as server:
        for name in sys.argv[4:] or AGENTS:
            record(name, server, os.path.abspath(folder))
        server.stop()


if __name__ == "__main__":
    main()
