"""mlxcel in Ray Serve: an engine with the methods of ray.serve.llm's LLMEngine, and a deployment with OpenAI's endpoints.

    from mlxcel.ray import build_app
    from ray import serve

    serve.run(build_app("qwen3:8b", num_replicas=2, ray_actor_options={"num_gpus": 1}))

Needs ray[serve]. The engine is the server of the package, `mlxcel serve`, as a child of the replica on a socket that only the replica's user can
open: requests, answers and streams are those of the server (docs/server.md). When the replica ends, however it ends, the child ends.
"""
from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from typing import Any, AsyncGenerator, Callable, Dict, List, Mapping, Optional, Sequence, Union

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ._tools import SUFFIX, environment

__all__ = ["ErrorResponse", "LLMEngine", "LLMServer", "build_app"]

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mlxcel" + SUFFIX)
_LINES = 20  # of the server's messages, in an error
_PR_SET_PDEATHSIG = 1


class ErrorResponse(Dict[str, Any]):
    """The body of an answer with an error, as OpenAI's API has it. |status| is its HTTP status."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self.status = status

    def __reduce__(self) -> Any:
        return ErrorResponse, (self.status, dict(self))


Answer = Union[str, Dict[str, Any], ErrorResponse]


def _ends_with_parent() -> Optional[Callable[[], None]]:
    """What the child calls before the program starts: Linux ends it when the replica is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) and None


def _body(request: Any) -> Dict[str, Any]:
    """The fields of a request that were given: of a dictionary, or of a model of pydantic."""
    if hasattr(request, "model_dump"):
        return dict(request.model_dump(mode="json", exclude_unset=True))
    return dict(request)


class LLMEngine:
    """One model. Requests are dictionaries, or pydantic models, with the fields of OpenAI's API.

    |name| is the model's name in answers; by default that of its file. |options| are further options of `mlxcel serve`, such as
    ["--parallel", "64"]. |program| is the program, in place of the one of this package.
    """

    def __init__(self, model: str, *, name: Optional[str] = None, options: Sequence[str] = (), program: Optional[str] = None) -> None:
        self._command: List[str] = [program or _PROGRAM, "serve", "-m", os.fspath(model), "--no-page", "--enable-sleep-mode", *options]
        if name:
            self._command += ["--served-model-name", name]
        self._folder: Optional[str] = None
        self._process: Optional[asyncio.subprocess.Process] = None
        self._session: Optional[aiohttp.ClientSession] = None
        self._reader: Optional["asyncio.Task[None]"] = None
        self._lines: List[str] = []

    async def start(self) -> None:
        """Returns when the model is loaded. Raises a RuntimeError with the server's messages if it does not start."""
        self._folder = tempfile.mkdtemp(prefix="mlxcel-")
        path = os.path.join(self._folder, "socket")
        self._process = await asyncio.create_subprocess_exec(*self._command, "--unix", path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                                                             stdin=asyncio.subprocess.DEVNULL, env={**os.environ, **environment()}, preexec_fn=_ends_with_parent())
        self._reader = asyncio.ensure_future(self._read_messages())
        assert self._process.stdout
        line = (await self._process.stdout.readline()).decode("utf-8", "replace")
        if not line.startswith("listening on"):
            await self._reader
            await self.shutdown()
            raise RuntimeError("the model does not start:\n" + "\n".join(self._lines))
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path, limit=0), timeout=aiohttp.ClientTimeout(total=None))

    async def _read_messages(self) -> None:
        """Passes the server's messages on, to the log of the replica."""
        assert self._process and self._process.stderr
        while line := (await self._process.stderr.readline()).decode("utf-8", "replace"):
            self._lines = [*self._lines[1 - _LINES:], line.rstrip()]
            sys.stderr.write(line)

    def _post(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Any:
        if not self._session:
            raise RuntimeError("the engine was not started")
        return self._session.post("http://localhost" + path, json=body or {})

    async def _ask(self, path: str, request: Any) -> AsyncGenerator[Answer, None]:
        """Yields the events of a stream, "data: {...}\\n\\n"; or one dictionary, the answer; or one ErrorResponse."""
        async with self._post(path, _body(request)) as response:
            if response.status != 200:
                yield ErrorResponse(response.status, await response.json())
            elif response.content_type == "text/event-stream":
                event = b""
                async for line in response.content:
                    event += line
                    if line == b"\n":
                        yield event.decode()
                        event = b""
            else:
                yield dict(await response.json())

    def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        return self._ask("/v1/chat/completions", request)

    def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        return self._ask("/v1/completions", request)

    def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        return self._ask("/v1/embeddings", request)

    def responses(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        return self._ask("/v1/responses", request)

    async def models(self) -> Dict[str, Any]:
        if not self._session:
            raise RuntimeError("the engine was not started")
        async with self._session.get("http://localhost/v1/models") as response:
            return dict(await response.json())

    async def check_health(self) -> None:
        """Raises a RuntimeError if the server has ended, or if its model does not work: then the replica should be started again."""
        if not self._session or not self._process or self._process.returncode is not None:
            raise RuntimeError("the server has ended:\n" + "\n".join(self._lines))
        async with self._session.get("http://localhost/health/live") as response:
            if response.status != 200:
                raise RuntimeError(await response.text())

    async def _change(self, path: str) -> None:
        async with self._post(path) as response:
            if response.status != 200:
                raise RuntimeError(await response.text())

    async def sleep(self, level: int = 1, mode: str = "abort", **_: Any) -> None:
        """Gives memory back (docs/replica.md)."""
        await self._change(f"/sleep?level={level}&mode={mode}")

    async def wakeup(self, **_: Any) -> None:
        await self._change("/wake_up")

    async def is_sleeping(self) -> bool:
        if not self._session:
            return False
        async with self._session.get("http://localhost/is_sleeping") as response:
            return bool((await response.json())["is_sleeping"])

    async def reset_prefix_cache(self) -> None:
        """Lets running requests end, sleeps and wakes up. On a GPU, this loads the weights again."""
        await self.sleep(mode="wait")
        await self.wakeup()

    async def shutdown(self) -> None:
        """Lets running requests end and ends the server."""
        if self._process and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        if self._reader:
            await self._reader
        if self._session:
            await self._session.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._session = self._folder = None


class LLMServer:
    """A deployment of Ray Serve with the endpoints /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses and /v1/models. Its methods
    are those of the engine, for callers with a handle: handle.options(stream=True).chat.remote({...})."""

    async def __init__(self, model: str, *, name: Optional[str] = None, options: Sequence[str] = (), program: Optional[str] = None) -> None:
        self.engine = LLMEngine(model, name=name, options=options, program=program)
        await self.engine.start()

    async def __call__(self, request: Request) -> Response:
        path = re.sub(r"^.*(?=/v1/)", "", request.url.path)
        ask = {"/v1/chat/completions": self.engine.chat, "/v1/completions": self.engine.completions, "/v1/embeddings": self.engine.embeddings,
               "/v1/responses": self.engine.responses}.get(path)
        if path == "/v1/models" and request.method == "GET":
            return JSONResponse(await self.engine.models())
        if not ask or request.method != "POST":
            return JSONResponse({"error": {"message": f"there is no {request.method} {request.url.path}", "type": "invalid_request_error"}}, 404)
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise ValueError("expected an object")
        except ValueError as error:
            return JSONResponse({"error": {"message": f"the body is not JSON: {error}", "type": "invalid_request_error"}}, 400)
        answers = ask(body)
        first = await answers.__anext__()
        if isinstance(first, str):
            return StreamingResponse(_chain(first, answers), media_type="text/event-stream")
        await answers.aclose()
        return JSONResponse(first, first.status if isinstance(first, ErrorResponse) else 200)

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        async for answer in self.engine.chat(request):
            yield answer

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        async for answer in self.engine.completions(request):
            yield answer

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Answer, None]:
        async for answer in self.engine.embeddings(request):
            yield answer

    async def check_health(self) -> None:
        """Ray Serve calls it, and replaces the replica if it fails."""
        await self.engine.check_health()

    async def sleep(self, **options: Any) -> None:
        await self.engine.sleep(**options)

    async def wakeup(self, **options: Any) -> None:
        await self.engine.wakeup(**options)

    async def is_sleeping(self) -> bool:
        return await self.engine.is_sleeping()

    async def reset_prefix_cache(self) -> None:
        await self.engine.reset_prefix_cache()


async def _chain(first: str, others: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    try:
        yield first
        async for other in others:
            yield other
    finally:
        await others.aclose()  # the client has gone: the server ends the request


def build_app(model: str, *, name: Optional[str] = None, options: Sequence[str] = (), program: Optional[str] = None, **deployment: Any) -> Any:
    """An application for serve.run. |deployment| are options of a deployment: num_replicas, ray_actor_options, autoscaling_config, …"""
    return serve.deployment(LLMServer).options(**{"max_ongoing_requests": 256, **deployment}).bind(model, name=name, options=list(options), program=program)
