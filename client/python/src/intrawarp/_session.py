# SPDX-License-Identifier: Apache-2.0
"""SessionCore: a stream of frames and its answers, over threads or an event loop. Internal.

A reader takes answers off the stream for as long as it lives, so that a caller who only sends never hangs. Every frame
gets exactly one answer: the server's; "superseded" for one that `latest` has overtaken before it was sent; or "lost"
for one that was under way when the stream broke.

After a break the session is taken up again where it was, or opened anew on the next server, as the C++ client does it
(routed_session.h): what the session names is staged there again, and its first frame starts from the last good answer.
"""
import collections
import inspect
import math
import time
from typing import Any, Awaitable, Callable, Deque, Dict, List, Optional, Tuple

import numpy as np

from . import errors, v1
from ._core import Core, new_id
from ._geometry import Geometry, space_signs
from ._io import Cancellation, Stream
from ._link import Link, Receiver, StallWatch, chunks_of, parse
from ._options import duration, landmark_messages, timestamp, timestamp_seconds
from ._shared import SharedSlots
from ._wire import decode_chunk
from .field import Field, affine_of, apply_affine, field_bytes, points_of
from .image import Image
from .report import Report

_PAUSE = 0.25
_SLOT_PAUSE = 0.0005

# Stages what the session names on a server (also where it was, with True), and gives the config with the names there.
Stage = Callable[[Link, bool], Awaitable[v1.NavigateConfig]]


def _name_of(volume: Any, field: str) -> str:
    """The name of a volume that lies on the server; "" for None."""
    state = getattr(volume, "_state", volume)
    name = "" if state is None else getattr(state, "name", state)
    if state is None or isinstance(name, str) and name.startswith("volumes/"):
        return str(name)
    raise errors.InvalidArgument(
        f"{field}: a volume that lies on the server, by its handle or its name", fields=((field, "must be one"),)
    )


class StaleField(errors.IntrawarpError):
    """There is no field yet, or it is older than `max_age`."""


class Answer:
    """What became of one frame.

    Attributes:
        number: the frame's.
        error: None for a frame that was registered; otherwise why it was not. A failed frame does not end the session:
            the next one starts from the last good result.
        report: the frame's Report (verdict, reasons, errors, latency); None with an error.
        field: the Field that `navigate(field=...)` asks for; None with an error, or where none is asked for.
        coarse: the field before the finest level (`coarse_field=True`); None elsewhere.
        transform: "transforms/ID" on the server, which keeps the last 16 of a session.
        acquired: when the frame was acquired, seconds since 1970, as it was sent.
        shared: whether the field came through shared memory.
    """

    __slots__ = (
        "number",
        "error",
        "report",
        "field",
        "coarse",
        "transform",
        "acquired",
        "shared",
        "lost",
        "_taken",
        "_received",
    )

    def __init__(self, number: int, taken: float, acquired: Optional[float]) -> None:
        self.number = number
        self.error: Optional[errors.IntrawarpError] = None
        self.report: Optional[Report] = None
        self.field: Optional[Field] = None
        self.coarse: Optional[Field] = None
        self.transform = ""
        self.acquired = acquired
        self.shared = False
        self.lost = False
        self._taken = taken
        self._received = time.monotonic()

    @property
    def ok(self) -> bool:
        """Registered, with the verdict OK."""
        return self.error is None and self.report is not None and self.report.ok

    @property
    def verdict(self) -> str:
        """ "OK", "REVIEW", or "" for a frame that was not registered."""
        return self.report.verdict if self.report is not None else ""

    @property
    def reasons(self) -> Tuple[Any, ...]:
        """Why the verdict says REVIEW: a tuple of `Reason`; empty for OK, and for a frame that was not registered."""
        return self.report.reasons if self.report is not None else ()

    @property
    def superseded(self) -> bool:
        """A newer frame has taken its place (`latest=True`)."""
        return isinstance(self.error, errors.Superseded)

    @property
    def missed(self) -> bool:
        """It was not answered by its deadline."""
        return isinstance(self.error, errors.DeadlineExceeded)

    @property
    def late(self) -> bool:
        """It was answered after its deadline, which `late="deliver"` allows."""
        return self.report is not None and any(each.cause == "LATE" for each in self.report.reasons)

    @property
    def age(self) -> float:
        """Seconds since the frame was acquired, or handed to `send` where no acquisition time was given."""
        return time.monotonic() - self._taken

    @property
    def latency(self) -> float:
        """Seconds from `send` (or the acquisition) to the answer."""
        return self._received - self._taken

    def __repr__(self) -> str:
        what = self.verdict or type(self.error).__name__
        return f"Answer(number={self.number}, {what}, latency={1000 * self.latency:.1f} ms)"


class MappedPoints:
    """Points through the newest field of a session.

    Attributes:
        points: float64, in the shape and space that was asked with.
        age: seconds since the frame behind the field was acquired (or handed to `send`).
        number: of that frame.
        verdict: "OK" or "REVIEW", and `reasons` says why.
    """

    __slots__ = ("points", "age", "number", "verdict", "reasons")

    def __init__(self, points: Any, age: float, number: int, verdict: str, reasons: Tuple[Any, ...]) -> None:
        self.points = points
        self.age = age
        self.number = number
        self.verdict = verdict
        self.reasons = reasons

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.points if dtype is None else self.points.astype(dtype)

    def __repr__(self) -> str:
        return (
            f"MappedPoints({len(np.atleast_2d(self.points))} points, frame {self.number}, {self.verdict}, "
            f"age={1000 * self.age:.0f} ms)"
        )


class SessionSettings:
    """What the calling side of a session is told, apart from the config."""

    def __init__(
        self,
        *,
        latest: bool = False,
        recovers: bool = False,
        shared_memory: Optional[bool] = None,
        max_answers: int = 32,
        frame_geometry: Optional[Geometry] = None,
        frame_axes: Optional[str] = None,
        fixed_geometry: Optional[Geometry] = None,
        timeout: Optional[float] = None,
        key: str = "",
        affine_only: bool = False,
        frame_masks: bool = False,
    ) -> None:
        self.latest = latest
        self.recovers = recovers
        self.shared_memory = shared_memory
        self.max_answers = max_answers
        self.frame_geometry = frame_geometry
        self.frame_axes = frame_axes
        self.fixed_geometry = fixed_geometry
        self.timeout = timeout
        self.key = key
        self.affine_only = affine_only
        self.frame_masks = frame_masks


class _Frame:
    __slots__ = ("number", "header", "view", "keep", "taken", "acquired")

    def __init__(
        self, number: int, header: v1.FrameHeader, view: memoryview, keep: Any, taken: float, acquired: Optional[float]
    ) -> None:
        self.number = number
        self.header = header
        self.view = view
        self.keep = keep
        self.taken = taken
        self.acquired = acquired


class _Good:
    """The last good answer: where a new session starts."""

    def __init__(self, affine: v1.AffineMap, native: Optional[Tuple[v1.FieldHeader, Any]]) -> None:
        self.affine = affine
        self.native = native


class SessionCore:
    def __init__(
        self, core: Core, stage: Stage, settings: SessionSettings, cancellation: Optional[Cancellation]
    ) -> None:
        self._core = core
        self._io = core.io
        self._stage = stage
        self.settings = settings
        self._cancellation = cancellation
        self._link: Optional[Link] = None
        self._stream: Optional[Stream] = None
        self._watch: Optional[StallWatch] = None
        self._config = v1.NavigateConfig()
        self.opened: Optional[v1.SessionOpened] = None
        self.closed: Optional[v1.Session] = None
        self._slots: Optional[SharedSlots] = None
        self.shared_memory_error: Optional[errors.IntrawarpError] = None
        # Guards everything below, and tells of its changes.
        self._changed = self._io.condition()
        # Held while a frame goes out: the messages of two frames must not mix.
        self._sending = self._io.condition()
        # For the frames that are made from now on; None: the landmarks of the config.
        self._landmarks: Optional[v1.LandmarkList] = None
        # The names of the mask and the weights of these frames; empty: the mask and weights of the config.
        self._masks = ("", "")
        self._in_flight: "Dict[int, _Frame]" = {}
        self._mailbox: Optional[_Frame] = None
        self._last_number: Optional[int] = None
        self._answers: Deque[Answer] = collections.deque()
        self._done_sending = False
        self._ended = False
        self._closing = False
        self._error: Optional[BaseException] = None
        self._reader: Any = None
        self._sender: Any = None
        self.callbacks: List[Callable[[Answer], Any]] = []
        # The newest good answer. Replaced whole, so that any thread may read it without a lock.
        self.newest: Optional[Answer] = None
        self._good: Optional[_Good] = None
        self.dropped_answers = 0
        self.recoveries = 0
        self.frames_shared = 0
        self.frames_in_chunks = 0
        self.fields_shared = 0
        self.fields_in_chunks = 0

    @property
    def shares_memory(self) -> bool:
        return self._slots is not None

    # ---- opening ----

    @property
    def address(self) -> str:
        return self._link.address if self._link is not None else ""

    @property
    def name(self) -> str:
        return self.opened.session.name if self.opened is not None else ""

    async def open(self) -> None:
        async def work(link: Link) -> None:
            await self._open_at(link, again=False)

        await self._core.run(work, key=self.settings.key, cancellation=self._cancellation)
        self._reader = self._io.spawn(self._read_loop(), "intrawarp-answers")
        if self.settings.latest:
            self._sender = self._io.spawn(self._send_loop(), "intrawarp-frames")

    async def _open_at(self, link: Link, again: bool) -> None:
        config = await self._stage(link, again)
        start = await self._set_start(link, config)
        try:
            await self._begin(link, config)
        finally:
            # An open session holds its start itself.
            if start:
                try:
                    await self._core.delete(link, start)
                except errors.IntrawarpError:
                    pass
        self._config = config

    async def _begin(self, link: Link, config: v1.NavigateConfig) -> None:
        """Opens a stream, and waits until the server has opened the session."""
        await self._end_stream()
        channel = link.bulk
        stream = link.stream("Navigate", None, self.settings.timeout, self._cancellation, channel)
        try:
            await stream.write(v1.NavigateRequest(config=config).SerializeToString())
            message = await stream.read()
            if message is None:
                raise errors.ConnectionLost(
                    "the stream ended before its session was opened",
                    code="UNAVAILABLE",
                    address=link.address,
                    retry_after=1.0,
                )
            response = parse(v1.NavigateResponse, message)
            if response.WhichOneof("payload") != "opened":
                raise errors.InternalError("the server did not open the session first", code="INTERNAL")
            self.opened = response.opened
            await self._share(stream)
        except BaseException:
            stream.close()
            raise
        async with self._changed:
            self._link = link
            self._stream = stream
            stall = link.options.probe_timeout if self._core.has_several else 0.0
            self._watch = StallWatch(link, channel, stream, stall) if stall > 0 else None
            self._changed.notify_all()

    async def _share(self, stream: Stream) -> None:
        """Shares memory where it is wanted and to be had; `shared_memory=True` makes a refusal an error."""
        self._slots = None
        self.shared_memory_error = None
        if self.settings.shared_memory is False:
            return
        try:
            await stream.write(v1.NavigateRequest(shared_memory=v1.SharedMemoryRequest()).SerializeToString())
            message = await stream.read()
            if message is None:
                raise errors.InternalError("the server did not answer about shared memory", code="INTERNAL")
            response = parse(v1.NavigateResponse, message)
            if response.WhichOneof("payload") != "shared_memory":
                raise errors.InternalError("the server did not answer about shared memory", code="INTERNAL")
            offer = response.shared_memory
            if offer.status.code:
                raise errors.from_status(offer.status)
            slots = await self._io.blocking(SharedSlots, offer)
            attach = v1.SharedMemoryAttach(nonce=slots.nonce)
            if await stream.write(v1.NavigateRequest(shared_memory_attach=attach).SerializeToString()):
                self._slots = slots
        except errors.IntrawarpError as error:
            if self.settings.shared_memory or errors.is_broken(error) or isinstance(error, errors.InternalError):
                raise
            self.shared_memory_error = error

    async def _set_start(self, link: Link, config: v1.NavigateConfig) -> str:
        """Makes a new session start from the last good answer; the name of a transform that was staged for it, or
        ""."""
        good = self._good
        if good is None:
            return ""
        if good.native is None or not config.options.stages:
            config.options.initial_affine.CopyFrom(good.affine)
            return ""
        header, data = good.native
        upload = v1.UploadHeader(id=new_id())  # never somebody else's object with the same content: it is deleted again
        field = upload.transform.field
        field.geometry.CopyFrom(header.geometry)
        field.encoding = header.encoding
        field.total_bytes = header.total_bytes
        field.affine.CopyFrom(header.affine if header.HasField("affine") else good.affine)
        if header.encoding == v1.FIELD_ENCODING_CONTROL_POINTS and header.HasField("domain"):
            field.domain.CopyFrom(header.domain)
        from .progress import Reporter

        answer = await self._core.put_object(
            link, upload, memoryview(data).cast("B"), Reporter("upload", None), None, self._cancellation
        )
        config.options.initial_transform = answer.transform.name
        return str(answer.transform.name)

    # ---- frames out ----

    def _make_frame(
        self, frame: Any, number: Optional[int], acquired: Optional[float], deadline: Optional[float], copy: bool
    ) -> _Frame:
        image = self._image_of(frame)
        if number is None:
            number = (self._last_number if self._last_number is not None else self._first_number() - 1) + 1
        elif self._last_number is not None and number <= self._last_number:
            raise errors.InvalidArgument(
                f"number: {number} does not grow from {self._last_number}",
                fields=(("number", "must grow from frame to frame"),),
            )
        view = image.buffer()
        keep: Any = image
        if copy:
            keep = bytes(view)
            view = memoryview(keep)
        header = v1.FrameHeader(
            frame_number=number, geometry=image.geometry.to_proto(), pixel_type=image.pixel_type, total_bytes=len(view)
        )
        if image.rescale is not None:
            header.rescale.slope, header.rescale.intercept = image.rescale
        taken = time.monotonic()
        if acquired is not None:
            header.acquisition_time.CopyFrom(timestamp(acquired, "acquired"))
            taken -= max(0.0, time.time() - acquired)
        if deadline is not None:
            header.deadline.CopyFrom(duration(deadline, "deadline"))
        landmarks = self._landmarks  # set_landmarks may replace them at any time, from any thread
        if landmarks is not None:
            header.landmarks.CopyFrom(landmarks)
        header.mask, header.weight = self._masks
        self._last_number = int(number)
        return _Frame(int(number), header, view, keep, taken, acquired)

    def set_landmarks(self, landmarks: Any) -> None:
        self._landmarks = None if landmarks is None else v1.LandmarkList(landmarks=landmark_messages(landmarks))

    def set_masks(self, mask: Any, weight: Any) -> None:
        if not self.settings.frame_masks and (mask is not None or weight is not None):
            raise errors.InvalidArgument(
                "frame_masks: masks of frames take a session that was opened with frame_masks=True",
                fields=(("frame_masks", "is not set"),),
            )
        # One assignment, so that a frame has both or neither.
        self._masks = (_name_of(mask, "mask"), _name_of(weight, "weight"))

    def _first_number(self) -> int:
        session = self.opened.session if self.opened is not None else None
        return session.last_frame_number + 1 if session is not None and session.HasField("last_frame_number") else 1

    def _image_of(self, frame: Any) -> Image:
        if isinstance(frame, Image):
            return frame
        if isinstance(frame, np.ndarray):
            settings = self.settings
            if settings.frame_geometry is None or settings.frame_axes is None:
                raise errors.GeometryError(
                    "frame: an array says neither which axis is which nor where it lies: send an Image, or give "
                    "navigate() frame_geometry= and frame_axes= once",
                    fields=(("frame", "needs a geometry"),),
                )
            return Image(frame, axes=settings.frame_axes, geometry=settings.frame_geometry)
        return Image.of(frame)

    async def send(
        self, frame: Any, number: Optional[int], acquired: Optional[float], deadline: Optional[float]
    ) -> int:
        if self.settings.latest:
            return await self._leave_in_mailbox(frame, number, acquired, deadline)
        async with self._sending:
            made = self._make_frame(frame, number, acquired, deadline, copy=False)
            await self._send_now(made)
            return made.number

    async def _leave_in_mailbox(
        self, frame: Any, number: Optional[int], acquired: Optional[float], deadline: Optional[float]
    ) -> int:
        overtaken = None
        async with self._changed:
            self._raise_if_over()
            made = self._make_frame(frame, number, acquired, deadline, copy=True)
            overtaken, self._mailbox = self._mailbox, made
            self._changed.notify_all()
        if overtaken is not None:
            answer = Answer(overtaken.number, overtaken.taken, overtaken.acquired)
            answer.error = errors.Superseded(
                f"frame {made.number} took the place of this one before it was sent",
                code="ABORTED",
                reason="FRAME_SUPERSEDED",
                metadata={"superseded_by": str(made.number)},
            )
            await self._deliver(answer)
        return made.number

    async def _send_loop(self) -> None:
        """Sends the newest frame that was left in the mailbox."""
        while True:
            async with self._changed:
                while self._mailbox is None and not self._ended and not self._done_sending:
                    await self._changed.wait()
                frame, self._mailbox = self._mailbox, None
                if frame is None or self._ended:
                    break
            try:
                async with self._sending:
                    await self._send_now(frame)
            except errors.IntrawarpError:
                continue  # the reader tells why
        if self._done_sending and self._stream is not None:
            await self._stream.done_writing()

    def _raise_if_over(self) -> None:
        if self._error is not None and self._ended:
            raise self._error
        if self._ended or self._done_sending:
            raise errors.SessionEnded("the session is over", code="ABORTED")

    async def _send_now(self, frame: _Frame) -> None:
        """Sends one frame over the stream that stands, waiting for one after a break."""
        async with self._changed:
            while self._stream is None and not self._ended:
                await self._changed.wait()
            if not (self._done_sending and self.settings.latest):
                self._raise_if_over()
            stream, slots = self._stream, self._slots
            assert stream is not None
            self._in_flight[frame.number] = frame
        if slots is not None and slots.fits(len(frame.view)):
            while not slots.is_frame_free and not stream.is_over:
                await self._io.sleep(_SLOT_PAUSE)
            if stream.is_over:
                return
            frame.header.slot.CopyFrom(slots.put_frame(frame.view))
            self.frames_shared += 1
            await stream.write(v1.NavigateRequest(frame=frame.header).SerializeToString())
        else:
            self.frames_in_chunks += 1
            taken = await stream.write(v1.NavigateRequest(frame=frame.header).SerializeToString())
            for message, _ in chunks_of(3, frame.view, 0, self._core.options.chunk_bytes):
                if not taken:
                    break
                taken = await stream.write(message)
        if self._watch is not None:
            self._watch.moved()

    # ---- answers in ----

    async def _read_loop(self) -> None:
        while True:
            broken: Optional[errors.IntrawarpError] = None
            try:
                await self._read_stream()
            except errors.IntrawarpError as error:
                broken = error
                if self._watch is not None and self._watch.stalled and self._link is not None:
                    broken = errors.ConnectionLost(
                        "the connection has gone silent",
                        code="UNAVAILABLE",
                        address=self._link.address,
                        retry_after=1.0,
                    )
            except BaseException as error:  # of a callback
                await self._finish(error)
                return
            if broken is None or self._closing or not self.settings.recovers or not errors.is_broken(broken):
                await self._finish(broken)
                return
            await self._lose_frames(broken)
            try:
                await self._recover(broken)
            except BaseException as error:
                await self._finish(error)
                return

    async def _lose_frames(self, cause: BaseException) -> None:
        async with self._changed:
            self._stream = None
            lost = sorted(self._in_flight.values(), key=lambda frame: frame.number)
            self._in_flight.clear()
        for frame in lost:
            answer = Answer(frame.number, frame.taken, frame.acquired)
            answer.lost = True
            answer.error = (
                cause
                if isinstance(cause, errors.IntrawarpError)
                else errors.SessionEnded("the session ended before this frame was answered", code="ABORTED")
            )
            await self._deliver(answer)

    async def _finish(self, error: Optional[BaseException]) -> None:
        if self._in_flight:
            await self._lose_frames(
                error
                if error is not None
                else errors.SessionEnded("the session ended before this frame was answered", code="ABORTED")
            )
        async with self._changed:
            stream, self._stream = self._stream, None
            self._ended = True
            self._error = error
            self._changed.notify_all()
        if stream is not None:
            stream.close()
        if self._watch is not None:
            await self._watch.end()
        if self._slots is not None:
            self._slots.close()

    async def _end_stream(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.end()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.close()

    async def _read_stream(self) -> None:
        """Takes answers until the stream ends well."""
        stream = self._stream
        assert stream is not None
        headers: List[v1.FrameField] = []
        receivers: List[Receiver] = []
        data: List[Any] = []  # of each header, once it is whole
        shared = False
        while True:
            message = await stream.read()
            if self._watch is not None:
                self._watch.moved()
            if message is None:
                return
            chunk = decode_chunk(message, 2)
            if chunk is not None:
                if not receivers or len(data) == len(headers):
                    raise errors.DataLoss("the server sent a chunk without its header", code="DATA_LOSS")
                receivers[-1].append(chunk)
                if receivers[-1].received == len(receivers[-1].data):
                    data.append(receivers[-1].data)
                continue
            response = parse(v1.NavigateResponse, message)
            kind = response.WhichOneof("payload")
            if kind == "field":
                header = response.field
                if headers and header.frame_number != headers[0].frame_number:
                    headers, receivers, data, shared = [], [], [], False
                if len(data) != len(headers) or len(headers) > 1:
                    raise errors.InternalError("the server sent a field within another one", code="INTERNAL")
                size = field_bytes(header.field)
                headers.append(header)
                receivers.append(Receiver(self._core.options.max_answer_bytes))
                if header.HasField("slot"):
                    if self._slots is None:
                        raise errors.InternalError("the server named a slot, and no memory is shared", code="INTERNAL")
                    data.append(self._slots.take_field(header.slot, size))
                    shared = True
                    self.fields_shared += 1
                else:
                    receivers[-1].begin(size)
                    self.fields_in_chunks += 1
            elif kind == "result":
                await self._take_result(response.result, headers, data, shared)
                headers, receivers, data, shared = [], [], [], False
            elif kind == "opened":
                self.opened = response.opened
            elif kind == "closed":
                self.closed = response.closed

    async def _take_result(
        self, result: v1.FrameResult, headers: List[v1.FrameField], data: List[Any], shared: bool
    ) -> None:
        async with self._changed:
            frame = self._in_flight.pop(result.frame_number, None)
        taken = frame.taken if frame is not None else time.monotonic()
        acquired = timestamp_seconds(result.acquisition_time) if result.HasField("acquisition_time") else None
        answer = Answer(result.frame_number, taken, frame.acquired if frame is not None else acquired)
        if result.status.code:
            call_id = self._stream.call_id if self._stream is not None else ""
            answer.error = errors.from_status(result.status, address=self.address, call_id=call_id)
            await self._deliver(answer)
            return
        answer.report = Report(result.report)
        answer.transform = result.transform
        answer.shared = shared
        affine = affine_of(result.report.affine)
        native = None
        for place, header in enumerate(headers):
            if header.frame_number != result.frame_number or place >= len(data):
                raise errors.DataLoss("the server sent an answer within its field", code="DATA_LOSS")
            field = Field.from_wire(header.field, data[place], affine=affine, domain=self.settings.fixed_geometry)
            if header.coarse:
                answer.coarse = field
            else:
                answer.field = field
                if not field.is_dense and not self._config.field.stride and not self._config.field.region_size:
                    native = (header.field, data[place])
        self._good = _Good(result.report.affine, native)
        if answer.field is not None or self.settings.affine_only:
            self.newest = answer
        await self._deliver(answer)

    async def _deliver(self, answer: Answer) -> None:
        async with self._changed:
            self._answers.append(answer)
            if len(self._answers) > self.settings.max_answers:
                self._answers.popleft()
                self.dropped_answers += 1
            self._changed.notify_all()
        for callback in list(self.callbacks):
            outcome = callback(answer)
            if inspect.isawaitable(outcome):
                await outcome

    async def next_answer(self, timeout: Optional[float] = None) -> Optional[Answer]:
        """The next answer, in order; None at the end of the session. DeadlineExceeded after `timeout` seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        async with self._changed:
            while not self._answers and not self._ended:
                left = end - time.monotonic()
                if left <= 0:
                    raise errors.DeadlineExceeded("no answer came in time", code="DEADLINE_EXCEEDED")
                await self._changed.wait(None if math.isinf(left) else left)
            if self._answers:
                return self._answers.popleft()
        if self._error is not None and not self._closing:
            raise self._error
        return None

    # ---- recovery ----

    async def _recover(self, cause: errors.IntrawarpError) -> None:
        give_up = time.monotonic() + self._core.options.recovery_timeout
        last: errors.IntrawarpError = cause
        while True:
            for address in await self._core.order(self.settings.key, self.address):
                if self._closing or (self._cancellation is not None and self._cancellation.cancelled):
                    raise errors.Cancelled("the session was cancelled", code="CANCELLED")
                try:
                    if await self._try_server(self._core.link_at(address)):
                        self.recoveries += 1
                        return
                except errors.IntrawarpError as error:
                    if not errors.is_servers_fault(error) and not isinstance(error, errors.AlreadyExists):
                        raise
                    last = error
            if time.monotonic() >= give_up:
                raise last
            await self._io.sleep(_PAUSE, self._cancellation)
            await self._core.refresh()

    async def _try_server(self, link: Link) -> bool:
        if not await link.is_well():
            return False
        if link.address == self.address and self.opened is not None:
            config = v1.NavigateConfig()
            config.CopyFrom(self._config)
            config.session_id = self.opened.session.config.session_id or self.name.partition("/")[2]
            config.resume = True
            try:
                await self._begin(link, config)
                return True
            except errors.SessionEnded:
                pass  # its window is over, or the server was started anew
        await self._open_at(link, again=True)
        return True

    # ---- points ----

    def map_points(self, points: Any, space: str, inverse: bool, max_age: Optional[float]) -> MappedPoints:
        newest = self.newest
        if newest is None or newest.report is None:
            if self._config.HasField("field") or self.settings.affine_only:
                raise StaleField("no frame of this session has been registered yet")
            raise StaleField(
                "this session asks for no field: give navigate() field='int16', say, so that points can be "
                "mapped here"
            )
        age = newest.age
        if max_age is not None and age > max_age:
            raise StaleField(
                f"the newest field is {age:.3f} s old, more than max_age ({max_age:.3f} s)",
                metadata={"age": f"{age:.6f}", "max_age": f"{max_age:.6f}"},
            )
        if newest.field is not None:
            field = newest.field
            mapped = field.inverse_points(points, space=space) if inverse else field.map_points(points, space=space)
        else:
            flat, shape = points_of(points)
            signs = space_signs(space)
            matrix = newest.report.affine
            matrix = np.linalg.inv(matrix) if inverse else matrix
            mapped = (apply_affine(matrix, flat * signs) * signs).reshape(shape)
        return MappedPoints(mapped, age, newest.number, newest.verdict, newest.reasons)

    # ---- the end ----

    async def done_sending(self) -> None:
        async with self._changed:
            already, self._done_sending = self._done_sending, True
            stream = self._stream
            self._changed.notify_all()
        if already or self.settings.latest:
            return
        async with self._sending:
            if stream is not None:
                await stream.done_writing()

    async def close(self, timeout: Optional[float], abandon: bool = False) -> None:
        """Ends the session: waits for the answers that are owed, or (`abandon`) for nothing."""
        if not abandon and not self._ended:
            await self.done_sending()
            limit = math.inf if timeout is None else time.monotonic() + timeout
            async with self._changed:
                while not self._ended and time.monotonic() < limit:
                    await self._changed.wait(None if math.isinf(limit) else max(0.0, limit - time.monotonic()))
        self._closing = True
        async with self._changed:
            stream, ended = self._stream, self._ended
            self._done_sending = True
            self._changed.notify_all()
        if not ended:
            if stream is not None:
                stream.cancel()
            await self._close_session()
        for task in (self._reader, self._sender):
            if task is not None:
                await task.join(5.0)

    async def _close_session(self) -> None:
        """A session with a resume window would outlive its stream."""
        if (
            self._link is None
            or not self.name
            or not self._config.HasField("resume_window")
            and not (self._config.session_id)
        ):
            return
        try:
            await self._link.unary("CloseSession", v1.CloseSessionRequest(name=self.name), 2.0)
        except errors.IntrawarpError:
            pass

    async def session(self) -> v1.Session:
        """The session as the server sees it; as it was at its end once it is closed."""
        if self.closed is not None:
            return self.closed
        if self._link is None:
            raise errors.SessionEnded("the session is not open")
        response = await self._link.unary("GetSession", v1.GetSessionRequest(name=self.name))
        found: v1.Session = response.session
        return found

    def cancel(self) -> None:
        self._closing = True
        stream = self._stream
        if stream is not None:
            stream.cancel()
