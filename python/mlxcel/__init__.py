"""Runs compiled language models: a thin layer over libmlxcel.

    import mlxcel

    with mlxcel.load("model.mlxb") as model:
        print(model.generate("Once upon a time", max_tokens=40))
        for text in model.stream("Once upon a time", temperature=0):
            print(text, end="", flush=True)
        print(model.chat([{"role": "user", "content": "Hello"}]))
        vector = model.embed("a text")

A model is compiled once with the command that this package installs: mlxcel compile MODEL -o model.mlxb

Threads: a model and its streams must be used by one thread at a time. Several streams of a model may be open at the same time; they
share its steps.
"""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from . import _abi

__all__ = ["Error", "Message", "Model", "Prompt", "load", "version"]

Message = Mapping[str, Any]  # {"role": "user", "content": "Hello"}
Prompt = Union[str, Sequence[Message]]  # a text to continue, or the messages of a chat

_DEVICES = {"auto": _abi.MLX_USE_AUTO, "cpu": _abi.MLX_USE_CPU, "cuda": _abi.MLX_USE_CUDA}
_ON_TEXT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SAMPLING = {name: kind for name, kind in _abi.mlx_sampling_t._fields_
             if kind in (ctypes.c_int64, ctypes.c_double, ctypes.c_uint64) and not name.endswith("_count")}


def _open_library() -> ctypes.CDLL:
    path = os.environ.get("MLXCEL_LIBRARY") or os.path.join(os.path.dirname(__file__), "lib", _abi.LIBRARY)
    library = ctypes.CDLL(path)
    for name, (result, parameters) in _abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    found = library.mlx_version().decode()
    if found.split(".")[:2] != _abi.VERSION.split(".")[:2]:
        raise ImportError(f"{path} is version {found}, but this package is for version {_abi.VERSION}")
    return library


_library = _open_library()


def version() -> str:
    """The version of libmlxcel."""
    return _library.mlx_version().decode()


class Error(RuntimeError):
    """A call of libmlxcel that failed. |code| is one of the exit statuses of the command."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.code, self.message, self.hint = code, message, hint


def _check(status: Optional[int]) -> None:
    """Raises the error of a status and frees the status."""
    if not status:
        return
    error = Error(_library.mlx_status_code(status), _library.mlx_status_message(status).decode("utf-8", "replace"),
                  _library.mlx_status_hint_text(status).decode("utf-8", "replace"))
    _library.mlx_status_free(status)
    raise error


def _take_text(pointer: ctypes.c_void_p, length: ctypes.c_size_t, free: Any) -> bytes:
    text = ctypes.string_at(pointer, length.value)
    free(pointer)
    return text


class _Request:
    """A request of the model's scheduler, and what its options point to."""

    def __init__(self, model: "Model", ids: "ctypes.Array[ctypes.c_int32]", options: _abi.mlx_generate_options_t, keep: List[Any]) -> None:
        self.pieces: List[bytes] = []
        self.keep = keep
        self.callback = _ON_TEXT(self._add)
        self.handle = ctypes.c_void_p()
        options.on_text = ctypes.cast(self.callback, ctypes.c_void_p)
        _check(_library.mlx_scheduler_submit(model._scheduler, ids, len(ids), ctypes.byref(options), ctypes.byref(self.handle)))

    def _add(self, _user: int, text: int, length: int) -> bool:
        self.pieces.append(ctypes.string_at(text, length))
        return True

    def free(self) -> None:
        _library.mlx_request_free(self.handle)
        self.handle = ctypes.c_void_p()


class Model:
    """A compiled model that is loaded on one device. Make one with load()."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, device: str = "auto", context: int = 0, sequences: int = 1, threads: int = 0,
                 memory: int = 0, allow_unsigned: bool = False) -> None:
        self._engine, self._scheduler = ctypes.c_void_p(), ctypes.c_void_p()
        self._requests: List[_Request] = []
        if device not in _DEVICES:
            raise ValueError(f"device is '{device}'; expected one of: {', '.join(_DEVICES)}")
        options = _abi.mlx_engine_options_t()
        _library.mlx_engine_options_initialize(ctypes.byref(options))
        options.device, options.context, options.sequences, options.threads = _DEVICES[device], context, sequences, threads
        options.memory, options.allow_unsigned = memory, allow_unsigned
        file = os.fsencode(path)
        if os.path.exists(file) and not _library.mlx_engine_is_bundle(file):
            raise Error(_abi.MLX_USAGE, f"'{os.fsdecode(file)}' is not a compiled model (.mlxb)",
                        f"compile it once: mlxcel compile {os.fsdecode(file)} -o model.mlxb")
        _check(_library.mlx_engine_open_bundle(file, ctypes.byref(options), ctypes.byref(self._engine)))
        scheduler = _abi.mlx_scheduler_options_t()
        _library.mlx_scheduler_options_initialize(ctypes.byref(scheduler))
        try:
            _check(_library.mlx_scheduler_create(self._engine, ctypes.byref(scheduler), ctypes.byref(self._scheduler)))
        except Error:
            self.close()
            raise

    def close(self) -> None:
        """Ends open streams and frees the model's memory. A closed model cannot be used."""
        for request in self._requests:
            request.free()
        self._requests.clear()
        _library.mlx_scheduler_free(self._scheduler)
        _library.mlx_engine_close(self._engine)
        self._engine, self._scheduler = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self.close()

    def _open_engine(self) -> ctypes.c_void_p:
        if not self._engine:
            raise ValueError("the model is closed")
        return self._engine

    @property
    def info(self) -> Dict[str, Any]:
        """What mlx_engine_info returns: device, dtype, context, vocab, hidden and so on."""
        info = _library.mlx_engine_info(self._open_engine())
        values = {name: getattr(info, name) for name, _ in info._fields_}
        return {name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for name, value in values.items()}

    # ---- tokens -------------------------------------------------------------------------------------------------------

    def _tokens(self, text: bytes, rendered: bool) -> "ctypes.Array[ctypes.c_int32]":
        ids, count = ctypes.c_void_p(), ctypes.c_size_t()
        tokenize = _library.mlx_engine_tokenize_chat if rendered else _library.mlx_engine_tokenize
        _check(tokenize(self._open_engine(), text, len(text), ctypes.byref(ids), ctypes.byref(count)))
        result = (ctypes.c_int32 * count.value)()
        ctypes.memmove(result, ids, ctypes.sizeof(result))
        _library.mlx_engine_free_ids(ids)
        return result

    def tokenize(self, text: str) -> List[int]:
        """The token ids of a text, with the model's start token if it has one."""
        return list(self._tokens(text.encode(), False))

    def render(self, messages: Sequence[Message], *, tools: Optional[Sequence[Any]] = None, variables: Optional[Mapping[str, Any]] = None) -> str:
        """The messages as text, by the model's chat template. |variables| are extra template variables ("enable_thinking")."""
        chat = _library.mlx_engine_chat(self._open_engine())
        if not chat:
            _check(_library.mlx_chat_missing_error(b"the model"))
        options = _abi.mlx_chat_options_t()
        _library.mlx_chat_options_initialize(ctypes.byref(options))
        if tools is not None:
            options.tools = json.dumps(list(tools)).encode()
            options.tools_length = len(options.tools)
        if variables is not None:
            options.variables = json.dumps(dict(variables)).encode()
        text = json.dumps([dict(message) for message in messages]).encode()
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        _check(_library.mlx_chat_render(chat, text, len(text), ctypes.byref(options), ctypes.byref(out), ctypes.byref(length)))
        return _take_text(out, length, _library.mlx_chat_free_text).decode("utf-8", "replace")

    # ---- generating ---------------------------------------------------------------------------------------------------

    def _sampling(self, keep: List[Any], values: Mapping[str, Any]) -> _abi.mlx_sampling_t:
        sampling = _abi.mlx_sampling_t()
        _library.mlx_sampling_initialize(ctypes.byref(sampling))
        sampling.seed = int.from_bytes(os.urandom(8), "little")
        for name, value in values.items():
            if name not in _SAMPLING:
                raise TypeError(f"unknown option '{name}'; sampling options are: {', '.join(sorted(_SAMPLING))}")
            setattr(sampling, name, float(value) if _SAMPLING[name] is ctypes.c_double else value)
        keep.append(sampling)
        return sampling

    @staticmethod
    def _grammar(grammar: Optional[str], json_schema: Optional[Mapping[str, Any]]) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if grammar is not None and json_schema is not None:
            raise ValueError("give a grammar or a json_schema, not both")
        if grammar is not None:
            text = grammar.encode()
            _check(_library.mlx_grammar_create(b"grammar", text, len(text), ctypes.byref(handle)))
        elif json_schema is not None:
            text = json.dumps(json_schema).encode()
            _check(_library.mlx_grammar_create_from_schema(b"json_schema", text, len(text), ctypes.byref(handle)))
        return handle

    def _submit(self, prompt: Prompt, max_tokens: int, stop: Sequence[str], grammar: ctypes.c_void_p, sampling: Mapping[str, Any]) -> _Request:
        keep: List[Any] = []
        text = prompt if isinstance(prompt, str) else self.render(prompt)
        ids = self._tokens(text.encode(), not isinstance(prompt, str))
        options = _abi.mlx_generate_options_t()
        _library.mlx_generate_options_initialize(ctypes.byref(options))
        options.max_tokens = max_tokens
        options.sampling = ctypes.addressof(self._sampling(keep, sampling))
        options.grammar = grammar
        stops = (ctypes.c_char_p * len(stop))(*(text.encode() for text in stop))
        options.stops, options.stop_count = ctypes.addressof(stops), len(stop)
        keep.append(stops)
        return _Request(self, ids, options, keep)

    def stream(self, prompt: Prompt, *, max_tokens: int = -1, stop: Sequence[str] = (), grammar: Optional[str] = None,
               json_schema: Optional[Mapping[str, Any]] = None, **sampling: Any) -> Iterator[str]:
        """Continues a text, or answers the messages of a chat, and yields the new text piece by piece.

        max_tokens -1 means: until the model stops or the context is full. |grammar| is GBNF. Sampling options are the fields of
        mlx_sampling_t: temperature, top_k, top_p, min_p, repeat_penalty, seed and so on. Closing the iterator ends the request.
        """
        rules = self._grammar(grammar, json_schema)
        request: Optional[_Request] = None
        try:
            request = self._submit(prompt, max_tokens, stop, rules, sampling)
            self._requests.append(request)
            idle = ctypes.c_bool()
            while self._engine and not _library.mlx_request_is_done(request.handle):
                _check(_library.mlx_scheduler_step(self._scheduler, ctypes.byref(idle)))
                text, request.pieces = b"".join(request.pieces), []
                if text:
                    yield text.decode("utf-8", "replace")
            if not self._engine:
                raise ValueError("the model was closed")
            text, request.pieces = b"".join(request.pieces), []  # text of steps that another stream ran
            if text:
                yield text.decode("utf-8", "replace")
            _check(_library.mlx_request_take_status(request.handle))
        finally:
            if request in self._requests:
                self._requests.remove(request)
                request.free()
            _library.mlx_grammar_free(rules)

    def generate(self, prompt: Prompt, *, max_tokens: int = -1, stop: Sequence[str] = (), grammar: Optional[str] = None,
                 json_schema: Optional[Mapping[str, Any]] = None, **sampling: Any) -> str:
        """The whole text that stream() yields."""
        return "".join(self.stream(prompt, max_tokens=max_tokens, stop=stop, grammar=grammar, json_schema=json_schema, **sampling))

    def chat(self, messages: Sequence[Message], **options: Any) -> str:
        """The answer to the messages of a chat, which the model's chat template renders. The options are those of generate()."""
        return self.generate(list(messages), **options)

    def embed(self, text: str) -> List[float]:
        """The embedding of a text: the final hidden state of its last token, with norm 1."""
        if self._requests:
            raise ValueError("embed() cannot run while a stream of the model is open")
        ids = self._tokens(text.encode(), False)
        session = ctypes.c_void_p()
        _check(_library.mlx_session_create(self._engine, ctypes.byref(session)))
        try:
            out = (ctypes.c_float * _library.mlx_engine_info(self._engine).hidden)()
            _check(_library.mlx_session_embed(session, ids, len(ids), out, len(out)))
        finally:
            _library.mlx_session_free(session)
        return list(out)


def load(path: Union[str, "os.PathLike[str]"], *, device: str = "auto", context: int = 0, sequences: int = 1, threads: int = 0, memory: int = 0,
         allow_unsigned: bool = False) -> Model:
    """Loads a compiled model (.mlxb). Zeros mean the defaults of the command.

    device: "auto", "cpu" or "cuda". context: positions of a sequence. sequences: requests that run at the same time. memory: most bytes of the KV
    cache. allow_unsigned: open a bundle that another machine made and no trusted key signed.
    """
    return Model(path, device=device, context=context, sequences=sequences, threads=threads, memory=memory, allow_unsigned=allow_unsigned)
