# SPDX-License-Identifier: Apache-2.0
"""CRC32C (Castagnoli, RFC 3720) without compiled code of this package's own.

google-crc32c (or the package crc32c) is used where it is installed. Otherwise numpy computes it, by adding parts of the
message to later parts of it (over GF(2), where adding is XOR), so that it gets shorter and keeps its checksum.

CRC32C's polynomial P divides T(x) = x^5685 + x^1362 + x^426 + 1. So a byte may be taken away and added at the three
places 4323, 5259 and 5685 bits after its own. As T(x)^k = T(x^k) for each power of two k, P divides that, too, and the
same holds for 4323, 5259 and 5685 times k bits. With k = 128 a block of 4323 * 16 bytes takes three XORs of numpy,
wherever it lies, until 5685 * 16 bytes are left; smaller powers shorten those. A second multiple of P with shorter
steps leaves some hundred bytes, for each of which there is a table. Thread-safe; numpy gives up the interpreter's lock
in long XORs.
"""
import importlib
import threading
from typing import Any, Callable, List, Optional, Tuple

import numpy as np

_POLYNOMIAL = 0x82F63B78
# Shorter messages are not worth a call of numpy.
_SCALAR_BYTES = 16


def _make_byte_table() -> List[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_BYTE_TABLE = _make_byte_table()


def _scalar(state: int, data: memoryview) -> int:
    for byte in data:
        state = _BYTE_TABLE[(state ^ byte) & 0xFF] ^ state >> 8
    return state


# Where a byte is added instead, in bytes after its own place when multiplied by a power of two: 1362 = 5685 - 4323 and
# so on are the exponents of T, and the exponents of x^290 + x^136 + x^113 + x^107 + x^32 + 1, another multiple of P.
_LONG_STEPS = (4323, 5259, 5685)
_SHORT_STEPS = (154, 177, 183, 258, 290)
# Bytes that T's steps are multiplied by at first: a block is then as long as numpy likes it, and stays in the cache.
_LONG_SCALE = 16
_SHORT_SCALE = 16
_HISTORY = _LONG_STEPS[-1] * _LONG_SCALE
_BLOCK = _LONG_STEPS[0] * _LONG_SCALE
_BLOCKS = 4
_END_BYTES = 512


class _Scratch(threading.local):
    """What a thread's long messages are folded in: the folded bytes before a block, and some blocks."""

    def __init__(self) -> None:
        self.folded: Any = np.zeros(_HISTORY + _BLOCKS * _BLOCK, np.uint8)


_scratch = _Scratch()
_end_tables: Optional[Tuple[Any, Any]] = None


def _make_end_tables() -> Tuple[Any, Any]:
    """The state after each byte and as many bytes of 0 as follow it within _END_BYTES, in one table; and where the part
    of each place begins in it."""
    byte_table = np.array(_BYTE_TABLE, np.uint32)
    tables = np.empty((_END_BYTES, 256), np.uint32)
    tables[-1] = byte_table
    for place in range(_END_BYTES - 2, -1, -1):
        later = tables[place + 1]
        tables[place] = byte_table[later & 0xFF] ^ later >> 8
    return tables.reshape(-1), 256 * np.arange(_END_BYTES, dtype=np.intp)


def _end(message: Any) -> int:
    """The state after at most _END_BYTES, from the state 0."""
    global _end_tables
    if _end_tables is None:
        _end_tables = _make_end_tables()
    table, places = _end_tables
    return int(np.bitwise_xor.reduce(table.take(places[_END_BYTES - len(message) :] + message)))


def _add_state(message: Any, state: int) -> None:
    message[:4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)


def _shorten(message: Any, steps: Tuple[int, ...], scale: int) -> Any:
    """The last steps[-1] * scale bytes, which have the checksum of all; `message` is overwritten."""
    drop = len(message) - steps[-1] * scale
    longest = steps[0] * scale
    for start in range(0, drop, longest):
        block = message[start : min(start + longest, drop)]
        for step in steps:
            place = message[start + step * scale :][: len(block)]
            np.bitwise_xor(place, block, out=place)
    return message[drop:]


def _shorten_long(message: Any, state: int) -> Any:
    """As _shorten with T's steps for a message of at least two _HISTORY, which is left as it is."""
    folded = _scratch.folded
    folded[:_HISTORY] = 0
    drop = len(message) - _HISTORY
    end = _HISTORY
    for start in range(0, drop, _BLOCK):
        size = min(_BLOCK, drop - start)
        if end + size > len(folded):
            folded[:_HISTORY] = folded[end - _HISTORY : end]
            end = _HISTORY
        block = folded[end : end + size]
        before = [folded[end - step * _LONG_SCALE :][:size] for step in _LONG_STEPS]
        np.bitwise_xor(message[start : start + size], before[0], out=block)
        if start == 0:
            _add_state(block, state)
        np.bitwise_xor(block, before[1], out=block)
        np.bitwise_xor(block, before[2], out=block)
        end += size
    rest = message[drop:].copy()
    for step in _LONG_STEPS:
        place = rest[: step * _LONG_SCALE]
        np.bitwise_xor(place, folded[end - len(place) : end], out=place)
    return rest


def _extend_numpy(crc: int, data: memoryview) -> int:
    state = crc ^ 0xFFFFFFFF
    if len(data) < _SCALAR_BYTES:
        return _scalar(state, data) ^ 0xFFFFFFFF
    message = np.frombuffer(data, np.uint8)
    if len(message) >= 2 * _HISTORY:
        rest = _shorten_long(message, state)
    else:
        rest = message.copy()
        _add_state(rest, state)
    for steps, scale in ((_LONG_STEPS, _LONG_SCALE), (_SHORT_STEPS, _SHORT_SCALE)):
        while scale and len(rest) > _END_BYTES:
            if len(rest) > steps[-1] * scale:
                rest = _shorten(rest, steps, scale)
            scale //= 2
    return _end(rest) ^ 0xFFFFFFFF


_Extend = Callable[[int, Any], int]


def _extend_of(name: str) -> Optional[_Extend]:
    """The function of an installed package that extends a checksum; None where it is not there or not compiled."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    found: Any = getattr(module, "extend" if name == "google_crc32c" else "crc32c", None)
    if found is None or getattr(module, "implementation", "c") == "python":
        return None
    if name == "google_crc32c":  # takes only bytes
        return lambda crc, data: int(found(crc, bytes(data)))
    return lambda crc, data: int(found(data, crc))


def _find_extend() -> Tuple[str, _Extend]:
    for name in ("google_crc32c", "crc32c"):
        extend = _extend_of(name)
        if extend is not None and extend(extend(0, b"1234"), b"56789") == 0xE3069283:
            return name, extend
    return "numpy", lambda crc, data: _extend_numpy(crc, memoryview(data).cast("B"))


IMPLEMENTATION, _extend = _find_extend()


def crc32c(data: Any, crc: int = 0) -> int:
    """The CRC32C of `data`, a C-contiguous buffer; `crc` is that of what comes before it."""
    view = memoryview(data)
    return _extend(crc, view if view.ndim == 1 and view.format == "B" else view.cast("B")) if view.nbytes else crc
