"""The options of generating, and the structs of libmlxcel that they become."""
from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from . import _abi
from ._library import check, initialized, library, take_bytes

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack
else:
    Unpack = Optional  # so that typing.get_type_hints works

__all__ = ["MessageReader", "Options", "Output", "Unpack", "check_names", "generate_options", "messages_json", "tools_json"]

_CHOICES = {"auto": _abi.MLXCEL_TOOLS_AUTO, "none": _abi.MLXCEL_TOOLS_NONE, "required": _abi.MLXCEL_TOOLS_REQUIRED}


class Options(TypedDict, total=False):
    """Options of generate(), chat() and stream()."""

    max_tokens: int  # -1: until the model stops or the context is full
    stop: Union[str, Sequence[str]]  # generation ends before the first of these texts
    ignore_eos: bool  # continue after an end-of-text token
    logprobs: int  # N: log-probabilities of each token and of the N most likely
    routes: bool  # the experts that each token was routed to: Result.routes
    routes_from: int  # of the tokens from this one on; without it, of all. Earlier ones may be shared with other requests
    grammar: str  # GBNF
    json_schema: Mapping[str, Any]
    response_format: Mapping[str, Any]  # {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": ...}}

    # Chats only
    tools: Sequence[Mapping[str, Any]]  # OpenAI's: {"type": "function", "function": {"name": ..., "parameters": ...}}
    tool_choice: Union[str, Mapping[str, Any]]  # "auto", "none", "required", or {"type": "function", "function": {"name": ...}}
    parallel_tool_calls: bool  # False: at most one call
    variables: Mapping[str, Any]  # of the chat template: {"enable_thinking": False}

    # Sampling: the fields of mlxcel_sampling_t. Without a seed, each request has a random one.
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repeat_last_n: int
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float


_SAMPLING = {field[0]: field[1] for field in _abi.mlxcel_sampling_t._fields_ if field[0] in Options.__annotations__}
_CHAT_ONLY = ("tools", "tool_choice", "parallel_tool_calls", "variables")


def check_names(options: Mapping[str, Any], is_chat: bool) -> None:
    """Raises a TypeError for an option that does not exist, or not for this kind of prompt."""
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"unknown option '{name}'; options are: {', '.join(sorted(Options.__annotations__))}")
        if name in _CHAT_ONLY and not is_chat:
            raise TypeError(f"'{name}' is an option of a chat: give messages instead of a text")


# ---- chats ----------------------------------------------------------------------------------------------------------------


def messages_json(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Messages as templates expect them: content that is not null, and arguments of tool calls as objects."""

    def call(given: Mapping[str, Any]) -> Dict[str, Any]:
        function = dict(given.get("function") or {})
        if isinstance(function.get("arguments"), str):
            try:
                parsed = json.loads(function["arguments"] or "{}")
            except ValueError:
                parsed = None
            function["arguments"] = parsed if isinstance(parsed, dict) else function["arguments"]
        return {**given, "function": function}

    def message(given: Mapping[str, Any]) -> Dict[str, Any]:
        result = {"content": "", **{key: value for key, value in given.items() if value is not None}}
        if result.get("tool_calls"):
            result["tool_calls"] = [call(item) for item in result["tool_calls"]]
        return result

    return json.dumps([message(given) for given in messages]).encode()


def tools_json(tools: Sequence[Mapping[str, Any]]) -> bytes:
    result = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type", "function") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f'tools[{index}]: expected {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}')
        others = {key: value for key, value in function.items() if key not in ("name", "parameters") and value is not None}
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        result.append({"type": "function", "function": {"name": function["name"], **others, "parameters": parameters}})
    return json.dumps(result).encode()


class Output:
    """What the output of a request may contain (mlxcel_output_options_t), and the format of its reasoning and tool calls."""

    def __init__(self, options: Mapping[str, Any], prompt: bytes, template: bytes) -> None:
        self.prompt, self._options = prompt, _abi.mlxcel_output_options_t()
        self.format = ctypes.c_void_p(library.mlxcel_output_format_find(template))
        if options.get("tools"):
            self._options.tools = tools_json(options["tools"])
            self._options.tools_length = len(self._options.tools)
        self._set_choice(options.get("tool_choice", "auto"))
        self._options.one_tool_call = not options.get("parallel_tool_calls", True)
        self._set_format(options)

    def _set_choice(self, choice: Any) -> None:
        if isinstance(choice, str) and choice in _CHOICES:
            self._options.tool_choice = _CHOICES[choice]
            return
        name = (choice.get("function") or {}).get("name") if isinstance(choice, Mapping) else None
        if not isinstance(name, str):
            raise ValueError('tool_choice: expected "auto", "none", "required" or {"type": "function", "function": {"name": ...}}')
        self._options.tool_choice, self._options.tool_name = _abi.MLXCEL_TOOLS_NAMED, name.encode()

    def _set_format(self, options: Mapping[str, Any]) -> None:
        given = [name for name in ("grammar", "json_schema", "response_format") if name in options]
        if len(given) > 1:
            raise ValueError(f"give {' or '.join(given)}, not both")
        if not given:
            return
        value, kind, path = options[given[0]], _abi.MLXCEL_FORMAT_JSON_SCHEMA, given[0]
        if path == "response_format":
            kinds = {"text": _abi.MLXCEL_FORMAT_TEXT, "json_object": _abi.MLXCEL_FORMAT_JSON, "json_schema": _abi.MLXCEL_FORMAT_JSON_SCHEMA}
            name = value.get("type") if isinstance(value, Mapping) else None
            if name not in kinds:
                raise ValueError('response_format: expected {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": ...}')
            kind, path, value = kinds[name], "response_format.json_schema.schema", (value.get("json_schema") or {}).get("schema")
            if name == "json_schema" and value is None:
                raise ValueError('response_format: expected {"type": "json_schema", "json_schema": {"schema": ...}}')
        elif path == "grammar":
            kind = _abi.MLXCEL_FORMAT_GBNF
            Grammar(value.encode())  # an error has the lines of the user's grammar
        text = value.encode() if kind == _abi.MLXCEL_FORMAT_GBNF else json.dumps(value).encode()
        self._options.format, self._options.format_text, self._options.format_length = kind, text, len(text)
        self._options.format_path = path.encode()

    def grammar(self) -> Optional["Grammar"]:
        """The grammar of the whole output; None if any text is allowed."""
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        check(library.mlxcel_output_format_grammar(self.format, ctypes.byref(self._options), self.prompt, len(self.prompt), ctypes.byref(text),
                                                ctypes.byref(length)))
        return Grammar(take_bytes(text, length, library.mlxcel_free)) if text else None

    def reader(self) -> "MessageReader":
        handle = ctypes.c_void_p()
        check(library.mlxcel_message_reader_create(self.format, ctypes.byref(self._options), self.prompt, len(self.prompt), ctypes.byref(handle)))
        return MessageReader(handle)


class Grammar:
    def __init__(self, text: bytes) -> None:
        self.handle = ctypes.c_void_p()
        check(library.mlxcel_grammar_create(b"grammar", text, len(text), ctypes.byref(self.handle)))

    def __del__(self) -> None:
        library.mlxcel_grammar_free(self.handle)


class MessageReader:
    """Reads the output of a chat: separates the answer from reasoning and tool calls."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle, self._length = handle, 0

    def add(self, text: bytes) -> str:
        """The text of the answer that |text| adds."""
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        check(library.mlxcel_message_reader_add(self._handle, text, len(text), ctypes.byref(out), ctypes.byref(length)))
        piece = ctypes.string_at(out, length.value).decode()
        self._length += len(piece)
        return piece

    def finish(self) -> Tuple[str, Dict[str, Any]]:
        """The rest of the answer, and the whole message."""
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        check(library.mlxcel_message_reader_finish(self._handle, ctypes.byref(out), ctypes.byref(length)))
        message: Dict[str, Any] = json.loads(take_bytes(out, length, library.mlxcel_free))
        return (message["content"] or "")[self._length:], message

    def __del__(self) -> None:
        library.mlxcel_message_reader_free(self._handle)


# ---- the struct -----------------------------------------------------------------------------------------------------------


def generate_options(options: Mapping[str, Any], output: Output, is_chat: bool, keep: List[Any]) -> _abi.mlxcel_generate_options_t:
    """|keep| gets what the struct points to."""
    result: _abi.mlxcel_generate_options_t = initialized(_abi.mlxcel_generate_options_t, library.mlxcel_generate_options_initialize)
    sampling = initialized(_abi.mlxcel_sampling_t, library.mlxcel_sampling_initialize)
    sampling.seed = int.from_bytes(os.urandom(8), "little")
    for name in _SAMPLING.keys() & options.keys():
        setattr(sampling, name, float(options[name]) if _SAMPLING[name] is ctypes.c_double else options[name])
    stop = options.get("stop", ())
    stops = [stop] if isinstance(stop, str) else list(stop)
    texts = (ctypes.c_char_p * len(stops))(*(text.encode() for text in stops))
    visible = (ctypes.c_char_p * _abi.MLXCEL_OUTPUT_FORMAT_TOKENS)()
    grammar = output.grammar()
    keep += [sampling, texts, visible, grammar]
    result.sampling = ctypes.addressof(sampling)
    result.stops, result.stop_count = ctypes.addressof(texts), len(stops)
    result.grammar = grammar.handle if grammar else None
    result.max_tokens, result.ignore_eos = options.get("max_tokens", -1), options.get("ignore_eos", False)
    result.logprobs = options.get("logprobs", -1)
    result.routes, result.routes_from = options.get("routes", False), options.get("routes_from", 0)
    if is_chat:
        result.visible_token_count = library.mlxcel_output_format_tokens(output.format, visible)
        result.visible_tokens = ctypes.addressof(visible)
    return result
