"""Runs language models: a thin layer over libmlxcel.

    import mlxcel

    with mlxcel.load("model.gguf") as model:
        print(model.generate("Once upon a time", max_tokens=40))
        for text in model.stream("Once upon a time", temperature=0):
            print(text, end="", flush=True)
        print(model.chat([{"role": "user", "content": "Hello"}]))
        vector = model.embed("a text")

load() takes any model: a file, a folder, or a name such as "hf:ORG/NAME". It pulls a model that is not here, and compiles one that is not
compiled: that needs the tools of pip install mlxcel[compiler]. A compiled model (.mlxb, made by mlxcel compile) needs none.

Threads: a model may be used by any number of threads and asyncio tasks at the same time. One thread of the model runs all requests: they
share its steps, and each gets the tokens that it would get alone. A stream must be used by one thread or task at a time. close() ends the
requests that run; their callers get a ValueError. A process that is forked after load() cannot use the model.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast, overload

from . import _abi
from ._answers import Answer, AsyncStream, Prepared, Stream, arun, run
from ._driver import Driver, Request
from ._embeddings import EmbeddingBatch, Embeddings, make_embeddings, shorten
from ._library import Error, check, initialized, library, take_bytes
from ._options import Options, Output, Unpack, check_names, generate_options, messages_json, tools_json
from ._results import Logprob, Ranked, Result, TokenLogprob, ToolCall, Usage
from ._tools import environment

__all__ = ["AsyncStream", "Embeddings", "Error", "Logprob", "Message", "Messages", "Model", "Options", "Ranked", "Result", "Stream", "TokenLogprob", "ToolCall", "Usage", "load",
           "version"]

Message = Mapping[str, Any]  # {"role": "user", "content": "Hello"}
Messages = Sequence[Message]

_DEVICES = {"auto": _abi.MLXCEL_USE_AUTO, "cpu": _abi.MLXCEL_USE_CPU, "cuda": _abi.MLXCEL_USE_CUDA}
_SEQUENCES = 8  # of a model that generates; an encoder has 64 by default
_models: "weakref.WeakSet[Model]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The interpreter must not end while the library computes."""
    for model in list(_models):
        model.close()


def version() -> str:
    """The version of libmlxcel."""
    return str(library.mlxcel_version().decode())


_Report = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)  # mlxcel_report_t.emit


def _open(model: bytes, options: Any, progress: Optional[Callable[[str], None]]) -> ctypes.c_void_p:
    """Opens an engine on another thread, so that Ctrl-C can end it. |progress| is called on that thread."""
    engine, cancel = ctypes.c_void_p(), ctypes.c_void_p()
    failures: List[BaseException] = []

    def emit(_: Any, kind: int, text: bytes) -> None:
        try:
            if progress and text and not failures:
                progress(text.decode("utf-8", "replace"))
        except BaseException as failure:  # ctypes would print it and continue
            failures.append(failure)
            library.mlxcel_cancel_set(cancel)

    def work() -> None:
        try:
            check(library.mlxcel_open(model, ctypes.byref(options), ctypes.byref(engine)))
        except Error as error:
            failures.append(error)

    check(library.mlxcel_cancel_create(ctypes.byref(cancel)))
    callback = _Report(emit)
    report = _abi.mlxcel_report_t(emit=ctypes.cast(callback, ctypes.c_void_p), cancel=cancel)
    options.report, options.keep = ctypes.addressof(report), (report, callback)  # the thread has |options|
    thread = threading.Thread(target=work, name="mlxcel load", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        library.mlxcel_cancel_set(cancel)
        thread.join()
        library.mlxcel_engine_close(engine)
        raise
    finally:
        if not thread.is_alive():
            library.mlxcel_cancel_free(cancel)
    if failures:
        library.mlxcel_engine_close(engine)
        raise failures[0]
    return engine


class Model:
    """A model that is loaded on one device. Make one with load()."""

    def __init__(self, model: Union[str, "os.PathLike[str]"], *, device: str = "auto", context: int = 0, sequences: int = 0, threads: int = 0,
                 memory: int = 0, dtype: Optional[str] = None, kv: Optional[str] = None, quantize: Optional[str] = None, allow_unsigned: bool = False,
                 progress: Optional[Callable[[str], None]] = None) -> None:
        if device not in _DEVICES:
            raise ValueError(f"device is '{device}'; expected one of: {', '.join(_DEVICES)}")
        options = initialized(_abi.mlxcel_engine_options_t, library.mlxcel_engine_options_initialize)
        options.device, options.context, options.sequences, options.threads = _DEVICES[device], context, sequences or -_SEQUENCES, threads
        options.memory, options.allow_unsigned = memory, allow_unsigned
        options.dtype, options.kv, options.quantize = (text.encode() if text else None for text in (dtype, kv, quantize))
        os.environ.update(environment())
        engine, scheduler = _open(os.fsencode(model), options, progress), ctypes.c_void_p()
        choices = initialized(_abi.mlxcel_scheduler_options_t, library.mlxcel_scheduler_options_initialize)
        try:
            check(library.mlxcel_scheduler_create(engine, ctypes.byref(choices), ctypes.byref(scheduler)))
        except Error:
            library.mlxcel_engine_close(engine)
            raise
        self._driver = Driver(engine, scheduler)
        _models.add(self)

    def close(self) -> None:
        """Ends all requests and frees the model's memory. A closed model cannot be used."""
        self._driver.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_driver"):
            self._driver.stop()  # without waiting: this may be any thread

    def _call(self, function: Callable[[ctypes.c_void_p], Any]) -> Any:
        """Calls a function with the engine, which stays open for the call."""
        with self._driver.lock:
            if not self._driver.engine:
                raise ValueError("the model is closed")
            return function(self._driver.engine)

    @property
    def info(self) -> Dict[str, Any]:
        """What mlxcel_engine_info returns: device, dtype, context, vocab, hidden and so on."""

        def read(engine: ctypes.c_void_p) -> Dict[str, Any]:
            info = library.mlxcel_engine_info(engine)
            values = {name: getattr(info, name) for name, _ in info._fields_}
            return {name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for name, value in values.items()}

        return cast(Dict[str, Any], self._call(read))

    # ---- tokens -------------------------------------------------------------------------------------------------------

    def _tokens(self, text: bytes, rendered: bool) -> "ctypes.Array[ctypes.c_int32]":
        return self._encode(text, library.mlxcel_engine_tokenize_chat if rendered else library.mlxcel_engine_tokenize)

    def _encode(self, text: bytes, tokenize: Callable[..., Any]) -> "ctypes.Array[ctypes.c_int32]":
        ids, count = ctypes.c_void_p(), ctypes.c_size_t()
        check(self._call(lambda engine: tokenize(engine, text, len(text), ctypes.byref(ids), ctypes.byref(count))))
        result = (ctypes.c_int32 * count.value)()
        ctypes.memmove(result, ids, ctypes.sizeof(result))
        library.mlxcel_engine_free_ids(ids)
        return result

    def tokenize(self, text: str) -> List[int]:
        """The token ids of a text, with the model's start token if it has one."""
        return list(self._tokens(text.encode(), False))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; special tokens only with |special|."""
        array, out, length = (ctypes.c_int32 * len(ids))(*ids), ctypes.c_void_p(), ctypes.c_size_t()
        check(self._call(lambda engine: library.mlxcel_engine_detokenize(engine, array, len(array), special, ctypes.byref(out), ctypes.byref(length))))
        return take_bytes(out, length, library.mlxcel_free).decode("utf-8", "replace")

    def render(self, messages: Messages, *, tools: Optional[Sequence[Mapping[str, Any]]] = None, variables: Optional[Mapping[str, Any]] = None) -> str:
        """The messages as text, by the model's chat template. |variables| are extra template variables ("enable_thinking")."""
        return self._render(messages, tools, variables)[0].decode("utf-8", "replace")

    def _render(self, messages: Messages, tools: Optional[Sequence[Mapping[str, Any]]], variables: Optional[Mapping[str, Any]]) -> Tuple[bytes, bytes]:
        """The text, and the source of the template."""
        options = initialized(_abi.mlxcel_chat_options_t, library.mlxcel_chat_options_initialize)
        if tools:
            options.tools = tools_json(tools)
            options.tools_length = len(options.tools)
        if variables is not None:
            options.variables = json.dumps(dict(variables)).encode()
        text, out, length = messages_json(messages), ctypes.c_void_p(), ctypes.c_size_t()

        def render(engine: ctypes.c_void_p) -> bytes:
            chat = library.mlxcel_engine_chat(engine)
            if not chat:
                check(library.mlxcel_chat_missing_error(b"the model"))
            check(library.mlxcel_chat_render(chat, text, len(text), ctypes.byref(options), ctypes.byref(out), ctypes.byref(length)))
            return bytes(library.mlxcel_chat_source(chat, None, bool(tools)))

        source = self._call(render)
        return take_bytes(out, length, library.mlxcel_chat_free_text), source

    # ---- requests -----------------------------------------------------------------------------------------------------

    def _prepare(self, prompt: Union[str, Messages], options: Mapping[str, Any]) -> Prepared:
        is_chat, source = not isinstance(prompt, str), b""
        keep: List[Any] = []
        options = {name: value for name, value in options.items() if value is not None}
        check_names(options, is_chat)
        if isinstance(prompt, str):
            text = prompt.encode()
        else:
            text, source = self._render(prompt, options.get("tools"), options.get("variables"))
        output = Output(options, text, source)
        request = Request(self._tokens(text, is_chat), generate_options(options, output, is_chat, keep), keep)
        return Prepared(self, self._driver, request, output.reader() if is_chat else None)

    def _embedding_tokens(self, text: str, prompt: Optional[str]) -> "ctypes.Array[ctypes.c_int32]":
        """The tokens of a text after the model's prompt. Those that are too many are cut, as sentence-transformers does it."""
        info = self._call(library.mlxcel_engine_info)
        usual = {None: info.default_prompt, "": b"", "query": info.query_prompt, "document": info.document_prompt}
        named = str(prompt).encode()
        before = usual[prompt] if prompt in usual else self._call(lambda engine: library.mlxcel_engine_embedding_prompt(engine, named))
        if before is None:
            raise ValueError(f"prompt is '{prompt}'; the model has no prompt of that name")
        return self._encode(before + text.encode(), library.mlxcel_engine_tokenize_cut)

    def _prepare_embeddings(self, texts: Sequence[str], dimensions: Optional[int], prompt: Optional[str]) -> List[Callable[[], Prepared]]:
        info = self._call(library.mlxcel_engine_info)
        if dimensions is not None and not 1 <= dimensions <= info.hidden:
            raise ValueError(f"dimensions is {dimensions}; an embedding of this model has {info.hidden} numbers")

        def batch() -> Prepared:
            return Prepared(self, self._driver, EmbeddingBatch(self._driver, [self._embedding_tokens(text, prompt) for text in texts], dimensions or info.hidden))

        def one(text: str) -> Prepared:
            options = initialized(_abi.mlxcel_generate_options_t, library.mlxcel_generate_options_initialize)
            options.embed = True
            return Prepared(self, self._driver, Request(self._embedding_tokens(text, prompt), options, []))

        if info.is_encoder:
            return [batch] if texts else []
        return [functools.partial(one, text) for text in texts]  # beside the requests that run

    def _gather_embeddings(self, answers: Sequence[Answer], is_one: bool, dimensions: Optional[int]) -> Union[List[float], Embeddings]:
        info = self._call(library.mlxcel_engine_info)
        size = dimensions or info.hidden
        if info.is_encoder and answers:
            vectors = answers[0].embedding
        else:
            vectors = make_embeddings(len(answers), size)
            for index, answer in enumerate(answers):
                ctypes.Array.__getitem__(vectors, index)[:] = shorten(answer.embedding, size, info.is_normalized)
        return cast(List[float], vectors[0]) if is_one else cast(Embeddings, vectors)

    def _prepare_pair(self, first: bytes, second: bytes, instruction: Optional[str]) -> Prepared:
        pair = _abi.mlxcel_text_pair_t(first=first, second=second, first_length=len(first), second_length=len(second),
                                       instruction=None if instruction is None else instruction.encode())
        out, count = ctypes.c_void_p(), ctypes.c_size_t()
        check(self._call(lambda engine: library.mlxcel_engine_tokenize_pair(engine, ctypes.byref(pair), ctypes.byref(out), ctypes.byref(count))))
        ids = (ctypes.c_int32 * count.value)()
        ctypes.memmove(ids, out, ctypes.sizeof(ids))
        library.mlxcel_engine_free_ids(out)
        options = initialized(_abi.mlxcel_generate_options_t, library.mlxcel_generate_options_initialize)
        options.embed = True
        return Prepared(self, self._driver, Request(ids, options, []))

    # ---- generating ---------------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompt: str, **options: Unpack[Options]) -> Result: ...  # type: ignore[overload-overlap]

    @overload
    def generate(self, prompt: Sequence[str], **options: Unpack[Options]) -> List[Result]: ...

    def generate(self, prompt: Union[str, Sequence[str]], **options: Unpack[Options]) -> Union[Result, List[Result]]:
        """Continues a text, or a list of texts as one batch. Options gives the options and their types."""
        texts = _texts(prompt)
        results = [answer.result for answer in run([self._prepare(text, options) for text in texts])]
        return results[0] if isinstance(prompt, str) else results

    @overload
    def chat(self, messages: Messages, **options: Unpack[Options]) -> Result: ...

    @overload
    def chat(self, messages: Sequence[Messages], **options: Unpack[Options]) -> List[Result]: ...

    def chat(self, messages: Union[Messages, Sequence[Messages]], **options: Unpack[Options]) -> Union[Result, List[Result]]:
        """Answers the messages of a chat, which the model's chat template renders, or several chats as one batch.

        The result's |message| can be appended to the messages, also if it has tool calls.
        """
        chats, is_one = _chats(messages)
        results = [answer.result for answer in run([self._prepare(chat, options) for chat in chats])]
        return results[0] if is_one else results

    def stream(self, prompt: Union[str, Messages], **options: Unpack[Options]) -> Stream:
        """generate() of a text, or chat() of messages, as an iterator over the new text. Of a chat, this is the answer without reasoning."""
        return Stream(self._prepare(prompt, options))

    @overload
    def embed(self, text: str, *, dimensions: Optional[int] = None, prompt: Optional[str] = None) -> List[float]: ...  # type: ignore[overload-overlap]

    @overload
    def embed(self, text: Sequence[str], *, dimensions: Optional[int] = None, prompt: Optional[str] = None) -> Embeddings: ...

    def embed(self, text: Union[str, Sequence[str]], *, dimensions: Optional[int] = None, prompt: Optional[str] = None) -> Union[List[float], Embeddings]:
        """The embedding of a text, or those of a list of texts as one batch, in a buffer that numpy.asarray reads without a copy.

        An encoder's pooling makes them; of a decoder, an embedding is the final hidden state of the last token, with norm 1. |dimensions| keeps the
        first numbers, with the norm 1 again. |prompt| is "query" or "document": the model's prompt of that name is put before each text. A text that is
        longer than the context is cut.
        """
        answers = run([prepare() for prepare in self._prepare_embeddings(_texts(text), dimensions, prompt)])
        return self._gather_embeddings(answers, isinstance(text, str), dimensions)

    def rerank(self, query: str, documents: Sequence[str], *, top: Optional[int] = None, instruction: Optional[str] = None) -> List[Ranked]:
        """The |top| documents, or all, that a cross-encoder scores highest for a query, best first.

        |instruction| is the task, for rerankers that read one, as Qwen3-Reranker.
        """
        texts = _texts(documents)
        answers = run([self._prepare_pair(query.encode(), text.encode(), instruction) for text in texts])
        labels = self.info["labels"]
        if texts and labels != 1:
            raise ValueError(f"the model gives a text {labels} scores; a reranker gives one")
        # Sorted before the activation: sigmoids close to 1 can be equal although these numbers differ.
        numbers = [(answer.embedding or [0.0])[0] for answer in answers]
        scores = (ctypes.c_float * len(numbers))(*numbers)
        self._call(lambda engine: library.mlxcel_engine_activate_scores(engine, scores, len(scores)))
        order = sorted(range(len(texts)), key=lambda index: -numbers[index])
        return [Ranked(index, scores[index], texts[index]) for index in order[:top]]

    # ---- asyncio ------------------------------------------------------------------------------------------------------
    # Each awaits what the function without the "a" returns. A task that is cancelled ends its requests.

    @overload
    async def agenerate(self, prompt: str, **options: Unpack[Options]) -> Result: ...  # type: ignore[overload-overlap]

    @overload
    async def agenerate(self, prompt: Sequence[str], **options: Unpack[Options]) -> List[Result]: ...

    async def agenerate(self, prompt: Union[str, Sequence[str]], **options: Unpack[Options]) -> Union[Result, List[Result]]:
        texts = _texts(prompt)
        results = [answer.result for answer in await arun([functools.partial(self._prepare, text, options) for text in texts])]
        return results[0] if isinstance(prompt, str) else results

    @overload
    async def achat(self, messages: Messages, **options: Unpack[Options]) -> Result: ...

    @overload
    async def achat(self, messages: Sequence[Messages], **options: Unpack[Options]) -> List[Result]: ...

    async def achat(self, messages: Union[Messages, Sequence[Messages]], **options: Unpack[Options]) -> Union[Result, List[Result]]:
        chats, is_one = _chats(messages)
        results = [answer.result for answer in await arun([functools.partial(self._prepare, chat, options) for chat in chats])]
        return results[0] if is_one else results

    def astream(self, prompt: Union[str, Messages], **options: Unpack[Options]) -> AsyncStream:
        return AsyncStream(functools.partial(self._prepare, prompt, options))

    @overload
    async def aembed(self, text: str, *, dimensions: Optional[int] = None, prompt: Optional[str] = None) -> List[float]: ...  # type: ignore[overload-overlap]

    @overload
    async def aembed(self, text: Sequence[str], *, dimensions: Optional[int] = None, prompt: Optional[str] = None) -> Embeddings: ...

    async def aembed(self, text: Union[str, Sequence[str]], *, dimensions: Optional[int] = None, prompt: Optional[str] = None) -> Union[List[float], Embeddings]:
        answers = await arun(self._prepare_embeddings(_texts(text), dimensions, prompt))
        return self._gather_embeddings(answers, isinstance(text, str), dimensions)


def _texts(text: Union[str, Sequence[str]]) -> List[str]:
    texts = [text] if isinstance(text, str) else list(text)
    if not all(isinstance(one, str) for one in texts):
        raise TypeError("expected a text or a list of texts; messages are for chat()")
    return texts


def _chats(messages: Union[Messages, Sequence[Messages]]) -> Tuple[Sequence[Messages], bool]:
    """The chats of a call, and whether it has one chat instead of a list of them."""
    is_one = all(isinstance(message, Mapping) for message in messages)
    chats = [cast(Messages, messages)] if is_one else cast(Sequence[Messages], messages)
    if isinstance(messages, (str, Mapping)) or not all(isinstance(message, Mapping) for chat in chats for message in chat):
        raise TypeError("expected a list of messages, or a list of such lists; a text is for generate()")
    return chats, is_one


def load(model: Union[str, "os.PathLike[str]"], *, device: str = "auto", context: int = 0, sequences: int = 0, threads: int = 0, memory: int = 0,
         dtype: Optional[str] = None, kv: Optional[str] = None, quantize: Optional[str] = None, allow_unsigned: bool = False,
         progress: Optional[Callable[[str], None]] = None) -> Model:
    """Loads a model: a compiled one (.mlxb), a GGUF file, a Hugging Face folder, or a name (hf:ORG/NAME, oci://HOST/NAME:TAG, the URL of a GGUF
    file, a short name, a pulled model). Zeros and None mean the defaults of the command.

    device: "auto", "cpu" or "cuda". context: positions of a sequence. sequences: requests that run at the same time, or texts of one step of an
    encoder; others wait (default: 8, or 64 texts). memory: most bytes of the KV cache, which grows as it is used. dtype, kv, quantize: as the
    options of the command ("bf16", "q8", "q4"). allow_unsigned: open a bundle that another machine made and no trusted key signed. progress: called
    with a text while the model is pulled, compiled and loaded, on another thread; an exception that it raises ends the work.
    """
    return Model(model, device=device, context=context, sequences=sequences, threads=threads, memory=memory, dtype=dtype, kv=kv, quantize=quantize,
                 allow_unsigned=allow_unsigned, progress=progress)
