# SPDX-License-Identifier: Apache-2.0
"""The two ways to wait: SyncIo on threads, AioIo on an event loop.

All logic above this module is written once, as coroutines over an Io. With AioIo they run on the loop. With SyncIo no
step of them ever suspends: each one blocks its thread, and `run` drives such a coroutine to its end in one go.

An Io makes channels and calls, and what waiting takes: `sleep`, `spawn`, `condition`, `blocking`.
"""
import asyncio
import collections
import threading
import time
from typing import Any, Callable, Coroutine, Deque, Dict, Optional, Sequence, Set, Tuple, TypeVar

import grpc

from . import errors

T = TypeVar("T")

_DETAILS_KEY = "grpc-status-details-bin"
Metadata = Sequence[Tuple[str, str]]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over SyncIo."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine of the synchronous client has waited; this is a fault of the package")


class Cancellation:
    """Cancels the calls that were given it, the ones under way and later ones: they end with `Cancelled`.

    `cancel` may be called from any thread, once or often, and cannot be undone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._calls: Set[Callable[[], Any]] = set()

    def cancel(self) -> None:
        """Ends the calls that were given it, here and on the server."""
        self._event.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._event.is_set()

    def _add(self, cancel: Callable[[], Any]) -> None:
        with self._lock:
            self._calls.add(cancel)
        if self._event.is_set():
            cancel()

    def _remove(self, cancel: Callable[[], Any]) -> None:
        with self._lock:
            self._calls.discard(cancel)


def _error_of(error: Any, context: Dict[str, Any]) -> errors.IntrawarpError:
    """From a grpc.RpcError, which is the call itself in the synchronous library."""
    code = error.code()
    number = code.value[0] if code is not None else 2
    trailer = error.trailing_metadata() or ()
    details = next((value for key, value in trailer if key == _DETAILS_KEY), None)
    return errors.from_call(int(number), error.details() or "", details, **context)


class Stream:
    """One streaming call, of serialised messages."""

    _context: Dict[str, Any]

    @property
    def call_id(self) -> str:
        return str(self._context["call_id"])

    def blame(self, error: errors.IntrawarpError) -> errors.IntrawarpError:
        """The error, which this side found in the call's answer, with the call's id."""
        if not error.call_id:
            error.call_id = self._context["call_id"]
            error.method = self._context["method"]
            error.address = self._context["address"]
        return error

    async def write(self, message: bytes) -> bool:
        """Waits until the transport takes it; False when the call has ended, and `read` then tells why."""
        raise NotImplementedError

    async def done_writing(self) -> None:
        raise NotImplementedError

    async def read(self) -> Optional[bytes]:
        """The next message; None at a good end. Raises the call's error."""
        raise NotImplementedError

    def read_ahead(self) -> None:
        """Begins to read the next message, for a call whose answer can come while its caller still writes."""

    def cancel(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Cancels what is left, and lets go of the call."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        raise NotImplementedError

    @property
    def sent(self) -> int:
        """How many messages the transport has sent, over a connection that stood."""
        raise NotImplementedError


class Condition:
    """`async with` holds it; `wait` lets go of it meanwhile."""

    async def __aenter__(self) -> None:
        raise NotImplementedError

    async def __aexit__(self, *error: Any) -> None:
        raise NotImplementedError

    async def wait(self, timeout: Optional[float] = None) -> None:
        """Until somebody notifies, or for `timeout` seconds."""
        raise NotImplementedError

    def notify_all(self) -> None:
        raise NotImplementedError


class Task:
    async def join(self, timeout: Optional[float] = None) -> None:
        raise NotImplementedError


class Io:
    is_async = False

    def channel(self, target: str, credentials: Any, options: Any) -> Any:
        raise NotImplementedError

    async def close_channel(self, channel: Any) -> None:
        raise NotImplementedError

    async def unary(
        self,
        channel: Any,
        method: str,
        request: bytes,
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> bytes:
        raise NotImplementedError

    def stream(
        self,
        channel: Any,
        method: str,
        request: Optional[bytes],
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> Stream:
        """Begins a call: `request` is its only request; None: requests are written."""
        raise NotImplementedError

    async def sleep(self, seconds: float, cancellation: Optional[Cancellation] = None) -> None:
        """Returns early when cancelled."""
        raise NotImplementedError

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> Task:
        raise NotImplementedError

    def condition(self) -> Condition:
        raise NotImplementedError

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """What computes or waits for the disk, out of the way of an event loop."""
        raise NotImplementedError


# ---- threads --------------------------------------------------------------------------------------------------------


class _Requests:
    """The iterator that gRPC's thread takes requests from; holds one message, so that a writer waits for the
    network."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: Deque[bytes] = collections.deque()
        self._ended = False
        self._complete = False
        self._taken = 0
        # gRPC asks for the next message once it has sent the one before.
        self.sent = 0

    def put(self, message: bytes) -> bool:
        with self._changed:
            while self._waiting and not self._ended:
                self._changed.wait()
            if self._ended:
                return False
            self._waiting.append(message)
            self._changed.notify_all()
            return True

    def complete(self) -> None:
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> "_Requests":
        return self

    def __next__(self) -> bytes:
        with self._changed:
            self.sent = self._taken
            while not (self._waiting or self._complete or self._ended):
                self._changed.wait()
            if not self._waiting:
                raise StopIteration
            message = self._waiting.popleft()
            self._taken += 1
            self._changed.notify_all()
            return message


class _SyncStream(Stream):
    def __init__(
        self,
        channel: Any,
        method: str,
        request: Optional[bytes],
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> None:
        self._context = context
        self._requests: Optional[_Requests] = None
        if request is not None:
            self._call = channel.unary_stream(method)(request, timeout=timeout, metadata=metadata)
        else:
            self._requests = _Requests()
            self._call = channel.stream_stream(method)(self._requests, timeout=timeout, metadata=metadata)
            # Without this, gRPC's thread would wait for requests of a call that has ended.
            if not self._call.add_callback(self._requests.end):
                self._requests.end()
        self._cancellation = cancellation
        if cancellation is not None:
            cancellation._add(self.cancel)

    async def write(self, message: bytes) -> bool:
        assert self._requests is not None
        return self._requests.put(message)

    async def done_writing(self) -> None:
        assert self._requests is not None
        self._requests.complete()

    async def read(self) -> Optional[bytes]:
        try:
            message: bytes = next(self._call)
            return message
        except StopIteration:
            return None
        except grpc.RpcError as error:
            raise _error_of(error, self._context) from None

    def cancel(self) -> None:
        self._call.cancel()

    def close(self) -> None:
        if self._cancellation is not None:
            self._cancellation._remove(self.cancel)
        self._call.cancel()
        if self._requests is not None:
            self._requests.end()

    @property
    def is_over(self) -> bool:
        return not self._call.is_active()

    @property
    def sent(self) -> int:
        return self._requests.sent if self._requests is not None else 1


class _SyncCondition(Condition):
    def __init__(self) -> None:
        self._condition = threading.Condition()

    async def __aenter__(self) -> None:
        self._condition.acquire()

    async def __aexit__(self, *error: Any) -> None:
        self._condition.release()

    async def wait(self, timeout: Optional[float] = None) -> None:
        self._condition.wait(timeout)

    def notify_all(self) -> None:
        self._condition.notify_all()


class _Thread(Task):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._thread = threading.Thread(target=run, args=(coroutine,), name=name, daemon=True)
        self._thread.start()

    async def join(self, timeout: Optional[float] = None) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


class SyncIo(Io):
    def channel(self, target: str, credentials: Any, options: Any) -> Any:
        if credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, credentials, options)

    async def close_channel(self, channel: Any) -> None:
        channel.close()

    async def unary(
        self,
        channel: Any,
        method: str,
        request: bytes,
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> bytes:
        stub = channel.unary_unary(method)
        try:
            if cancellation is None:
                answer: bytes = stub(request, timeout=timeout, metadata=metadata)
                return answer
            call = stub.future(request, timeout=timeout, metadata=metadata)
            cancellation._add(call.cancel)
            try:
                answer = call.result()
                return answer
            except grpc.FutureCancelledError:
                raise errors.Cancelled("the call was cancelled", code="CANCELLED", **context) from None
            finally:
                cancellation._remove(call.cancel)
                call.cancel()
        except grpc.RpcError as error:
            raise _error_of(error, context) from None

    def stream(
        self,
        channel: Any,
        method: str,
        request: Optional[bytes],
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> Stream:
        return _SyncStream(channel, method, request, timeout, metadata, cancellation, context)

    async def sleep(self, seconds: float, cancellation: Optional[Cancellation] = None) -> None:
        if cancellation is None:
            time.sleep(max(0.0, seconds))
        else:
            cancellation._event.wait(max(0.0, seconds))

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> Task:
        return _Thread(coroutine, name)

    def condition(self) -> Condition:
        return _SyncCondition()

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)


# ---- an event loop --------------------------------------------------------------------------------------------------


class _AioStream(Stream):
    def __init__(
        self,
        channel: Any,
        method: str,
        request: Optional[bytes],
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> None:
        self._context = context
        if request is not None:
            self._call = channel.unary_stream(method)(request, timeout=timeout, metadata=tuple(metadata))
        else:
            self._call = channel.stream_stream(method)(timeout=timeout, metadata=tuple(metadata))
        self._sent = 0
        self._ahead: Optional["asyncio.Task[Optional[bytes]]"] = None
        self._cancellation = cancellation
        self._loop = asyncio.get_running_loop()
        if cancellation is not None:
            cancellation._add(self._cancel_from_anywhere)

    def _cancel_from_anywhere(self) -> None:
        self._loop.call_soon_threadsafe(self._call.cancel)

    async def write(self, message: bytes) -> bool:
        try:
            await self._call.write(message)
            self._sent += 1
            return True
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return False
        except asyncio.CancelledError:
            # gRPC raises this both for a cancelled task and for a cancelled call.
            if self._call.done():
                return False
            self._call.cancel()
            raise

    async def done_writing(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            pass

    def read_ahead(self) -> None:
        # A write that fails waits for the call's status, which comes only after the last message was read.
        self._ahead = self._loop.create_task(self._read(), name="intrawarp-answer")

    async def read(self) -> Optional[bytes]:
        ahead, self._ahead = self._ahead, None
        return await (self._read() if ahead is None else ahead)

    async def _read(self) -> Optional[bytes]:
        try:
            message = await self._call.read()
            if message is not grpc.aio.EOF:
                read: bytes = message
                return read
            if await self._call.code() == grpc.StatusCode.OK:
                return None
            raise errors.from_call(
                (await self._call.code()).value[0],
                await self._call.details() or "",
                next(
                    (value for key, value in (await self._call.trailing_metadata() or ()) if key == _DETAILS_KEY), None
                ),
                **self._context
            )
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, self._context) from None
        except asyncio.CancelledError:
            if self._call.done() and self._cancellation is not None and self._cancellation.cancelled:
                raise errors.Cancelled("the call was cancelled", code="CANCELLED", **self._context) from None
            self._call.cancel()
            raise

    def cancel(self) -> None:
        self._call.cancel()

    def close(self) -> None:
        if self._cancellation is not None:
            self._cancellation._remove(self._cancel_from_anywhere)
        self._call.cancel()
        if self._ahead is not None:
            self._ahead.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._ahead.cancel()

    @property
    def is_over(self) -> bool:
        return bool(self._call.done())

    @property
    def sent(self) -> int:
        return self._sent


class _AioCondition(Condition):
    def __init__(self) -> None:
        self._condition = asyncio.Condition()

    async def __aenter__(self) -> None:
        await self._condition.acquire()

    async def __aexit__(self, *error: Any) -> None:
        self._condition.release()

    async def wait(self, timeout: Optional[float] = None) -> None:
        try:
            await asyncio.wait_for(self._condition.wait(), timeout)
        except asyncio.TimeoutError:
            pass

    def notify_all(self) -> None:
        self._condition.notify_all()


class _LoopTask(Task):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(coroutine, name=name)

    async def join(self, timeout: Optional[float] = None) -> None:
        if self._task is not asyncio.current_task():
            await asyncio.wait({self._task}, timeout=timeout)


class AioIo(Io):
    is_async = True

    def channel(self, target: str, credentials: Any, options: Any) -> Any:
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)

    async def close_channel(self, channel: Any) -> None:
        await channel.close()

    async def unary(
        self,
        channel: Any,
        method: str,
        request: bytes,
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> bytes:
        call = channel.unary_unary(method)(request, timeout=timeout, metadata=tuple(metadata))
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            loop.call_soon_threadsafe(call.cancel)

        if cancellation is not None:
            cancellation._add(cancel)
        try:
            answer: bytes = await call
            return answer
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, context) from None
        except asyncio.CancelledError:
            if cancellation is not None and cancellation.cancelled:
                raise errors.Cancelled("the call was cancelled", code="CANCELLED", **context) from None
            call.cancel()
            raise
        finally:
            if cancellation is not None:
                cancellation._remove(cancel)

    def stream(
        self,
        channel: Any,
        method: str,
        request: Optional[bytes],
        timeout: Optional[float],
        metadata: Metadata,
        cancellation: Optional[Cancellation],
        context: Dict[str, Any],
    ) -> Stream:
        return _AioStream(channel, method, request, timeout, metadata, cancellation, context)

    async def sleep(self, seconds: float, cancellation: Optional[Cancellation] = None) -> None:
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if left <= 0 or (cancellation is not None and cancellation.cancelled):
                return
            await asyncio.sleep(left if cancellation is None else min(left, 0.05))

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> Task:
        return _LoopTask(coroutine, name)

    def condition(self) -> Condition:
        return _AioCondition()

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
