"""Loads libmlxcel, and turns its statuses into exceptions."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional

from . import _abi


def _open() -> ctypes.CDLL:
    path = os.environ.get("MLXCEL_LIBRARY") or os.path.join(os.path.dirname(__file__), "lib", _abi.LIBRARY)
    opened = ctypes.CDLL(path)
    for name, (result, parameters) in _abi.FUNCTIONS.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = result, parameters
    found = opened.mlxcel_version().decode()
    if found.split(".")[:2] != _abi.VERSION.split(".")[:2]:
        raise ImportError(f"{path} is version {found}, but this package is for version {_abi.VERSION}")
    return opened


library = _open()


class Error(RuntimeError):
    """A call of libmlxcel that failed. |code| is one of the exit statuses of the command."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.code, self.message, self.hint = code, message, hint


def check(status: Optional[int]) -> None:
    """Raises the error of a status and frees the status."""
    if not status:
        return
    error = Error(library.mlxcel_status_code(status), library.mlxcel_status_message(status).decode("utf-8", "replace"),
                  library.mlxcel_status_hint_text(status).decode("utf-8", "replace"))
    library.mlxcel_status_free(status)
    raise error


def initialized(kind: Any, initialize: Callable[[Any], None]) -> Any:
    """An option struct with its defaults."""
    options = kind()
    initialize(ctypes.byref(options))
    return options


def take_bytes(pointer: ctypes.c_void_p, length: ctypes.c_size_t, free: Callable[[Any], None]) -> bytes:
    """Copies memory that the library has allocated, and frees it."""
    data = ctypes.string_at(pointer, length.value)
    free(pointer)
    return data
