"""What a model answered."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached: int  # prompt tokens that were not computed, because earlier requests had computed them

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Logprob:
    """A token and the natural logarithm of its probability, before any sampling option."""

    id: int
    bytes: bytes  # may be a part of a character
    logprob: float

    @property
    def text(self) -> str:
        return self.bytes.decode("utf-8", "replace")


@dataclass(frozen=True)
class TokenLogprob(Logprob):
    """A generated token, with the most likely tokens at its place."""

    top: List[Logprob]


@dataclass(frozen=True)
class Ranked:
    """A document and its score for a query."""

    index: int  # in the list of documents
    score: float
    document: str


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for."""

    id: str
    name: str
    arguments: Any  # a dict; the text itself if the model wrote arguments that are not JSON


@dataclass(frozen=True)
class Result:
    """A whole answer. str(result) is its text."""

    text: str  # of a chat: without reasoning and tool calls
    finish_reason: str  # "stop", "length" (max_tokens, or the context is full) or "tool_calls"
    usage: Usage
    token_ids: List[int]  # with the token that ended the text
    logprobs: Optional[List[TokenLogprob]] = None  # of each token, if they were asked for
    message: Optional[Dict[str, Any]] = None  # of a chat: the answer as OpenAI's message, to be appended to the messages
    tool_calls: Optional[List[ToolCall]] = None  # of a chat: the calls in |message|, parsed
    # The experts of each token of prompt and answer but the last, if they were asked for: int16 [tokens, layers, experts of a token], -1 in layers
    # without experts. numpy.asarray reads it without a copy.
    routes: Optional[memoryview] = None

    @property
    def reasoning(self) -> str:
        """What the model wrote before its answer; "" if nothing."""
        return str((self.message or {}).get("reasoning_content", ""))

    def __str__(self) -> str:
        return self.text
