"""The thread that runs a model: it alone calls the scheduler, so any thread may submit requests.

Requests of all threads and event loops share the steps of this thread. ctypes releases the GIL while a step runs. Python runs the
handlers of signals on the main thread, so Ctrl-C never interrupts the library: it interrupts the thread that waits for an answer.
"""
from __future__ import annotations

import ctypes
import os
import queue
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

from . import _abi
from ._library import check, library, take_bytes
from ._results import Logprob, TokenLogprob

_ON_TEXT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class Outcome:
    """What a request has computed."""

    prompt_tokens: int
    cached_tokens: int
    ids: List[int]
    text: bytes
    reason: int  # mlxcel_finish_reason_t
    logprobs: Optional[List[TokenLogprob]]
    routes: Optional[memoryview]
    embedding: Any  # the numbers of one text, or Embeddings; None: the request generates text


Event = Union[bytes, Outcome, Exception]  # new text; the last event is an outcome or an exception


class Request:
    """A request and what its options point to. After its submission, the driver's thread uses it alone."""

    def __init__(self, ids: "ctypes.Array[ctypes.c_int32]", options: _abi.mlxcel_generate_options_t, keep: List[Any]) -> None:
        self._ids, self._options, self._keep = ids, options, keep
        self._callback = _ON_TEXT(self._add)
        options.on_text = ctypes.cast(self._callback, ctypes.c_void_p)
        self._pieces: List[bytes] = []
        self._handle = ctypes.c_void_p()
        self.cancelled = False
        self.put: Callable[[Event], None] = lambda event: None  # called on the driver's thread

    def _add(self, _user: int, text: int, length: int) -> bool:
        self._pieces.append(ctypes.string_at(text, length))
        return True

    def begin(self, scheduler: ctypes.c_void_p) -> None:
        check(library.mlxcel_scheduler_submit(scheduler, self._ids, len(self._ids), ctypes.byref(self._options), ctypes.byref(self._handle)))

    def free(self) -> None:
        """Also cancels a request that is not done. The grammar in |keep| must outlive the request."""
        library.mlxcel_request_free(self._handle)
        self._handle = ctypes.c_void_p()
        self._keep.clear()

    def collect(self, engine: ctypes.c_void_p) -> bool:
        """Passes on what the last step has computed. Returns whether the request is done."""
        text, self._pieces = b"".join(self._pieces), []
        if text:
            self.put(text)
        if not library.mlxcel_request_is_done(self._handle):
            return False
        try:
            check(library.mlxcel_request_take_status(self._handle))
            self.put(self._outcome(engine))
        except Exception as error:
            self.put(error)
        return True

    def _outcome(self, engine: ctypes.c_void_p) -> Outcome:
        generation = _abi.mlxcel_generation_t.from_address(library.mlxcel_request_generation(self._handle))
        embedding = None
        if generation.embedding:
            embedding = list((ctypes.c_float * library.mlxcel_engine_info(engine).hidden).from_address(generation.embedding))
        ids = list((ctypes.c_int32 * generation.count).from_address(generation.ids)) if generation.count else []
        return Outcome(len(self._ids), generation.cached_tokens, ids, ctypes.string_at(generation.text, generation.text_length) if generation.text else b"",
                       generation.finish_reason, self._logprobs(engine, generation), self._routes(generation), embedding)

    def _routes(self, generation: _abi.mlxcel_generation_t) -> Optional[memoryview]:
        if not self._options.routes:
            return None
        shape = generation.route_count, generation.route_layers, generation.route_used
        count = shape[0] * shape[1] * shape[2]
        data = ctypes.string_at(generation.routes, 2 * count) if count else b""
        return memoryview(data).cast("h", shape) if count else memoryview(data).cast("h")

    def _logprobs(self, engine: ctypes.c_void_p, generation: _abi.mlxcel_generation_t) -> Optional[List[TokenLogprob]]:
        if self._options.logprobs < 0:
            return None
        width = self._options.logprobs + 1
        known: Dict[int, bytes] = {}
        entries = (_abi.mlxcel_logprob_t * (width * generation.count)).from_address(generation.logprobs) if generation.count else []

        def describe(entry: Any) -> Tuple[int, bytes, float]:
            if entry.id not in known:
                data, length = ctypes.c_void_p(), ctypes.c_size_t()
                check(library.mlxcel_engine_token_bytes(engine, entry.id, ctypes.byref(data), ctypes.byref(length)))
                known[entry.id] = take_bytes(data, length, library.mlxcel_free)
            return entry.id, known[entry.id], entry.logprob

        rows = [entries[start:start + width] for start in range(0, width * generation.count, width)]
        return [TokenLogprob(*describe(row[-1]), [Logprob(*describe(entry)) for entry in row[:-1]]) for row in rows]


class Driver:
    """Owns an engine and its scheduler."""

    def __init__(self, engine: ctypes.c_void_p, scheduler: ctypes.c_void_p) -> None:
        self.engine, self._scheduler = engine, scheduler
        # Held while another thread calls a function of the engine; |engine| is NULL once it is freed. Reentrant, because the garbage
        # collector may call close() of a user's object anywhere.
        self.lock = threading.RLock()
        self._open, self._process, self.stopping = True, os.getpid(), False
        self._inbox: "queue.SimpleQueue[Optional[Tuple[Any, bool]]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mlxcel", daemon=True)
        self._thread.start()

    def submit(self, request: Any) -> None:
        if os.getpid() != self._process:
            raise ValueError("the model was loaded before this process was forked: load it in the process that uses it")
        with self.lock:
            if not self._open:
                raise ValueError("the model is closed")
            self._inbox.put((request, True))

    def cancel(self, request: Any) -> None:
        """Frees a request; does nothing if it is done."""
        request.cancelled = True
        self._inbox.put((request, False))

    def stop(self) -> None:
        """Ends all requests, and frees the engine."""
        self.stopping = True
        self._inbox.put(None)

    def close(self) -> None:
        """stop(), and waits for it."""
        with self.lock:
            self._open = False
            self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        active: Set[Any] = set()
        idle = ctypes.c_bool()
        try:
            while self._take_messages(active):
                # An error of the step ends requests, and each of them has it.
                library.mlxcel_status_free(library.mlxcel_scheduler_step(self._scheduler, ctypes.byref(idle)))
                for request in [request for request in active if request.collect(self.engine)]:
                    active.remove(request)
                    request.free()
        finally:
            self._end(active)

    def _end(self, active: Set[Any]) -> None:
        with self.lock:
            self._open = False
            engine, self.engine = self.engine, ctypes.c_void_p()
        while not self._inbox.empty():
            message = self._inbox.get()
            if message and message[1]:
                active.add(message[0])
        for request in active:
            request.put(ValueError("the model was closed"))
            request.free()
        library.mlxcel_scheduler_free(self._scheduler)
        library.mlxcel_engine_close(engine)

    def _take_messages(self, active: Set[Any]) -> bool:
        """Waits until there is a request to run. Returns False after stop()."""
        while True:
            try:
                message = self._inbox.get(block=not active)
            except queue.Empty:
                return True
            if message is None:
                return False
            request, wanted = message
            if not wanted:
                if request in active:
                    active.remove(request)
                    request.free()
                continue
            try:
                request.begin(self._scheduler)
                active.add(request)
            except Exception as error:
                request.put(error)
