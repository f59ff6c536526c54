# SPDX-License-Identifier: Apache-2.0
"""A server for tests, in pure Python: no GPU, no intrawarpd, nothing but this package. And a phantom.

    from intrawarp import testing

    with testing.FakeServer() as fake, intrawarp.connect(fake.address) as server:
        fake.rule("Register", refuse="QUEUE_FULL", retry_after=0.1, times=1)
        fake.rule("Frame", late=0.2, when=lambda header: header.frame_number == 3)
        ...
        assert fake.count("Register") == 2

It speaks the whole protocol: uploads with checksums, digests and resumption, downloads from an offset, registrations,
sessions with LATEST_WINS, deadlines and resumption, warps, points, sparse products (with scipy), operations. It does
not
register: a result is the translation between the images' centres of mass, or what `FakeServer.transform` says. Rules
make it late, refuse, ask for a review, or break.
"""
import collections
import concurrent.futures
import dataclasses
import hashlib
import queue
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import grpc
import numpy as np

from . import errors, v1
from ._crc32c import crc32c
from ._geometry import Geometry
from ._options import seconds_of
from ._wire import WIRE, decode_chunk, encode_chunk
from .field import ENCODING_NAMES, Field, apply_affine
from .image import DTYPES, Image

__all__ = ["FakeServer", "Phantom", "phantom"]

_CHUNK = 1 << 18
# Longer than any test waits.
_OPEN = 3600.0

# The status code of each reason (error.proto).
_CODE_OF: Dict[str, str] = {
    "INVALID_FIELD": "INVALID_ARGUMENT",
    "MALFORMED_MESSAGE": "INVALID_ARGUMENT",
    "NOT_IMPLEMENTED": "UNIMPLEMENTED",
    "RESOURCE_NOT_FOUND": "NOT_FOUND",
    "RESOURCE_EXISTS": "ALREADY_EXISTS",
    "REQUEST_ID_REUSED": "ALREADY_EXISTS",
    "REQUEST_IN_PROGRESS": "ABORTED",
    "PRECONDITION_NOT_MET": "FAILED_PRECONDITION",
    "OPTIMIZER_DIVERGED": "FAILED_PRECONDITION",
    "BUDGET_USED_UP": "DEADLINE_EXCEEDED",
    "DEADLINE_PASSED": "DEADLINE_EXCEEDED",
    "CALL_CANCELLED": "CANCELLED",
    "EXCEEDS_CAPACITY": "FAILED_PRECONDITION",
    "CHUNK_OUT_OF_ORDER": "OUT_OF_RANGE",
    "CHUNK_CHECKSUM": "DATA_LOSS",
    "DIGEST_MISMATCH": "DATA_LOSS",
    "UPLOAD_TAKEN_OVER": "ABORTED",
    "CONTENT_CHANGED": "ABORTED",
    "SERVER_STOPPING": "UNAVAILABLE",
    "DEVICE_LOST": "UNAVAILABLE",
    "INTERNAL_ERROR": "INTERNAL",
    "UPLOAD_INCOMPLETE": "INVALID_ARGUMENT",
    "STREAM_STALLED": "ABORTED",
    "DEVICE_HUNG": "UNAVAILABLE",
    "DEADLINE_UNREACHABLE": "DEADLINE_EXCEEDED",
    "SESSION_NOT_RESUMABLE": "FAILED_PRECONDITION",
    "FRAME_SUPERSEDED": "ABORTED",
    "SESSION_ENDED": "ABORTED",
    "SHARED_MEMORY_UNAVAILABLE": "FAILED_PRECONDITION",
    "STATE_UNAVAILABLE": "UNAVAILABLE",
    "OBJECT_DAMAGED": "DATA_LOSS",
    "SERVER_RESTARTED": "UNAVAILABLE",
    "NOT_AUTHENTICATED": "UNAUTHENTICATED",
    "ROLE_MISSING": "PERMISSION_DENIED",
    "RUN_TIME_USED_UP": "DEADLINE_EXCEEDED",
    "AUDIT_UNAVAILABLE": "UNAVAILABLE",
    "ARCHIVE_UNAVAILABLE": "UNAVAILABLE",
    "ARCHIVE_TOO_SLOW": "DEADLINE_EXCEEDED",
    "ARCHIVE_IDENTITY_REFUSED": "FAILED_PRECONDITION",
    "ARCHIVE_REFUSED": "FAILED_PRECONDITION",
    "RETRIEVAL_INCOMPLETE": "DATA_LOSS",
    "SPOOL_UNAVAILABLE": "UNAVAILABLE",
}


# ---- the phantom ----------------------------------------------------------------------------------------------------


class Phantom(NamedTuple):
    """Two images of one anatomy, and the truth between them.

    fixed, moving: int16 Images. truth: the dense displacement T(p) - p on the fixed grid, LPS mm. points: (24, 3) LPS
    mm in the fixed image; `moving_points` are T of them.
    """

    fixed: Image
    moving: Image
    truth: Field
    points: Any
    moving_points: Any


def phantom(
    size_xyz: Tuple[int, int, int] = (64, 64, 48),
    spacing_xyz: Tuple[float, float, float] = (2.0, 2.0, 2.0),
    *,
    shift_mm: Tuple[float, float, float] = (3.0, -2.0, 1.5),
    bend_mm: float = 3.0,
    seed: int = 1,
) -> Phantom:
    """A pair with a known map: moving(y) = anatomy(y) and fixed(x) = anatomy(T(x)), both sampled from one function of
    position. T is a shift and a smooth bend of `bend_mm`. Equal arguments give equal bytes."""
    random = np.random.default_rng(seed)
    extent = np.array(size_xyz) * np.array(spacing_xyz)
    centres = random.uniform(-0.3, 0.3, (40, 3)) * extent
    widths = random.uniform(0.03, 0.09, 40) * float(extent.min())
    heights = random.uniform(-400.0, 700.0, 40)
    geometry = Geometry(size_xyz, spacing_xyz, [float(each) for each in -0.5 * (extent - np.array(spacing_xyz))])

    def anatomy(points: Any) -> Any:
        inside = 1.0 / (1.0 + np.exp((np.linalg.norm(points / (0.42 * extent), axis=-1) - 1.0) * 25.0))
        values = 1000.0 * inside - 1000.0
        for centre, width, height in zip(centres, widths, heights):
            values = values + inside * height * np.exp(-((points - centre) ** 2).sum(axis=-1) / (2.0 * width * width))
        return values

    def move(points: Any) -> Any:
        bend = np.stack(
            [np.sin(np.pi * points[..., (axis + 1) % 3] / extent[(axis + 1) % 3]) for axis in range(3)], axis=-1
        )
        return points + np.array(shift_mm) + bend_mm * bend

    nx, ny, nz = size_xyz
    k, j, i = np.meshgrid(np.arange(nz), np.arange(ny), np.arange(nx), indexing="ij")
    points = geometry.index_to_physical(np.stack([i, j, k], axis=-1))
    images = [
        Image(np.rint(anatomy(at)).astype(np.int16), axes="zyx", geometry=geometry) for at in (move(points), points)
    ]
    marks = random.uniform(-0.25, 0.25, (24, 3)) * extent
    truth = Field((move(points) - points).astype(np.float32), geometry, "float32", domain=geometry)
    return Phantom(images[0], images[1], truth, marks, move(marks))


# ---- rules ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Rule:
    """What becomes of the calls that it is for. See `FakeServer.rule`."""

    method: str
    late: float = 0.0
    refuse: str = ""
    message: str = ""
    field: str = ""
    resource: str = ""
    numbers: Dict[str, Any] = dataclasses.field(default_factory=dict)
    retry_after: Optional[float] = None
    review: Tuple[str, ...] = ()
    broken: bool = False
    corrupt: bool = False
    silent: bool = False
    after: int = 0
    times: Optional[int] = None
    when: Optional[Callable[[Any], bool]] = None


class Call(NamedTuple):
    """A call that came: the method's short name, its first request, and its metadata."""

    method: str
    request: Any
    metadata: Dict[str, str]


class _Refusal(Exception):
    def __init__(self, status: v1.GoogleRpcStatus, details: bool = True) -> None:
        super().__init__(status.message)
        self.status = status
        self.details = details


def refusal(
    reason: str,
    message: str = "",
    *,
    field: str = "",
    resource: str = "",
    numbers: Optional[Dict[str, Any]] = None,
    retry_after: Optional[float] = None,
) -> v1.GoogleRpcStatus:
    """The status that the server gives for a reason."""
    code = _CODE_OF.get(reason, "RESOURCE_EXHAUSTED")
    status = v1.GoogleRpcStatus(code=errors.CODES.index(code), message=message or f"by a rule: {reason}")

    def add(name: str, detail: v1.Message) -> None:
        packed = status.details.add()
        packed.type_url = "type.googleapis.com/google.rpc." + name
        packed.value = detail.SerializeToString()

    metadata = {key: str(value) for key, value in (numbers or {}).items()}
    add("ErrorInfo", v1.GoogleRpcErrorInfo(domain="intrawarp", reason=reason, metadata=metadata))
    if field:
        violation = v1.GoogleRpcBadRequestFieldViolation(field=field, description=message)
        add("BadRequest", v1.GoogleRpcBadRequest(field_violations=[violation]))
    if resource:
        add("ResourceInfo", v1.GoogleRpcResourceInfo(resource_name=resource))
    if retry_after is not None:
        nanos = round(retry_after * 1e9)
        add(
            "RetryInfo",
            v1.GoogleRpcRetryInfo(
                retry_delay=v1.GoogleProtobufDuration(seconds=nanos // 10**9, nanos=nanos % 10**9)
            ),
        )
    return status


def _refuse(reason: str, message: str, **details: Any) -> _Refusal:
    return _Refusal(refusal(reason, message, **details))


_BROKEN = v1.GoogleRpcStatus(code=errors.CODES.index("UNAVAILABLE"), message="the connection broke, by a rule")


# ---- what the server holds ------------------------------------------------------------------------------------------


class _Stored:
    def __init__(self, kind: str, proto: Any, key: bytes, named: bool) -> None:
        self.kind = kind
        self.proto = proto
        self.key = key
        self.named = named
        self.image: Optional[Image] = None
        self.field: Optional[Field] = None
        self.affine = np.eye(4)
        self.data = b""

    def map(self, points: Any) -> Any:
        return self.field.map_points(points) if self.field is not None else apply_affine(self.affine, points)

    def inverse(self, points: Any) -> Any:
        if self.field is not None:
            return self.field.inverse_points(points)
        return apply_affine(np.linalg.inv(self.affine), points)


class _Upload:
    def __init__(self, header: v1.UploadHeader) -> None:
        self.header = header
        self.data = bytearray()
        self.turn = 0


class _Session:
    def __init__(self, proto: v1.Session) -> None:
        self.proto = proto
        self.turn = 0
        self.closed = threading.Event()
        # Names of the last transforms.
        self.transforms: Deque[str] = collections.deque()


class _Frame:
    def __init__(self, header: v1.FrameHeader) -> None:
        self.header = header
        self.data = bytearray()
        self.received = time.monotonic()
        self.error: Optional[v1.GoogleRpcStatus] = None


def _center_of_mass(image: Image) -> Any:
    values = image.values.astype(np.float64)
    values = values - values.min()
    total = values.sum()
    if not total > 0:
        raise _refuse("PRECONDITION_NOT_MET", "the image is constant", field="fixed")
    index = [
        float(
            (
                values.sum(axis=tuple(each for each in range(3) if each != 2 - axis))
                * np.arange(values.shape[2 - axis])
            ).sum()
            / total
        )
        for axis in range(3)
    ]
    return image.geometry.index_to_physical(index)


class FakeServer:
    """A server on a free port of 127.0.0.1, for as long as its `with` block.

    Args:
        address: where it listens.
        workers: calls that are under way at once; a stream takes one for its length.

    Attributes:
        transform: what every registration gives: a 4 x 4 matrix, a Field, or a function of (fixed, moving) Images that
            gives one of them. None: the translation between the centres of mass.
        expected_mm: the expected error of every report.
        serving: what health says.
    """

    def __init__(self, address: str = "127.0.0.1:0", *, workers: int = 64) -> None:
        self.transform: Union[None, Any, Callable[[Image, Image], Any]] = None
        self.expected_mm = 0.5
        self.serving = True
        self._wanted_address = address
        self._workers = workers
        self._lock = threading.RLock()
        self._rules: List[Rule] = []
        self._calls: Deque[Call] = collections.deque(maxlen=100000)
        self._counts: Dict[str, int] = collections.Counter()
        self._cancelled: Dict[str, int] = collections.Counter()
        self._objects: Dict[str, _Stored] = {}
        self._uploads: Dict[str, _Upload] = {}
        self._sessions: Dict[str, _Session] = {}
        self._operations: Dict[str, v1.Operation] = {}
        self._requests: Dict[str, v1.RegisterResult] = {}
        self._next_id = 0
        self._grpc: Any = None
        self._executor: Any = None
        self.address = ""

    # ---- life ----

    def start(self) -> "FakeServer":
        """Begins to serve, on a free port of 127.0.0.1 unless another was given; what a `with` block does at first."""
        self._executor = concurrent.futures.ThreadPoolExecutor(self._workers, thread_name_prefix="intrawarp-fake")
        self._grpc = grpc.server(
            self._executor,
            options=[
                ("grpc.max_receive_message_length", 17 << 20),
                ("grpc.max_send_message_length", 17 << 20),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._grpc.add_generic_rpc_handlers((_Handler(self),))
        host = self.address or self._wanted_address
        port = self._grpc.add_insecure_port(host)
        if not port:
            raise OSError(f"cannot listen on {host}")
        self.address = host.rpartition(":")[0] + f":{port}"
        self._grpc.start()
        return self

    def stop(self) -> None:
        """Breaks every connection, and forgets nothing."""
        if self._grpc is not None:
            self._grpc.stop(0).wait()
            self._grpc = None
            self._executor.shutdown(wait=True)

    def restart(self, *, forget: bool = False) -> None:
        """Breaks every connection and serves again at the same address; with `forget`, as a new server does."""
        self.stop()
        if forget:
            self._objects.clear()
            self._uploads.clear()
            self._sessions.clear()
            self._operations.clear()
            self._requests.clear()
        self.start()

    def __enter__(self) -> "FakeServer":
        return self.start()

    def __exit__(self, *error: Any) -> None:
        self.stop()

    # ---- rules and what came ----

    def rule(
        self,
        method: str,
        *,
        late: float = 0.0,
        refuse: str = "",
        message: str = "",
        field: str = "",
        resource: str = "",
        numbers: Optional[Dict[str, Any]] = None,
        retry_after: Optional[float] = None,
        review: Union[str, Tuple[str, ...]] = (),
        broken: bool = False,
        corrupt: bool = False,
        silent: bool = False,
        after: int = 0,
        times: Optional[int] = None,
        when: Optional[Callable[[Any], bool]] = None,
    ) -> Rule:
        """Sets what becomes of calls. Rules are tried in the order in which they were set; the first that fits counts.

        Args:
            method: the short name of an RPC ("Register", "Upload", "MapPoints", ...), "Frame" for the frames of a
                session, or "*".
            late: seconds before the answer.
            refuse: the name of an ErrorReason; message, field, resource, numbers and retry_after are its details.
            review: the causes of a verdict REVIEW ("ERROR_ABOVE_LIMIT", ...), of Register and Frame.
            broken: the connection breaks, UNAVAILABLE without a word of the server's.
            corrupt: a chunk of the answer has a wrong checksum.
            silent: the answer does not come until the call is cancelled or its deadline passes.
            after: broken, corrupt and silent begin after this many chunks or frames.
            times: how often the rule is used up; None: always.
            when: only for requests for which this is true; it gets the first request (of Frame the header).
        """
        reasons = (review,) if isinstance(review, str) else tuple(review)
        made = Rule(
            method,
            late,
            refuse,
            message,
            field,
            resource,
            dict(numbers or {}),
            retry_after,
            tuple(each for each in reasons if each),
            broken,
            corrupt,
            silent,
            after,
            times,
            when,
        )
        with self._lock:
            self._rules.append(made)
        return made

    def clear_rules(self) -> None:
        """Forgets every rule: calls are answered well again."""
        with self._lock:
            self._rules.clear()

    @property
    def calls(self) -> List[Call]:
        """The calls that came, oldest first (the last 100,000)."""
        with self._lock:
            return list(self._calls)

    def count(self, method: str) -> int:
        """How many calls of a method (or "Frame") came."""
        with self._lock:
            return self._counts[method]

    def cancelled(self, method: str) -> int:
        """How many calls of a method ended before their answer was complete, as the server sees it."""
        with self._lock:
            return self._cancelled[method]

    def names(self) -> List[str]:
        """Of everything that the server holds."""
        with self._lock:
            return sorted(self._objects)

    def _rule_for(self, method: str, request: Any) -> Rule:
        with self._lock:
            self._counts[method] += 1
            for rule in self._rules:
                if rule.method not in (method, "*") or rule.times == 0:
                    continue
                if rule.when is not None and not rule.when(request):
                    continue
                if rule.times is not None:
                    rule.times -= 1
                return rule
        return Rule(method)

    def _apply(self, rule: Rule, context: Any) -> None:
        """What a rule does before a call is worked on."""
        _wait(context, rule.late)
        if rule.silent and rule.after == 0:
            _wait(context, _OPEN)
        if rule.broken and rule.after == 0:
            raise _Refusal(_BROKEN, details=False)
        if rule.refuse:
            raise _refuse(
                rule.refuse,
                rule.message,
                field=rule.field,
                resource=rule.resource,
                numbers=rule.numbers,
                retry_after=rule.retry_after,
            )

    def _new_name(self, collection: str, wanted: str) -> str:
        self._next_id += 1
        return f"{collection}/{wanted or f'fake{self._next_id}'}"

    def _get(self, name: str, kind: str) -> _Stored:
        with self._lock:
            stored = self._objects.get(name)
        if stored is None or stored.kind != kind:
            raise _refuse("RESOURCE_NOT_FOUND", f"there is no {name}", resource=name)
        return stored

    # ---- small calls ----

    def _unary(self, method: str, request: Any) -> Any:
        return getattr(self, "_on_" + method)(request)

    def _on_GetServerInfo(self, request: Any) -> Any:
        limits = v1.Limits(
            max_chunk_bytes=1 << 20,
            max_volume_bytes=4 << 30,
            max_points=32768,
            max_pending_frames=16,
            max_stages=8,
            max_sessions=8,
        )
        with self._lock:
            kinds = collections.Counter(each.kind for each in self._objects.values())
            usage = v1.Usage(
                volumes=kinds["volumes"],
                transforms=kinds["transforms"],
                uploads=len(self._uploads),
                sparse_matrices=kinds["sparseMatrices"],
            )
        device = v1.Device(name="cpu", model="intrawarp.testing", healthy=True)
        return v1.GetServerInfoResponse(
            info=v1.ServerInfo(
                version="0.0.0",
                revision="fake",
                devices=[device],
                limits=limits,
                usage=usage,
                methods=["rigid", "affine", "ffd", "log_demons"],
                pixel_types=sorted(DTYPES),
                field_encodings=sorted(ENCODING_NAMES),
            )
        )

    def _on_SetLogLevel(self, request: Any) -> Any:
        return v1.SetLogLevelResponse()

    def _on_GetVolume(self, request: Any) -> Any:
        return v1.GetVolumeResponse(volume=self._get(request.name, "volumes").proto)

    def _on_GetTransform(self, request: Any) -> Any:
        return v1.GetTransformResponse(transform=self._get(request.name, "transforms").proto)

    def _on_GetSparseMatrix(self, request: Any) -> Any:
        return v1.GetSparseMatrixResponse(sparse_matrix=self._get(request.name, "sparseMatrices").proto)

    def _on_GetOperation(self, request: Any) -> Any:
        with self._lock:
            operation = self._operations.get(request.name)
        if operation is None:
            raise _refuse("RESOURCE_NOT_FOUND", f"there is no {request.name}", resource=request.name)
        return v1.GetOperationResponse(operation=operation)

    def _on_WaitOperation(self, request: Any) -> Any:
        return v1.WaitOperationResponse(operation=self._on_GetOperation(request).operation)

    def _on_CancelOperation(self, request: Any) -> Any:
        return v1.CancelOperationResponse(operation=self._on_GetOperation(request).operation)

    def _page(self, kind: str, request: Any) -> Tuple[List[Any], str]:
        size = min(request.page_size or 100, 1000)
        with self._lock:
            names = sorted(
                name for name, each in self._objects.items() if each.kind == kind and name > request.page_token
            )
            protos = [self._objects[name].proto for name in names[:size]]
        return protos, names[size - 1] if len(names) > size else ""

    def _on_ListVolumes(self, request: Any) -> Any:
        page, token = self._page("volumes", request)
        return v1.ListVolumesResponse(volumes=page, next_page_token=token)

    def _on_ListTransforms(self, request: Any) -> Any:
        page, token = self._page("transforms", request)
        return v1.ListTransformsResponse(transforms=page, next_page_token=token)

    def _on_ListSparseMatrices(self, request: Any) -> Any:
        page, token = self._page("sparseMatrices", request)
        return v1.ListSparseMatricesResponse(sparse_matrices=page, next_page_token=token)

    def _on_ListOperations(self, request: Any) -> Any:
        with self._lock:
            return v1.ListOperationsResponse(operations=[self._operations[each] for each in sorted(self._operations)])

    def _on_ListSessions(self, request: Any) -> Any:
        with self._lock:
            return v1.ListSessionsResponse(sessions=[each.proto for _, each in sorted(self._sessions.items())])

    def _on_ListRemotes(self, request: Any) -> Any:
        return v1.ListRemotesResponse()

    def _delete(self, name: str, kind: str) -> None:
        self._get(name, kind)
        with self._lock:
            self._objects.pop(name, None)

    def _on_DeleteVolume(self, request: Any) -> Any:
        self._delete(request.name, "volumes")
        return v1.DeleteVolumeResponse()

    def _on_DeleteTransform(self, request: Any) -> Any:
        self._delete(request.name, "transforms")
        return v1.DeleteTransformResponse()

    def _on_DeleteSparseMatrix(self, request: Any) -> Any:
        self._delete(request.name, "sparseMatrices")
        return v1.DeleteSparseMatrixResponse()

    def _session_of(self, name: str) -> _Session:
        with self._lock:
            session = self._sessions.get(name)
        if session is None:
            raise _refuse("RESOURCE_NOT_FOUND", f"there is no {name}", resource=name)
        return session

    def _on_GetSession(self, request: Any) -> Any:
        return v1.GetSessionResponse(session=self._session_of(request.name).proto)

    def _end_session(self, session: _Session) -> None:
        with self._lock:
            self._sessions.pop(session.proto.name, None)
            for name in session.transforms:
                self._objects.pop(name, None)
            session.transforms.clear()

    def _on_CloseSession(self, request: Any) -> Any:
        session = self._session_of(request.name)
        session.closed.set()
        self._end_session(session)
        return v1.CloseSessionResponse(session=session.proto)

    def _on_GetUploadStatus(self, request: Any) -> Any:
        with self._lock:
            upload = self._uploads.get(request.upload_id)
            if upload is not None:
                return v1.GetUploadStatusResponse(
                    committed_bytes=len(upload.data), total_bytes=upload.header.total_bytes
                )
        raise _refuse("RESOURCE_NOT_FOUND", "there is no such upload", resource=f"uploads/{request.upload_id}")

    def _on_MapPoints(self, request: Any) -> Any:
        stored = self._get(request.transform, "transforms")
        if len(request.points) % 3:
            raise _refuse("INVALID_FIELD", "points: must be a multiple of 3", field="points")
        points = np.array(request.points, dtype=np.float64).reshape(-1, 3)
        mapped = stored.inverse(points) if request.inverse else stored.map(points)
        return v1.MapPointsResponse(points=mapped.reshape(-1).tolist())

    # ---- uploads ----

    def _upload(self, messages: Iterator[bytes], rule: Rule, context: Any) -> Iterator[bytes]:
        first = _parse(v1.UploadRequest, next(messages, b""))
        if first.WhichOneof("payload") != "header":
            raise _refuse("INVALID_FIELD", "header: must come first", field="header")
        header = first.header
        key = _key_of(header)
        known = self._known(header, key)
        if known is not None:
            yield _uploaded(known, True)
            return
        with self._lock:
            upload = self._uploads.setdefault(header.upload_id, _Upload(header))
            upload.turn += 1
            turn = upload.turn
        chunks = 0
        for message in messages:
            if (rule.broken or rule.silent) and chunks == rule.after:
                if rule.silent:
                    _wait(context, _OPEN)
                raise _Refusal(_BROKEN, details=False)
            self._take_chunk(upload, turn, message)
            chunks += 1
        if len(upload.data) < header.total_bytes:
            raise _refuse(
                "UPLOAD_INCOMPLETE",
                "the stream ended before all bytes",
                numbers={"received": len(upload.data), "total": header.total_bytes},
            )
        with self._lock:
            self._uploads.pop(header.upload_id, None)
        if hashlib.sha256(upload.data).digest() != header.sha256:
            raise _refuse("DIGEST_MISMATCH", "the bytes do not have their digest")
        yield _uploaded(self._store(header, key, bytes(upload.data)), False)

    def _known(self, header: v1.UploadHeader, key: bytes) -> Optional[_Stored]:
        with self._lock:
            if header.id:
                name = f"{_collection(header)}/{header.id}"
                stored = self._objects.get(name)
                if stored is not None and stored.key != key:
                    raise _refuse("RESOURCE_EXISTS", f"{name} is another object", resource=name)
                return stored
            return next((each for each in self._objects.values() if each.key == key and not each.named), None)

    def _take_chunk(self, upload: _Upload, turn: int, message: bytes) -> None:
        chunk = decode_chunk(message, 2)
        with self._lock:
            if upload.turn != turn:
                raise _refuse("UPLOAD_TAKEN_OVER", "another stream goes on with this upload")
            problem = None
            if chunk is None or not len(chunk.data):
                problem = _refuse("INVALID_FIELD", "chunk: must not be empty", field="chunk")
            elif chunk.crc32c is None or crc32c(chunk.data) != chunk.crc32c:
                problem = _refuse(
                    "CHUNK_CHECKSUM", "a chunk does not have its checksum", numbers={"offset": chunk.offset}
                )
            elif chunk.offset > len(upload.data) or chunk.offset + len(chunk.data) > upload.header.total_bytes:
                problem = _refuse(
                    "CHUNK_OUT_OF_ORDER",
                    "a chunk is out of order",
                    field="chunk.offset",
                    numbers={"offset": chunk.offset, "expected": len(upload.data)},
                )
            if problem is not None:
                self._uploads.pop(upload.header.upload_id, None)
                raise problem
            upload.data += chunk.data[len(upload.data) - chunk.offset :]

    def _store(self, header: v1.UploadHeader, key: bytes, data: bytes) -> _Stored:
        with self._lock:
            name = self._new_name(_collection(header), header.id)
            kind = header.WhichOneof("content")
            if kind == "volume":
                stored = _Stored(
                    "volumes",
                    v1.Volume(
                        name=name,
                        geometry=header.volume.geometry,
                        digest=header.sha256,
                        pixel_type=header.volume.pixel_type,
                        residency=v1.RESIDENCY_RESIDENT,
                    ),
                    key,
                    bool(header.id),
                )
                stored.image = _image_of(header.volume.geometry, header.volume.pixel_type, header.volume, data)
                values = stored.image.values
                stored.proto.minimum, stored.proto.maximum = float(values.min()), float(values.max())
            elif kind == "sparse_matrix":
                proto = v1.SparseMatrix(
                    name=name, shape=header.sparse_matrix.shape, digest=header.sha256, resident_bytes=len(data)
                )
                stored = _Stored("sparseMatrices", proto, key, bool(header.id))
                stored.data = data
            elif kind == "sparse_matrix_values":
                pattern = header.sparse_matrix_values.pattern
                first = self._objects.get(pattern)
                if first is None or first.kind != "sparseMatrices":
                    raise _refuse("RESOURCE_NOT_FOUND", f"{pattern} does not exist", resource=pattern)
                proto = v1.SparseMatrix(name=name, shape=first.proto.shape, digest=header.sha256)
                proto.shape.value_type = header.sparse_matrix_values.value_type
                pattern_bytes = 8 * (proto.shape.rows + 1) + 4 * proto.shape.entries
                stored = _Stored("sparseMatrices", proto, key, bool(header.id))
                stored.data = first.data[:pattern_bytes] + data
                proto.resident_bytes = len(stored.data)
            else:
                stored = self._transform_of(name, header.transform, key, bool(header.id), data)
            self._objects[name] = stored
            return stored

    def _transform_of(self, name: str, upload: v1.TransformUpload, key: bytes, named: bool, data: bytes) -> _Stored:
        proto = v1.Transform(name=name, kind=v1.TRANSFORM_KIND_AFFINE)
        stored = _Stored("transforms", proto, key, named)
        if upload.WhichOneof("content") == "affine":
            stored.affine = np.array(upload.affine.values).reshape(4, 4)
            proto.affine.CopyFrom(upload.affine)
            return stored
        stored.field = Field.from_wire(upload.field, np.frombuffer(data, np.uint8).copy())
        kinds = {"control": v1.TRANSFORM_KIND_CONTROL_GRID, "velocity": v1.TRANSFORM_KIND_VELOCITY}
        proto.kind = kinds.get(stored.field.encoding, v1.TRANSFORM_KIND_DISPLACEMENT)
        domain = upload.field.domain if upload.field.HasField("domain") else upload.field.geometry
        proto.domain.CopyFrom(domain)
        if stored.field.affine is not None:
            stored.affine = stored.field.affine
        proto.affine.values.extend(stored.affine.reshape(-1).tolist())
        return stored

    # ---- downloads ----

    def _send(self, data: bytes, offset: int, chunk_field: int, rule: Rule, context: Any) -> Iterator[bytes]:
        view = memoryview(data)
        for number, at in enumerate(range(offset, len(view), _CHUNK)):
            if rule.broken and number == rule.after:
                raise _Refusal(_BROKEN, details=False)
            if rule.silent and number == rule.after:
                _wait(context, _OPEN)
            piece = view[at : at + _CHUNK]
            check = crc32c(piece) ^ (1 if rule.corrupt and number == rule.after else 0)
            yield encode_chunk(chunk_field, at, check, piece)

    def _download(self, request: Any, rule: Rule, context: Any) -> Iterator[bytes]:
        kind = request.name.partition("/")[0]
        stored = self._get(request.name, kind)
        header = v1.DownloadHeader()
        if kind == "volumes":
            assert stored.image is not None
            data = np.ascontiguousarray(stored.image.values, dtype="<f4").tobytes()
            header.volume.CopyFrom(stored.proto)
        elif kind == "sparseMatrices":
            data = stored.data
            header.sparse_matrix.CopyFrom(stored.proto)
        else:
            geometry = Geometry.from_proto(request.geometry if request.HasField("geometry") else stored.proto.domain)
            field, data = _encode_field(stored, request.field, geometry)
            header.field.CopyFrom(field)
        yield from self._stream_from(header, data, request, v1.DownloadResponse, rule, context)

    def _stream_from(
        self, header: Any, data: bytes, request: Any, response: Any, rule: Rule, context: Any
    ) -> Iterator[bytes]:
        header.total_bytes = len(data)
        header.etag = hashlib.sha256(data).hexdigest()[:16]
        if request.etag and request.etag != header.etag:
            raise _refuse("CONTENT_CHANGED", "the bytes have changed")
        if not 0 <= request.offset <= len(data):
            raise _refuse("CHUNK_OUT_OF_ORDER", "offset: is beyond the end", field="offset")
        yield response(header=header).SerializeToString()
        yield from self._send(data, request.offset, 2, rule, context)

    def _warp(self, request: Any, rule: Rule, context: Any) -> Iterator[bytes]:
        stored = self._get(request.transform, "transforms")
        moving = self._get(request.moving, "volumes").image
        assert moving is not None
        geometry = Geometry.from_proto(
            self._get(request.like_volume, "volumes").proto.geometry if request.like_volume else request.like_geometry
        )
        points = _voxel_centres(geometry)
        mapped = stored.inverse(points) if request.inverse else stored.map(points)
        nearest = request.interpolation == v1.INTERPOLATION_NEAREST
        values = _sample(moving, mapped, request.fill, nearest)
        header = v1.WarpHeader(geometry=geometry.to_proto())
        yield from self._stream_from(
            header, values.astype("<f4").tobytes(), request, v1.WarpVolumeResponse, rule, context
        )

    # ---- work ----

    def _solve(self, fixed: Image, moving: Image) -> _Stored:
        """The transform of a registration, without a name."""
        found = self.transform(fixed, moving) if callable(self.transform) else self.transform
        stored = _Stored("transforms", v1.Transform(kind=v1.TRANSFORM_KIND_AFFINE), b"", True)
        if found is None:
            stored.affine = np.eye(4)
            stored.affine[:3, 3] = _center_of_mass(moving) - _center_of_mass(fixed)
        elif isinstance(found, Field):
            stored.field = found
            stored.affine = np.eye(4) if found.affine is None else found.affine
            stored.proto.kind = v1.TRANSFORM_KIND_DISPLACEMENT
        else:
            stored.affine = np.array(found, dtype=np.float64)
        stored.proto.domain.CopyFrom(fixed.geometry.to_proto())
        stored.proto.affine.values.extend(stored.affine.reshape(-1).tolist())
        return stored

    def _report(
        self, fixed: Image, stored: _Stored, options: v1.RegistrationOptions, rule: Rule, begin: float
    ) -> v1.Report:
        report = v1.Report(
            device="cpu",
            options=options,
            stop_reason=v1.STOP_REASON_CONVERGED,
            overlap=1.0,
            affine=stored.proto.affine,
            verdict=v1.VERDICT_OK,
        )
        report.error.quantile, report.error.expected_mm = 0.95, self.expected_mm
        report.error.bound_mm, report.error.bound_p95_mm = 2 * self.expected_mm, 3 * self.expected_mm
        report.error.bound_max_mm = 4 * self.expected_mm
        if options.error.map:
            blocks = fixed.geometry.strided((5, 5, 5))
            report.error_map.geometry.CopyFrom(blocks.to_proto())
            report.error_map.expected_mm.extend([self.expected_mm] * blocks.voxels)
            report.error_map.bound_mm.extend([2 * self.expected_mm] * blocks.voxels)
        for _ in range(len(options.error.points) // 3):
            report.error_at.add(expected_mm=self.expected_mm, bound_mm=2 * self.expected_mm)
        for cause in rule.review:
            report.verdict = v1.VERDICT_REVIEW
            report.reasons.add(
                cause=v1.VerdictCause.Value("VERDICT_CAUSE_" + cause), message=rule.message or f"by a rule: {cause}"
            )
        report.latency.total_ms = 1000 * (time.monotonic() - begin)
        return report

    def _image_named(self, name: str) -> Image:
        image = self._get(name, "volumes").image
        assert image is not None
        return image

    def _register(self, request: Any, rule: Rule, context: Any) -> Iterator[bytes]:
        begin = time.monotonic()
        fixed, moving = self._image_named(request.fixed), self._image_named(request.moving)
        options = request.options
        for mask in (options.fixed_mask, options.moving_mask, options.fixed_weight, options.moving_weight):
            if mask:
                self._image_named(mask)
        if request.options.initial_transform:
            self._get(request.options.initial_transform, "transforms")
        known = self._requests.get(request.request_id) if request.request_id and not request.detach else None
        if known is not None and known.transform in self._objects:
            yield v1.RegisterResponse(result=known).SerializeToString()
            return
        if not request.detach:
            for stage in range(max(1, len(request.options.stages))):
                for level in range(2):
                    for iteration in range(0, 20, 10):
                        yield v1.RegisterResponse(
                            progress=v1.Progress(
                                stage=stage, level=level, levels=2, iteration=iteration, value=1.0 / (1 + iteration)
                            )
                        ).SerializeToString()
        stored = self._solve(fixed, moving)
        stored.proto.report.CopyFrom(self._report(fixed, stored, request.options, rule, begin))
        with self._lock:
            name = self._new_name("transforms", request.transform_id)
            if name in self._objects:
                raise _refuse("RESOURCE_EXISTS", f"{name} exists", resource=name)
            stored.proto.name = name
            self._objects[name] = stored
        result = v1.RegisterResult(transform=name, report=stored.proto.report)
        if request.request_id:
            self._requests[request.request_id] = result
        if request.detach:
            operation = v1.Operation(
                name=f"operations/{request.request_id}",
                kind=v1.OPERATION_KIND_REGISTER,
                state=v1.OPERATION_STATE_DONE,
                results=[name],
            )
            self._operations[operation.name] = operation
            yield v1.RegisterResponse(operation=operation).SerializeToString()
            return
        if request.HasField("field"):
            header, data = _encode_field(stored, request.field, fixed.geometry)
            yield v1.RegisterResponse(field=header).SerializeToString()
            yield from self._send(data, 0, 3, rule, context)
        yield v1.RegisterResponse(result=result).SerializeToString()

    def _factor(self, name: str) -> Any:
        from ._sparse import decode

        stored = self._get(name, "sparseMatrices")
        try:
            return decode(stored.proto.shape, np.frombuffer(stored.data, np.uint8))
        except ImportError:
            raise _refuse("NOT_IMPLEMENTED", "products need scipy beside the fake server") from None

    def _multiply(self, request: Any, rule: Rule, context: Any) -> Iterator[bytes]:
        left, right = self._factor(request.a), self._factor(request.b)
        left = left.T.tocsr() if request.options.transpose_a else left
        if left.shape[1] != right.shape[0]:
            raise _refuse("INVALID_FIELD", "b: has not as many rows as op(a) has columns", field="b")
        yield from self._answer_product(left @ right, request, v1.MultiplyReport(), rule, context)

    def _multiply_triple(self, request: Any, rule: Rule, context: Any) -> Iterator[bytes]:
        a, p = self._factor(request.a), self._factor(request.p)
        a = a.T.tocsr() if request.options.transpose_a else a
        r = self._factor(request.r) if request.r else p.T.tocsr()
        if a.shape[1] != p.shape[0]:
            raise _refuse("INVALID_FIELD", "p: has not as many rows as op(a) has columns", field="p")
        if r.shape[1] != a.shape[0]:
            raise _refuse("INVALID_FIELD", "a: op(a) has not as many rows as r has columns", field="a")
        first = a @ p
        report = v1.MultiplyReport()
        shape = report.intermediate.shape
        shape.rows, shape.columns, shape.entries = first.shape[0], first.shape[1], int(first.nnz)
        yield from self._answer_product(r @ first, request, report, rule, context)

    def _answer_product(
        self, product: Any, request: Any, report: v1.MultiplyReport, rule: Rule, context: Any
    ) -> Iterator[bytes]:
        from ._sparse import encode

        if request.options.HasField("alpha"):
            product = product * request.options.alpha
        shape, view = encode(product)
        report.device = "cpu"
        report.options.CopyFrom(request.options)
        report.shape.CopyFrom(shape)
        result = v1.MultiplyResult(report=report)
        if request.HasField("keep"):
            with self._lock:
                name = self._new_name("sparseMatrices", request.keep.id)
                stored = _Stored("sparseMatrices", v1.SparseMatrix(name=name, shape=shape), b"", True)
                stored.data = bytes(view)
                self._objects[name] = stored
            result.sparse_matrix.CopyFrom(stored.proto)
        else:
            yield v1.MultiplyResponse(header=v1.ProductHeader(shape=shape, total_bytes=len(view))).SerializeToString()
            yield from self._send(bytes(view), 0, 3, rule, context)
        yield v1.MultiplyResponse(result=result).SerializeToString()

    # ---- sessions ----

    def _open_session(self, config: v1.NavigateConfig) -> Tuple[_Session, bool]:
        resident = config.fixed or config.moving
        with self._lock:
            name = f"sessions/{config.session_id}" if config.session_id else self._new_name("sessions", "")
            session = self._sessions.get(name)
            if config.resume:
                if session is None:
                    raise _refuse("SESSION_NOT_RESUMABLE", f"there is no {name}", resource=name)
                session.turn += 1
                session.proto.resumptions += 1
                return session, True
            if session is not None:
                raise _refuse("RESOURCE_EXISTS", f"{name} is open", resource=name)
            self._get(resident, "volumes")
            session = _Session(v1.Session(name=name, state=v1.SESSION_STATE_ACTIVE, config=config, device="cpu"))
            session.proto.config.session_id = name.partition("/")[2]
            self._sessions[name] = session
            return session, False

    def _navigate(self, messages: Iterator[bytes], rule: Rule, context: Any) -> Iterator[bytes]:
        first = _parse(v1.NavigateRequest, next(messages, b""))
        if first.WhichOneof("payload") != "config":
            raise _refuse("INVALID_FIELD", "config: must come first", field="config")
        session, resumed = self._open_session(first.config)
        turn = session.turn
        opened = v1.SessionOpened(session=session.proto)
        if resumed and session.proto.HasField("start_frame_number"):
            opened.resumed_from_frame = session.proto.start_frame_number
        ended_well = False
        try:
            yield v1.NavigateResponse(opened=opened).SerializeToString()
            yield from self._answer_frames(session, turn, messages, rule, context)
            ended_well = True
            session.proto.state = v1.SESSION_STATE_CLOSED
            yield v1.NavigateResponse(closed=session.proto).SerializeToString()
        finally:
            window = seconds_of(session.proto.config.resume_window)
            if not session.proto.config.HasField("resume_window") and first.config.session_id:
                window = 30.0
            with self._lock:
                if ended_well or not window > 0:
                    if session.turn == turn:
                        self._end_session(session)
                else:
                    session.proto.state = v1.SESSION_STATE_DETACHED

    def _answer_frames(
        self, session: _Session, turn: int, messages: Iterator[bytes], rule: Rule, context: Any
    ) -> Iterator[bytes]:
        frames: "queue.Queue[Any]" = queue.Queue(maxsize=16)
        reader = threading.Thread(
            target=_read_frames, args=(messages, frames), daemon=True, name="intrawarp-fake-frames"
        )
        reader.start()
        config = session.proto.config
        latest = config.overload_policy == v1.OVERLOAD_POLICY_LATEST_WINS
        done = 0
        while True:
            batch = [_take(frames, session, turn, context)]
            while latest and not frames.empty():
                batch.append(frames.get())
            for place, item in enumerate(batch):
                if item is None:
                    return
                if isinstance(item, v1.SharedMemoryRequest):
                    status = refusal("SHARED_MEMORY_UNAVAILABLE", "the fake server shares no memory")
                    yield v1.NavigateResponse(shared_memory=v1.SharedMemoryOffer(status=status)).SerializeToString()
                    continue
                if isinstance(item, _Refusal):
                    raise item
                if (rule.broken or rule.silent) and done == rule.after:
                    if rule.silent:
                        _wait(context, _OPEN)
                    raise _Refusal(_BROKEN, details=False)
                newer = [each for each in batch[place + 1 :] if isinstance(each, _Frame)]
                yield from self._answer_frame(session, item, newer, context)
                done += 1

    def _answer_frame(self, session: _Session, frame: _Frame, newer: List[_Frame], context: Any) -> Iterator[bytes]:
        header, statistics, config = frame.header, session.proto.statistics, session.proto.config
        result = v1.FrameResult(frame_number=header.frame_number)
        if header.HasField("acquisition_time"):
            result.acquisition_time.CopyFrom(header.acquisition_time)
        session.proto.last_frame_number = header.frame_number
        rule = self._rule_for("Frame", header)
        deadline = seconds_of(header.deadline if header.HasField("deadline") else config.frame_deadline)
        try:
            if newer:
                statistics.frames_superseded += 1
                raise _refuse(
                    "FRAME_SUPERSEDED",
                    "a newer frame took the place of this one",
                    numbers={"superseded_by": newer[-1].header.frame_number},
                )
            if frame.error is not None:
                raise _Refusal(frame.error)
            self._apply(rule, context)
            late_ms = 1000 * (time.monotonic() - frame.received - deadline)
            if deadline and late_ms > 0 and config.late_frames != v1.LATE_FRAMES_DELIVER:
                statistics.frames_missed += 1
                raise _refuse("DEADLINE_PASSED", "the frame's deadline has passed", field="frame.deadline")
            for path, mask in (("frame.mask", header.mask), ("frame.weight", header.weight)):
                if mask and not config.frame_masks:
                    raise _refuse("INVALID_FIELD", "takes a session with config.frame_masks", field=path)
                if mask:
                    self._image_named(mask)
            image = _image_of(header.geometry, header.pixel_type, header, bytes(frame.data))
            resident = self._image_named(config.fixed or config.moving)
            fixed, moving = (resident, image) if config.fixed else (image, resident)
            stored = self._solve(fixed, moving)
        except _Refusal as refused:
            if not refused.details:
                raise
            if refused.status.code != errors.CODES.index("ABORTED"):
                statistics.frames_failed += 1
            result.status.CopyFrom(refused.status)
            yield v1.NavigateResponse(result=result).SerializeToString()
            return
        result.report.CopyFrom(self._report(fixed, stored, config.options, rule, frame.received))
        if deadline and late_ms > 0:
            statistics.frames_late += 1
            result.report.verdict = v1.VERDICT_REVIEW
            result.report.reasons.add(
                cause=v1.VERDICT_CAUSE_LATE, message="the answer is late", value=late_ms, limit=1000 * deadline
            )
        else:
            statistics.frames_ok += 1
        with self._lock:
            result.transform = stored.proto.name = self._new_name("transforms", "")
            self._objects[result.transform] = stored
            session.transforms.append(result.transform)
            if len(session.transforms) > 16:
                self._objects.pop(session.transforms.popleft(), None)
        session.proto.start_frame_number = header.frame_number
        if config.HasField("field"):
            field, data = _encode_field(stored, config.field, fixed.geometry)
            for coarse in (True, False) if config.coarse_field else (False,):
                yield v1.NavigateResponse(
                    field=v1.FrameField(frame_number=header.frame_number, field=field, coarse=coarse)
                ).SerializeToString()
                yield from self._send(data, 0, 2, rule, context)
        yield v1.NavigateResponse(result=result).SerializeToString()


# ---- frames in ------------------------------------------------------------------------------------------------------


def _read_frames(messages: Iterator[bytes], frames: "queue.Queue[Any]") -> None:
    """Puts whole frames, requests for shared memory, refusals of the stream, and None at its end into the queue."""
    frame: Optional[_Frame] = None
    last: Optional[int] = None
    try:
        for message in messages:
            chunk = decode_chunk(message, 3)
            if chunk is None:
                request = _parse(v1.NavigateRequest, message)
                kind = request.WhichOneof("payload")
                if kind == "shared_memory":
                    frames.put(request.shared_memory)
                    continue
                if kind != "frame":
                    frames.put(_refuse("INVALID_FIELD", "a message is out of order", field=kind or "payload"))
                    return
                if last is not None and request.frame.frame_number <= last:
                    frames.put(_refuse("INVALID_FIELD", "frame_number: must grow", field="frame.frame_number"))
                    return
                last = request.frame.frame_number
                frame = _Frame(request.frame)
            elif frame is None:
                frames.put(_refuse("INVALID_FIELD", "a chunk came before its frame", field="chunk"))
                return
            elif chunk.crc32c is None or crc32c(chunk.data) != chunk.crc32c:
                frame.error = refusal("CHUNK_CHECKSUM", "a chunk does not have its checksum")
            elif chunk.offset != len(frame.data):
                frame.error = refusal("CHUNK_OUT_OF_ORDER", "a chunk is out of order", field="chunk.offset")
            else:
                frame.data += chunk.data
            if frame is not None and (frame.error is not None or len(frame.data) >= frame.header.total_bytes):
                frames.put(frame)
                frame = None
        frames.put(None)
    except Exception:  # the stream broke; gRPC's iterators raise a bare Exception
        frames.put(None)


def _take(frames: "queue.Queue[Any]", session: _Session, turn: int, context: Any) -> Any:
    while True:
        try:
            return frames.get(timeout=0.02)
        except queue.Empty:
            if session.closed.is_set():
                raise _refuse("SESSION_ENDED", "the session was closed", numbers={"cause": "closed"}) from None
            if session.turn != turn:
                raise _refuse(
                    "SESSION_ENDED", "another stream took the session", numbers={"cause": "resumed"}
                ) from None
            if not context.is_active():
                raise _Refusal(_BROKEN, details=False) from None


# ---- plumbing -------------------------------------------------------------------------------------------------------


def _wait(context: Any, seconds: float) -> None:
    """Returns early when the call has ended."""
    end = time.monotonic() + seconds
    while context.is_active() and time.monotonic() < end:
        time.sleep(min(0.01, max(0.0, end - time.monotonic())))


def _parse(cls: Any, message: bytes) -> Any:
    try:
        return cls.FromString(message)
    except Exception:
        raise _refuse("MALFORMED_MESSAGE", "the bytes are not a message of the request's type") from None


def _collection(header: v1.UploadHeader) -> str:
    collections = {"volume": "volumes", "sparse_matrix": "sparseMatrices", "sparse_matrix_values": "sparseMatrices"}
    return collections.get(header.WhichOneof("content") or "", "transforms")


def _key_of(header: v1.UploadHeader) -> bytes:
    """Equal for equal objects: everything but id, upload_id and ttl."""
    copy = v1.UploadHeader()
    copy.CopyFrom(header)
    for name in ("id", "upload_id", "ttl"):
        copy.ClearField(name)
    return copy.SerializeToString(deterministic=True)


def _uploaded(stored: _Stored, already: bool) -> bytes:
    member = {"volumes": "volume", "sparseMatrices": "sparse_matrix"}.get(stored.kind, "transform")
    response: Any = v1.UploadResponse(already_resident=already)
    getattr(response, member).CopyFrom(stored.proto)
    return bytes(response.SerializeToString())


def _image_of(geometry: v1.Geometry, pixel_type: int, holder: Any, data: bytes) -> Image:
    try:
        grid = Geometry.from_proto(geometry)
    except errors.GeometryError as error:
        raise _refuse("INVALID_FIELD", error.message, field="geometry") from None
    dtype = DTYPES.get(pixel_type)
    if dtype is None or grid.voxels * dtype.itemsize != len(data):
        raise _refuse("INVALID_FIELD", "total_bytes: is not what grid and pixel type take", field="total_bytes")
    rescale = (holder.rescale.slope, holder.rescale.intercept) if holder.HasField("rescale") else None
    return Image(
        np.frombuffer(data, dtype.newbyteorder("<")).reshape(grid.size_zyx), axes="zyx", geometry=grid, rescale=rescale
    )


def _voxel_centres(geometry: Geometry) -> Any:
    nx, ny, nz = geometry.size_xyz
    k, j, i = np.meshgrid(np.arange(nz), np.arange(ny), np.arange(nx), indexing="ij")
    return geometry.index_to_physical(np.stack([i, j, k], axis=-1).reshape(-1, 3))


def _encode_field(stored: _Stored, request: v1.FieldRequest, domain: Geometry) -> Tuple[v1.FieldHeader, bytes]:
    name = ENCODING_NAMES.get(request.encoding, "")
    header = v1.FieldHeader(encoding=request.encoding)
    if name in ("control", "velocity"):
        if stored.field is None or stored.field.encoding != name:
            raise _refuse("PRECONDITION_NOT_MET", f"the transform has no {name} field", field="field.encoding")
        data = np.ascontiguousarray(stored.field.raw, dtype="<f4").tobytes()
        header.geometry.CopyFrom(stored.field.geometry.to_proto())
        header.affine.values.extend(stored.affine.reshape(-1).tolist())
        if stored.field.domain is not None:
            header.domain.CopyFrom(stored.field.domain.to_proto())
        header.total_bytes = len(data)
        return header, data
    if not name:
        raise _refuse("INVALID_FIELD", "encoding: is unknown", field="field.encoding")
    start = list(request.region_start) or [0, 0, 0]
    size = list(request.region_size) or list(domain.size_xyz)
    stride = list(request.stride) or [1, 1, 1]
    origin = [float(each) for each in domain.index_to_physical(start)]
    grid = Geometry(size, domain.spacing_xyz, origin, domain.direction_xyz).strided(stride)
    points = _voxel_centres(grid)
    values = (stored.map(points) - points).astype(np.float32)
    header.geometry.CopyFrom(grid.to_proto())
    if name == "int16":
        header.scale = float(np.abs(values).max()) / 32767 or 1e-9
        header.max_error_mm = header.scale
        values = np.rint(values / header.scale)
    data = values.astype({"int16": "<i2", "float16": "<f2"}.get(name, "<f4")).tobytes()
    header.total_bytes = len(data)
    return header, data


def _sample(image: Image, points: Any, fill: float, nearest: bool) -> Any:
    """Trilinear or nearest; `fill` outside."""
    index = image.geometry.physical_to_index(points)
    sizes = np.array(image.geometry.size_xyz)
    inside = ((index >= -0.5) & (index <= sizes - 0.5)).all(axis=1)
    values = np.asarray(image.values, dtype=np.float64)
    if nearest:
        at = np.clip(np.rint(index), 0, sizes - 1).astype(int)
        out = values[at[:, 2], at[:, 1], at[:, 0]]
    else:
        clamped = np.clip(index, 0, sizes - 1)
        low = np.minimum(clamped.astype(int), np.maximum(sizes - 2, 0))
        high = np.minimum(low + 1, sizes - 1)
        weight = clamped - low
        out = np.zeros(len(points))
        for corner in range(8):
            bits = np.array([corner & 1, corner >> 1 & 1, corner >> 2 & 1], dtype=bool)
            at = np.where(bits, high, low)
            out += np.where(bits, weight, 1 - weight).prod(axis=1) * values[at[:, 2], at[:, 1], at[:, 0]]
    return np.where(inside, out, fill)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of the services, and health."""

    _STREAMS = {"Upload": "_upload", "Navigate": "_navigate"}
    _SERVER_STREAMS = {
        "Download": "_download",
        "WarpVolume": "_warp",
        "Register": "_register",
        "Multiply": "_multiply",
        "MultiplyTriple": "_multiply_triple",
    }

    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    def service(self, details: Any) -> Any:
        method = details.method
        if method == "/grpc.health.v1.Health/Check":
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: b"\x08\x01" if self._fake.serving else b"\x08\x02"
            )
        name = method.rpartition("/")[2]
        if method not in WIRE.methods:
            return None
        metadata = {key: value for key, value in details.invocation_metadata or () if isinstance(value, str)}
        if name in self._STREAMS:
            return grpc.stream_stream_rpc_method_handler(
                lambda messages, context: self._stream(name, metadata, messages, context)
            )
        if name in self._SERVER_STREAMS:
            return grpc.unary_stream_rpc_method_handler(
                lambda message, context: self._server_stream(name, method, metadata, message, context)
            )
        if not hasattr(self._fake, "_on_" + name):
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: self._unary(name, method, metadata, message, context)
        )

    def _note(self, ending: "_Ending", request: Any, metadata: Dict[str, str], context: Any) -> None:
        with self._fake._lock:
            self._fake._calls.append(Call(ending.name, request, metadata))
        context.add_callback(ending.over)

    def _unary(self, name: str, method: str, metadata: Dict[str, str], message: bytes, context: Any) -> Any:
        ending = _Ending(self._fake, name)
        try:
            request = _parse(WIRE.methods[method][0], message)
            self._note(ending, request, metadata, context)
            rule = self._fake._rule_for(name, request)
            self._fake._apply(rule, context)
            answer = self._fake._unary(name, request).SerializeToString()
            ending.complete = True
            return answer
        except _Refusal as refused:
            ending.complete = refused.details
            _abort(context, refused)

    def _server_stream(
        self, name: str, method: str, metadata: Dict[str, str], message: bytes, context: Any
    ) -> Iterator[bytes]:
        ending = _Ending(self._fake, name)
        try:
            request = _parse(WIRE.methods[method][0], message)
            self._note(ending, request, metadata, context)
            rule = self._fake._rule_for(name, request)
            self._fake._apply(rule, context)
            yield from getattr(self._fake, self._SERVER_STREAMS[name])(request, rule, context)
            ending.complete = True
        except _Refusal as refused:
            ending.complete = refused.details
            _abort(context, refused)

    def _stream(self, name: str, metadata: Dict[str, str], messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        ending = _Ending(self._fake, name)
        try:
            self._note(ending, None, metadata, context)
            rule = self._fake._rule_for(name, None)
            self._fake._apply(rule, context)
            yield from getattr(self._fake, self._STREAMS[name])(messages, rule, context)
            ending.complete = True
        except _Refusal as refused:
            ending.complete = refused.details
            _abort(context, refused)


class _Ending:
    """Whether a call was worked on to its end when it ended."""

    def __init__(self, fake: FakeServer, name: str) -> None:
        self._fake = fake
        self.name = name
        self.complete = False

    def over(self) -> None:
        if not self.complete:
            with self._fake._lock:
                self._fake._cancelled[self.name] += 1


def _abort(context: Any, refused: _Refusal) -> None:
    status = refused.status
    if refused.details:
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    code = next(each for each in grpc.StatusCode if each.value[0] == status.code)
    context.abort(code, status.message)
