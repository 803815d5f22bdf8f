"""Answers while they are generated: iterators over their text, for threads and for event loops."""
from __future__ import annotations

import asyncio
import json
import os
import queue
from dataclasses import dataclass
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _abi
from ._driver import Driver, Event, Outcome
from ._options import MessageReader
from ._results import Result, ToolCall, Usage

# A thread of Windows that waits for a lock without a time limit does not see Ctrl-C.
_WAIT = 0.1 if os.name == "nt" else None
_NO_RESULT = "the stream has no result before its end"


def _finish_reason(reason: int, has_calls: bool) -> str:
    if reason in (_abi.MLXCEL_FINISH_LENGTH, _abi.MLXCEL_FINISH_CONTEXT):
        return "length"
    return "tool_calls" if has_calls else "stop"


def _tool_call(call: Dict[str, Any]) -> ToolCall:
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except ValueError:
        arguments = call["function"]["arguments"]
    return ToolCall(call["id"], call["function"]["name"], arguments)


@dataclass
class Prepared:
    """A request that can be submitted."""

    model: object  # a model that nothing refers to is closed
    driver: Driver
    request: Any  # Request or EmbeddingBatch
    reader: Optional[MessageReader] = None  # None: the prompt is a text


class Answer:
    """Submits a request and turns its events into text and a result. |put| is called on the driver's thread."""

    def __init__(self, prepared: Prepared, put: Callable[[Event], None]) -> None:
        self._prepared, self.ended = prepared, False
        self._result: Optional[Result] = None
        self.embedding: Any = None
        prepared.request.put = put
        prepared.driver.submit(prepared.request)

    @property
    def result(self) -> Result:
        if not self._result:
            raise ValueError(_NO_RESULT)
        return self._result

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._prepared.driver.cancel(self._prepared.request)

    def __del__(self) -> None:
        self.close()

    def take(self, event: Event) -> str:
        """The text that an event adds. Raises the error of a request that failed."""
        if isinstance(event, bytes):
            reader = self._prepared.reader
            return reader.add(event) if reader else event.decode("utf-8", "replace")
        self.ended = True
        if isinstance(event, Exception):
            raise event
        return self._finish(event)

    def _finish(self, outcome: Outcome) -> str:
        usage = Usage(outcome.prompt_tokens, len(outcome.ids), outcome.cached_tokens)
        reader, self.embedding = self._prepared.reader, outcome.embedding
        if not reader:
            self._result = Result(outcome.text.decode("utf-8", "replace"), _finish_reason(outcome.reason, False), usage, outcome.ids, outcome.logprobs,
                                  routes=outcome.routes)
            return ""
        rest, message = reader.finish()
        calls = [_tool_call(call) for call in message.get("tool_calls", [])]
        self._result = Result(message["content"] or "", _finish_reason(outcome.reason, bool(calls)), usage, outcome.ids, outcome.logprobs, message, calls,
                              outcome.routes)
        return rest


Tagged = Tuple[int, Event]  # the index of a request in a batch, and an event of it


def _wait(events: "queue.SimpleQueue[Tagged]") -> Tagged:
    while True:
        try:
            return events.get(timeout=_WAIT)
        except queue.Empty:
            pass


def _put_in_loop(events: "asyncio.Queue[Tagged]", index: int) -> Callable[[Event], None]:
    """Puts events into a queue of the running loop, from another thread."""
    loop = asyncio.get_running_loop()

    def put(event: Event) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, (index, event))
        except RuntimeError:
            pass  # the loop is closed

    return put


def run(batch: Sequence[Prepared]) -> List[Answer]:
    """Runs requests as one batch. If one fails, the others are cancelled."""
    events: "queue.SimpleQueue[Tagged]" = queue.SimpleQueue()
    answers: List[Answer] = []
    try:
        for index, prepared in enumerate(batch):
            answers.append(Answer(prepared, lambda event, index=index: events.put((index, event))))  # type: ignore[misc]
        while not all(answer.ended for answer in answers):
            index, event = _wait(events)
            answers[index].take(event)
    finally:
        for answer in answers:
            answer.close()
    return answers


async def arun(batch: Sequence[Callable[[], Prepared]]) -> List[Answer]:
    """The same in a task. Prompts are rendered and tokenized on threads of the loop's executor."""
    loop = asyncio.get_running_loop()
    events: "asyncio.Queue[Tagged]" = asyncio.Queue()
    answers: List[Answer] = []
    requests = await asyncio.gather(*(loop.run_in_executor(None, prepare) for prepare in batch))
    try:
        for index, prepared in enumerate(requests):
            answers.append(Answer(prepared, _put_in_loop(events, index)))
        while not all(answer.ended for answer in answers):
            index, event = await events.get()
            answers[index].take(event)
    finally:
        for answer in answers:
            answer.close()
    return answers


class Stream(Iterator[str]):
    """Yields the pieces of an answer as they are generated. |result| is the whole answer after the last piece.

    The model generates also while the caller does not wait for the next piece. close(), or the end of a with block, ends the request.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._events: "queue.SimpleQueue[Tagged]" = queue.SimpleQueue()
        self._answer = Answer(prepared, lambda event, events=self._events: events.put((0, event)))  # type: ignore[misc]

    def __next__(self) -> str:
        while not self._answer.ended:
            try:
                piece = self._answer.take(_wait(self._events)[1])
            except BaseException:  # also KeyboardInterrupt
                self.close()
                raise
            if piece:
                return piece
        raise StopIteration

    @property
    def result(self) -> Result:
        return self._answer.result

    def close(self) -> None:
        self._answer.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(AsyncIterator[str]):
    """The same for the tasks of an event loop: async for. A task that is cancelled while it waits for a piece ends the request."""

    def __init__(self, prepare: Callable[[], Prepared]) -> None:
        self._prepare: Optional[Callable[[], Prepared]] = prepare
        self._events: "Optional[asyncio.Queue[Tagged]]" = None
        self._answer: Optional[Answer] = None

    async def _begin(self, prepare: Callable[[], Prepared]) -> None:
        self._prepare = None
        events: "asyncio.Queue[Tagged]" = asyncio.Queue()
        prepared = await asyncio.get_running_loop().run_in_executor(None, prepare)
        self._events, self._answer = events, Answer(prepared, _put_in_loop(events, 0))

    async def __anext__(self) -> str:
        if self._prepare:
            await self._begin(self._prepare)
        while self._answer and self._events and not self._answer.ended:
            try:
                piece = self._answer.take((await self._events.get())[1])
            except BaseException:  # also asyncio.CancelledError
                self.close()
                raise
            if piece:
                return piece
        raise StopAsyncIteration

    @property
    def result(self) -> Result:
        if not self._answer:
            raise ValueError(_NO_RESULT)
        return self._answer.result

    def close(self) -> None:
        self._prepare = None
        if self._answer:
            self._answer.close()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
