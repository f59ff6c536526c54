# SPDX-License-Identifier: Apache-2.0
"""The client's end of a memory segment that a server on the same host shares with it. Internal.

wire/shared_segment.h has the layout and the order of reads and writes: a page with a magic number, a nonce and three
arrays of 16 generations (128 bytes apart: frame_generation of the server, field_generation of the server,
field_released of the client), then the frame slots, then the field slots. What the server writes is taken at its word
once, and no size or place is ever taken from the segment.
"""
import array
import mmap
import os
import socket
import struct
import sys
import threading
from typing import Any, List, Tuple

import numpy as np

from . import errors, v1

_PAGE = 4096
_MAX_SLOTS = 16
_MAGIC = 0x3167657370726177
_FRAME_GENERATION, _FIELD_GENERATION, _FIELD_RELEASED = 128, 256, 384
_MOST_BYTES = 1 << 46
_FETCH_SECONDS = 5.0
_GIVEN, _UNKNOWN_TOKEN, _USER_REFUSED = 0, 1, 2
_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 2

_barrier_lock = threading.Lock()


def _barrier() -> None:
    """Orders the reads before it with the ones after it. The lock's atomic operations do so on every machine."""
    for _ in range(2):
        with _barrier_lock:
            pass


def _unavailable(message: str) -> errors.SharedMemoryUnavailable:
    return errors.SharedMemoryUnavailable(f"shared memory: {message}", reason="SHARED_MEMORY_UNAVAILABLE")


def _contradiction() -> errors.InternalError:
    return errors.InternalError("shared memory: the server contradicts its offer", code="INTERNAL")


def fetch(path: str, token: bytes) -> int:
    """The segment's descriptor, which the caller closes. Waits at most some seconds."""
    if not hasattr(socket, "AF_UNIX") or not sys.platform.startswith("linux"):
        raise _unavailable("needs Linux")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_FETCH_SECONDS)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise _unavailable(f"the server's socket {path} is not here: is the server on another host?") from None
        except PermissionError:
            raise _unavailable(f"{path} is for other users (intrawarpd --shared_memory_uids)") from None
        try:
            connection.send(token)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a server that refuses the user answers at once and closes
        data, control, _, _ = _receive(connection)
    except (OSError, ValueError) as error:
        raise _unavailable(f"the server's socket does not answer ({error})") from None
    finally:
        connection.close()
    descriptors = _descriptors(control)
    if len(data) == 1 and data[0] == _GIVEN and len(descriptors) == 1:
        return descriptors[0]
    for descriptor in descriptors:
        os.close(descriptor)
    if data[:1] == bytes((_USER_REFUSED,)):
        raise _unavailable(f"the server does not give it to user {os.geteuid()} (intrawarpd --shared_memory_uids)")
    if data[:1] == bytes((_UNKNOWN_TOKEN,)):
        raise _unavailable("the server does not know the segment any more")
    raise _unavailable("the server closed its socket")


def _receive(connection: socket.socket) -> Any:
    size = socket.CMSG_SPACE(struct.calcsize("i"))
    try:
        return connection.recvmsg(1, size, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # A server that answers without having read the token resets the connection; the answer comes after that news.
        return connection.recvmsg(1, size, socket.MSG_CMSG_CLOEXEC)


def _descriptors(control: List[Tuple[int, int, bytes]]) -> List[int]:
    found = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _is_sealed(descriptor: int, size: int) -> bool:
    import fcntl

    try:
        seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
    except OSError:
        return False
    return bool(seals & _F_SEAL_SHRINK) and os.fstat(descriptor).st_size == size


class SharedSlots:
    """One thread fills frames while another reads fields."""

    def __init__(self, offer: v1.SharedMemoryOffer) -> None:
        slots = offer.slots
        counts = (slots.frame_slots, slots.field_slots)
        sizes = [size if count else 0 for count, size in zip(counts, (slots.frame_slot_bytes, slots.field_slot_bytes))]
        if (
            not all(0 <= count <= _MAX_SLOTS for count in counts)
            or not all(size % _PAGE == 0 and 0 <= size < _MOST_BYTES for size in sizes)
            or any(count and not size for count, size in zip(counts, sizes))
        ):
            raise _contradiction()
        self._frame_slots, self._field_slots = counts
        self._frame_bytes, self._field_bytes = sizes
        total = _PAGE + counts[0] * sizes[0] + counts[1] * sizes[1]
        descriptor = fetch(offer.socket, offer.token)
        try:
            if not _is_sealed(descriptor, total):
                raise _contradiction()
            self._map = mmap.mmap(descriptor, total, mmap.MAP_SHARED)
        except (OSError, ValueError) as error:
            raise _unavailable(f"it cannot be mapped ({error})") from None
        finally:
            os.close(descriptor)
        self._bytes: Any = np.frombuffer(self._map, np.uint8)
        if int(self._bytes[:8].view(np.uint64)[0]) != _MAGIC:
            raise _contradiction()
        self.nonce = self._bytes[8:24].tobytes()
        self._frame_generation = self._words(_FRAME_GENERATION)
        self._field_generation = self._words(_FIELD_GENERATION)
        self._field_released = self._words(_FIELD_RELEASED)
        self._next = 0
        self._sent = [-1] * _MAX_SLOTS
        self._lock = threading.Lock()

    def _words(self, offset: int) -> Any:
        return self._bytes[offset : offset + 8 * _MAX_SLOTS].view(np.uint64)

    def fits(self, size: int) -> bool:
        return self._frame_slots > 0 and size <= self._frame_bytes

    @property
    def is_frame_free(self) -> bool:
        """Whether the next frame slot is ours."""
        return int(self._frame_generation[self._next]) != self._sent[self._next]

    def put_frame(self, view: memoryview) -> v1.SharedSlot:
        """Fills the next slot, which is ours, and gives it to the server."""
        slot = self._next
        start = _PAGE + slot * self._frame_bytes
        self._bytes[start : start + len(view)] = np.frombuffer(view, np.uint8)
        self._next = (slot + 1) % self._frame_slots
        generation = int(self._frame_generation[slot])
        self._sent[slot] = generation
        _barrier()
        return v1.SharedSlot(slot=slot, generation=generation)

    def take_field(self, slot: v1.SharedSlot, size: int) -> Any:
        """A copy of a field's bytes; the slot is the server's again."""
        if not (0 <= slot.slot < self._field_slots and 0 <= size <= self._field_bytes):
            raise _contradiction()
        start = _PAGE + self._frame_slots * self._frame_bytes + slot.slot * self._field_bytes
        data = self._bytes[start : start + size].copy()
        _barrier()
        if int(self._field_generation[slot.slot]) != slot.generation:
            raise errors.DataLoss(
                "shared memory: the server took the memory back while a field was read", code="DATA_LOSS"
            )
        self._field_released[slot.slot] = slot.generation
        return data

    def close(self) -> None:
        """Lets go of fields that were not read."""
        with self._lock:
            if self._bytes is None:
                return
            for slot in range(self._field_slots):
                self._field_released[slot] = self._field_generation[slot]
            self._frame_generation = self._field_generation = self._field_released = self._bytes = None
            try:
                self._map.close()
            except BufferError:
                pass  # a view is alive for another moment; the memory goes with it
