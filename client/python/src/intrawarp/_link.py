# SPDX-License-Identifier: Apache-2.0
"""Link: one server, as two connections and the calls over them. Internal.

One connection is for small questions, and one for everything that streams, so that a small call never waits behind a
field. Both connect with the first call.
"""
import dataclasses
import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import grpc
import numpy as np

from . import errors, v1
from ._crc32c import crc32c
from ._io import Cancellation, Io, Stream
from ._wire import WIRE, WireChunk, decode_chunk, encode_chunk


HEALTH = "/grpc.health.v1.Health/Check"
_SERVICE = {method.rpartition("/")[2]: method for method in WIRE.methods}  # the short names of methods
_FIRST_BACKOFF = 0.1
_MAX_FILE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Security:
    """How a client proves who it is, and knows the server: PEM as bytes, empty for none."""

    tls_ca: bytes = b""
    tls_cert: bytes = b""
    tls_key: bytes = b""
    token: str = ""

    def credentials(self) -> Any:
        """Of a channel; None for plain text. InvalidArgument names the argument that lacks another."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise _refuse("tls_cert", "and tls_key need each other")
        if not self.tls_ca:
            if self.tls_cert:
                raise _refuse("tls_cert", "needs tls_ca")
            if self.token:
                raise _refuse("token_file", "needs tls_ca: a token never travels as plain text")
            return None
        channel = grpc.ssl_channel_credentials(self.tls_ca, self.tls_key or None, self.tls_cert or None)
        if not self.token:
            return channel
        return grpc.composite_channel_credentials(channel, grpc.access_token_call_credentials(self.token))


def _refuse(field: str, message: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"{field}: {message}", fields=((field, message),))


def _read_small(path: Any, field: str) -> bytes:
    with open(os.path.expanduser(os.fspath(path)), "rb") as file:
        content = file.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE:
        raise _refuse(field, "is larger than 1 MiB")
    return content


def read_security(tls_ca: Any, tls_cert: Any, tls_key: Any, token_file: Any, token: Optional[str]) -> Security:
    """From paths of PEM files, and a token or the path of a file that holds one."""
    pems = {}
    for name, path in (("tls_ca", tls_ca), ("tls_cert", tls_cert), ("tls_key", tls_key)):
        pems[name] = _read_small(path, name) if path else b""
        if path and b"-----BEGIN " not in pems[name]:
            raise _refuse(name, "holds no PEM")
    if token_file and token:
        raise _refuse("token", "give token or token_file, not both")
    if token_file:
        token = _read_small(token_file, "token_file").decode("utf-8", "replace").strip()
    token = token or ""
    if token_file and not token or not re.fullmatch(r"[!-~]*", token):
        raise _refuse("token_file", "must hold a token and nothing else")
    return Security(token=token, **pems)


@dataclasses.dataclass(frozen=True)
class Options:
    """See `intrawarp.connect`."""

    security: Security = Security()
    timeout: float = 30.0
    chunk_bytes: int = 1 << 20
    max_answer_bytes: int = 16 << 30
    transfer_attempts: int = 6
    stall_timeout: float = 0.5
    keepalive: float = 20.0
    probe_timeout: float = 2.0
    recovery_timeout: float = 30.0
    authority: str = ""
    routing_key: str = ""


def channel_options(options: Options, role: str) -> List[Tuple[str, Any]]:
    arguments: List[Tuple[str, Any]] = [
        # Channels with equal arguments would share a connection.
        ("intrawarp.role", role),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", int(1000 * options.keepalive)),
        ("grpc.keepalive_timeout_ms", 10000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Servers are on the local network; a proxy that the environment names for the web is not for them.
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", (16 << 20) + (64 << 10)),
        ("grpc.max_send_message_length", (16 << 20) + (64 << 10)),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.experimental.tcp_min_read_chunk_size", 64 << 10),
        ("grpc.experimental.tcp_read_chunk_size", 256 << 10),
        ("grpc.experimental.tcp_max_read_chunk_size", 1 << 20),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 8 << 20),
    ]
    if options.authority:
        arguments.append(("grpc.default_authority", options.authority))
    return arguments


def parse(cls: Any, message: bytes) -> Any:
    try:
        return cls.FromString(message)
    except Exception:  # DecodeError has no stable place across versions of protobuf.
        raise errors.InternalError("the server sent a message that is not of its type", code="INTERNAL") from None


class Deadline:
    """The end of a call that may take several attempts; no end for None."""

    def __init__(self, timeout: Optional[float]) -> None:
        if timeout is not None and not timeout > 0:
            raise _refuse("timeout", "must be above 0 seconds")
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> Optional[float]:
        return None if self._end is None else max(1e-3, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


class Receiver:
    """Checks the chunks of one stream and puts their bytes where they belong, in one copy."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.data: Any = None
        self.received = 0

    @property
    def begun(self) -> bool:
        return self.data is not None

    def begin(self, total: int) -> None:
        if self.data is not None:
            raise errors.InternalError("the server sent a second header")
        if total < 0 or total > self._max_bytes:
            raise errors.OutOfCapacity(
                f"the answer has {total} bytes, more than max_answer_bytes ({self._max_bytes})",
                metadata={"asked": str(total), "capacity": str(self._max_bytes)},
            )
        # The system gives memory as it is written to.
        self.data = np.empty(total, np.uint8)

    def append(self, chunk: WireChunk) -> None:
        if self.data is None:
            raise _wrong_chunk("it came before its header")
        size = len(chunk.data)
        if size == 0:
            raise _wrong_chunk("it is empty")
        if chunk.offset != self.received or size > len(self.data) - self.received:
            raise _wrong_chunk("it is out of place")
        if chunk.crc32c is None:
            raise _wrong_chunk("it has no checksum")
        if crc32c(chunk.data) != chunk.crc32c:
            raise _wrong_chunk("its bytes do not have its checksum")
        self.data[self.received : self.received + size] = np.frombuffer(chunk.data, np.uint8)
        self.received += size

    def finish(self) -> Any:
        if self.data is None:
            raise errors.DataLoss("the server sent no header", code="DATA_LOSS")
        if self.received != len(self.data):
            raise errors.DataLoss(
                f"the server sent {self.received} of {len(self.data)} announced bytes", code="DATA_LOSS"
            )
        return self.data


def _wrong_chunk(why: str) -> errors.DataLoss:
    return errors.DataLoss(f"the server sent a wrong chunk: {why}", code="DATA_LOSS")


class Link:
    def __init__(self, io: Io, address: str, options: Options) -> None:
        self.io = io
        self.address = address
        self.options = options
        self._credentials = options.security.credentials()
        self._lock = threading.Lock()
        self._control: Any = None
        self._bulk: Any = None
        self._left: List[Any] = []

    def _channel(self, role: str) -> Any:
        return self.io.channel(self.address, self._credentials, channel_options(self.options, role))

    @property
    def control(self) -> Any:
        with self._lock:
            if self._control is None:
                self._control = self._channel("control")
            return self._control

    @property
    def bulk(self) -> Any:
        with self._lock:
            if self._bulk is None:
                self._bulk = self._channel("bulk")
            return self._bulk

    def leave_bulk(self, silent: Any) -> None:
        """Makes another connection take the place of one that has gone silent."""
        with self._lock:
            if self._bulk is silent:
                self._left.append(silent)
                self._bulk = self._channel("bulk")

    async def close(self) -> None:
        with self._lock:
            channels = [each for each in (self._control, self._bulk, *self._left) if each is not None]
            self._control = self._bulk = None
            self._left = []
        for channel in channels:
            await self.io.close_channel(channel)

    def call(self, method: str) -> Tuple[List[Tuple[str, str]], Dict[str, Any]]:
        """The metadata of a call, and what its errors tell of it."""
        call_id = os.urandom(16).hex()
        metadata = [("traceparent", f"00-{call_id}-{os.urandom(8).hex()}-01")]
        if self.options.routing_key:
            metadata.append(("intrawarp-routing-key", self.options.routing_key))
        return metadata, {"call_id": call_id, "method": method, "address": self.address}

    async def unary(
        self,
        name: str,
        request: v1.Message,
        timeout: Optional[float] = None,
        cancellation: Optional[Cancellation] = None,
        *,
        bulk: bool = False,
    ) -> Any:
        """The answer to a small question; `name` is the method's, without its service."""
        method = _SERVICE[name]
        metadata, context = self.call(method)
        limit = self.options.timeout if timeout is None else Deadline(timeout).left()
        answer = await self.io.unary(
            self.bulk if bulk else self.control,
            method,
            request.SerializeToString(),
            limit,
            metadata,
            cancellation,
            context,
        )
        return parse(WIRE.methods[method][1], answer)

    def stream(
        self,
        name: str,
        request: Optional[bytes],
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
        channel: Any = None,
    ) -> Stream:
        method = _SERVICE[name]
        metadata, context = self.call(method)
        return self.io.stream(channel or self.bulk, method, request, timeout, metadata, cancellation, context)

    async def is_serving(
        self,
        service: str = "",
        timeout: Optional[float] = None,
        cancellation: Optional[Cancellation] = None,
        channel: Any = None,
    ) -> bool:
        """grpc.health.v1: True when SERVING."""
        name = service.encode()
        request = b"\x0a" + bytes((len(name),)) + name if name else b""
        metadata, context = self.call(HEALTH)
        answer = await self.io.unary(
            channel or self.control,
            HEALTH,
            request,
            self.options.timeout if timeout is None else timeout,
            metadata,
            cancellation,
            context,
        )
        return answer == b"\x08\x01"

    async def is_well(self) -> bool:
        """Whether the server says in time that it serves. Another kind of error than a failing server's counts as yes:
        the call that follows then tells it."""
        try:
            return await self.is_serving("", self.options.probe_timeout)
        except errors.IntrawarpError as error:
            return not errors.is_broken(error) and not isinstance(error, errors.DeadlineExceeded)


class StallWatch:
    """Notices that the connection of a call has gone silent.

    Where nothing of the call has moved for a while, a small question goes to the server over the same connection; any
    answer proves that it lives, however slow the call is.
    """

    def __init__(self, link: Link, channel: Any, stream: Stream, timeout: float) -> None:
        self._link = link
        self._channel = channel
        self._stream = stream
        self._timeout = timeout
        self._last_move = time.monotonic()
        self._ending = False
        self.stalled = False
        self._changed = link.io.condition()
        self._task = link.io.spawn(self._loop(), "intrawarp-stall-watch") if timeout > 0 else None

    def moved(self) -> None:
        self._last_move = time.monotonic()

    async def _loop(self) -> None:
        while not self._ending:
            wait = self._last_move + self._timeout - time.monotonic()
            if wait > 0:
                async with self._changed:
                    if not self._ending:
                        await self._changed.wait(wait)
                continue
            seen = self._last_move
            try:
                await self._link.is_serving("", self._timeout, channel=self._channel)
                alive = True
            except errors.IntrawarpError as error:
                alive = not (isinstance(error, errors.DeadlineExceeded) or errors.is_broken(error))
            if self._ending:
                return
            if alive or self._last_move != seen:
                self._last_move = time.monotonic()
                continue
            self.stalled = True
            self._stream.cancel()
            return

    async def end(self) -> None:
        if self._task is None:
            return
        async with self._changed:
            self._ending = True
            self._changed.notify_all()
        # A question that is under way need not be waited for.
        await self._task.join(0.0 if self._link.io.is_async else self._timeout)


def silent(link: Link) -> errors.ConnectionLost:
    return errors.ConnectionLost(
        "the connection has gone silent", code="UNAVAILABLE", address=link.address, retry_after=1.0
    )


class Transfer:
    """How far the streams of one transfer got."""

    def __init__(self) -> None:
        self.arrived = 0
        # A message has gone to the server or come from it.
        self.reached = False


def _backoff(failures: int) -> float:
    return 0.0 if failures == 1 else _FIRST_BACKOFF * (1 << min(failures - 1, 4))


async def resume(
    link: Link, transfer: Transfer, deadline: Deadline, cancellation: Optional[Cancellation], attempt: Callable[[], Any]
) -> Any:
    """Makes `attempt` again and again, as long as it ends UNAVAILABLE.

    It gives up after `transfer_attempts` attempts in a row that brought nothing further, and at once when the server
    cannot be reached in the first place.
    """
    failures = 0
    while True:
        before = transfer.arrived
        begin = time.monotonic()
        try:
            return await attempt()
        except errors.Unavailable as error:
            failures = 1 if transfer.arrived > before else failures + 1
            if not transfer.reached or failures >= link.options.transfer_attempts or deadline.passed:
                raise
            if cancellation is not None and cancellation.cancelled:
                raise errors.Cancelled("the call was cancelled", code="CANCELLED") from error
        await link.io.sleep(begin + _backoff(failures) - time.monotonic(), cancellation)


def chunks_of(field_number: int, view: memoryview, offset: int, chunk_bytes: int) -> Any:
    """The messages with the bytes from `offset` on, and how far each of them gets."""
    total = len(view)
    while offset < total:
        piece = view[offset : offset + chunk_bytes]
        yield encode_chunk(field_number, offset, crc32c(piece), piece), offset + len(piece)
        offset += len(piece)


async def upload(
    link: Link,
    header: v1.UploadHeader,
    view: memoryview,
    report: Callable[[int, int], None],
    timeout: Optional[float],
    cancellation: Optional[Cancellation],
) -> v1.UploadResponse:
    """Uploads `view`; `header` has its upload_id, total_bytes and sha256."""
    deadline = Deadline(timeout)
    transfer = Transfer()

    async def attempt() -> v1.UploadResponse:
        if transfer.reached:
            transfer.arrived = await _committed(link, header, cancellation)
        return await _send_from(link, header, view, transfer, report, deadline, cancellation)

    answer: v1.UploadResponse = await resume(link, transfer, deadline, cancellation, attempt)
    return answer


async def _committed(link: Link, header: v1.UploadHeader, cancellation: Optional[Cancellation]) -> int:
    """Not found stands for 0: the upload was dropped, or it was complete and only its answer got lost; then sending the
    header again gets the answer, since uploads are idempotent."""
    try:
        status = await link.unary(
            "GetUploadStatus", v1.GetUploadStatusRequest(upload_id=header.upload_id), None, cancellation, bulk=True
        )
    except errors.NotFound:
        return 0
    if not 0 <= status.committed_bytes <= header.total_bytes:
        raise errors.InternalError(
            f"the server committed {status.committed_bytes} of {header.total_bytes} bytes", code="INTERNAL"
        )
    return int(status.committed_bytes)


async def _send_from(
    link: Link,
    header: v1.UploadHeader,
    view: memoryview,
    transfer: Transfer,
    report: Callable[[int, int], None],
    deadline: Deadline,
    cancellation: Optional[Cancellation],
) -> v1.UploadResponse:
    """A write that is not taken means that the server has answered already, well or badly, or that the stream broke:
    the read knows."""
    channel = link.bulk
    stream = link.stream("Upload", None, deadline.left(), cancellation, channel)
    watch = StallWatch(link, channel, stream, link.options.stall_timeout)
    try:
        taken = await stream.write(v1.UploadRequest(header=header).SerializeToString())
        stream.read_ahead()
        for message, sent in chunks_of(2, view, transfer.arrived, link.options.chunk_bytes):
            if not taken:
                break
            taken = await stream.write(message)
            watch.moved()
            if taken:
                report(sent, len(view))
        await stream.done_writing()
        answer = await stream.read()
        while answer is not None:
            response: v1.UploadResponse = parse(v1.UploadResponse, answer)
            return response
        raise errors.InternalError("the server ended the upload without an answer", code="INTERNAL")
    except errors.IntrawarpError:
        if watch.stalled:
            link.leave_bulk(channel)
            transfer.reached = True
            raise silent(link) from None
        raise
    finally:
        transfer.reached = transfer.reached or stream.sent > 0
        stream.close()
        await watch.end()


async def download(
    link: Link,
    name: str,
    request: Any,
    chunk_field: int,
    begin: Callable[[Any], None],
    receiver: Receiver,
    report: Callable[[int, int], None],
    timeout: Optional[float],
    cancellation: Optional[Cancellation],
) -> Any:
    """The header of a Download or a WarpVolume, whose bytes `receiver` gets; `begin` checks the first header."""
    deadline = Deadline(timeout)
    transfer = Transfer()
    response_class = WIRE.methods[_SERVICE[name]][1]
    first: List[Any] = []

    async def attempt() -> Any:
        request.offset = receiver.received
        channel = link.bulk
        stream = link.stream(name, request.SerializeToString(), deadline.left(), cancellation, channel)
        watch = StallWatch(link, channel, stream, link.options.stall_timeout)
        try:
            headed = False
            while True:
                message = await stream.read()
                watch.moved()
                if message is None:
                    break
                transfer.reached = True
                chunk = decode_chunk(message, chunk_field)
                if chunk is not None:
                    if not headed:
                        raise errors.DataLoss("the server sent a chunk before its header", code="DATA_LOSS")
                    receiver.append(chunk)
                    transfer.arrived = receiver.received
                    report(receiver.received, len(receiver.data))
                    continue
                response = parse(response_class, message)
                if response.WhichOneof("payload") != "header":
                    continue  # a kind of message of a later version
                headed = True
                if not first:
                    begin(response.header)
                    receiver.begin(response.header.total_bytes)
                    first.append(response.header)
                    request.etag = response.header.etag
                elif (response.header.total_bytes, response.header.etag) != (len(receiver.data), request.etag):
                    raise errors.ContentChanged("the bytes are others than the download began with", code="ABORTED")
            receiver.finish()
            return first[0]
        except errors.IntrawarpError as error:
            if watch.stalled:
                link.leave_bulk(channel)
                transfer.reached = True
                raise silent(link) from None
            stream.blame(error)
            raise
        finally:
            stream.close()
            await watch.end()

    return await resume(link, transfer, deadline, cancellation, attempt)
