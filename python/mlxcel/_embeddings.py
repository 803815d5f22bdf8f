"""Embeddings: the vectors of a list of texts in one block of memory, and the batch that computes them."""
from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Tuple, Union, overload

from . import _abi
from ._driver import Driver, Event, Outcome
from ._library import check, library

_ON_DONE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_size_t)


class Embeddings:
    """The embeddings of a list of texts: a list of lists of floats, and a buffer of f32 with the shape (texts, numbers).

    numpy.asarray(embeddings), torch.frombuffer and memoryview(embeddings) share its memory.
    """

    # What make_embeddings adds: a ctypes array has the buffer protocol in all versions of Python.
    shape: Tuple[int, int]

    if TYPE_CHECKING:

        def __buffer__(self, flags: int) -> memoryview: ...

    def tolist(self) -> List[List[float]]:
        return [self[index] for index in range(self.shape[0])]

    @overload
    def __getitem__(self, index: int) -> List[float]: ...

    @overload
    def __getitem__(self, index: slice) -> List[List[float]]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[List[float], List[List[float]]]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self.shape[0]))]
        row: List[float] = super().__getitem__(index)[:]  # type: ignore[misc]
        return row

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[List[float]]:
        return (self[index] for index in range(self.shape[0]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Embeddings, list, tuple)):
            return NotImplemented
        return self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Embeddings of {self.shape[0]} texts with {self.shape[1]} numbers each>"

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[int, int, bytes]]:
        return make_embeddings, (*self.shape, memoryview(self).tobytes())


def make_embeddings(count: int, size: int, data: bytes = b"") -> Any:
    """Embeddings of zeros, or of |data|."""
    kind: Any = type(ctypes.Array)(  # type: ignore[misc]
        "Embeddings", (Embeddings, ctypes.Array), {"_type_": ctypes.c_float * size, "_length_": count, "shape": (count, size)})
    return kind.from_buffer_copy(data) if data else kind()


def shorten(vector: List[float], size: int, normalize: bool) -> List[float]:
    """The first |size| numbers, with the norm 1 again."""
    if size == len(vector):
        return vector
    norm = math.sqrt(sum(number * number for number in vector[:size])) if normalize else 1
    return [number / norm if norm else 0.0 for number in vector[:size]]


class EmbeddingBatch:
    """All texts of a call, for a model that is an encoder: its scheduler has no other requests. Like Request for the driver."""

    def __init__(self, driver: Driver, texts: List["ctypes.Array[ctypes.c_int32]"], size: int) -> None:
        self._driver, self._texts = driver, texts
        self.vectors = make_embeddings(len(texts), size)
        self.cancelled = False
        self.put: Callable[[Event], None] = lambda event: None

    def begin(self, scheduler: ctypes.c_void_p) -> None:
        pass

    def free(self) -> None:
        self._texts = []

    def collect(self, engine: ctypes.c_void_p) -> bool:
        try:
            self._embed(engine)
            self.put(Outcome(sum(map(len, self._texts)), 0, [], b"", _abi.MLXCEL_FINISH_STOP, None, None, self.vectors))
        except Exception as error:
            self.put(error)
        return True

    def _embed(self, engine: ctypes.c_void_p) -> None:
        count = len(self._texts)
        ids = (ctypes.c_void_p * count)(*(ctypes.addressof(text) for text in self._texts))
        counts = (ctypes.c_size_t * count)(*map(len, self._texts))
        on_done = _ON_DONE(lambda _user, _done: not (self.cancelled or self._driver.stopping))
        check(library.mlxcel_engine_embed(engine, ids, counts, count, self.vectors, self.vectors.shape[1], ctypes.cast(on_done, ctypes.c_void_p), None))
