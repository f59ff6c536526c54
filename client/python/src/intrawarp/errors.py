# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, by reason.

Every error of a call is an `IntrawarpError`. Its class follows from the reason that the server gives (the enum
ErrorReason of error.proto): `except intrawarp.NotFound`. Classes of reasons that a caller handles alike share a base:
`TryAgain` says that waiting helps, and `OutOfCapacity` that something is full. A reason that this version does not know
becomes the class of its gRPC status code.
"""
from typing import Any, Dict, Mapping, Optional, Tuple, Type

from . import v1

__all__ = [
    "IntrawarpError",
    "InvalidArgument",
    "GeometryError",
    "FileError",
    "NotImplementedByServer",
    "NotFound",
    "AlreadyExists",
    "PreconditionFailed",
    "Diverged",
    "DeadlineExceeded",
    "Cancelled",
    "Superseded",
    "TryAgain",
    "OutOfCapacity",
    "Busy",
    "Unavailable",
    "ConnectionLost",
    "DataLoss",
    "ContentChanged",
    "SessionEnded",
    "SharedMemoryUnavailable",
    "NotAuthenticated",
    "PermissionDenied",
    "ArchiveError",
    "InternalError",
    "ReviewNeeded",
]


class IntrawarpError(Exception):
    """An error of a call, or of what a caller gave.

    Attributes:
        code: the name of the gRPC status code, "NOT_FOUND"; "" for an error that no call made.
        reason: the name of the ErrorReason, "RESOURCE_NOT_FOUND"; "" where the server gave none: then the transport, a
            proxy or this package made the error.
        message: the server's sentence, without what the attributes add.
        field: the path of the field at fault in the request message, "options.stages[0].ffd.spacing_vox"; "" where
            there is none.
        fields: every field at fault with the sentence about it.
        resource: the name of the resource that the error is about, "volumes/preop"; "" where there is none.
        numbers: the numbers of ErrorInfo ("asked", "in_use", "capacity", ...), as int, or float where they are not
            whole.
        metadata: all of ErrorInfo's metadata, as text.
        retry_after: seconds after which a repetition may succeed; None where waiting does not help.
        call_id: the id of the call's trace, which the server's log and audit log have, too; "" where there is none.
        method: the RPC, "/intrawarp.v1.VolumeService/GetVolume"; "" where no call made the error.
        address: the server.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        reason: str = "",
        fields: Tuple[Tuple[str, str], ...] = (),
        resource: str = "",
        metadata: Optional[Mapping[str, str]] = None,
        retry_after: Optional[float] = None,
        call_id: str = "",
        method: str = "",
        address: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.fields = fields
        self.resource = resource
        self.metadata: Dict[str, str] = dict(metadata or {})
        self.retry_after = retry_after
        self.call_id = call_id
        self.method = method
        self.address = address

    @property
    def field(self) -> str:
        """The first path of `fields`; "" where no field is at fault."""
        return self.fields[0][0] if self.fields else ""

    @property
    def numbers(self) -> Dict[str, Any]:
        """The numbers of `metadata` by name; what is not a number is left out."""
        numbers: Dict[str, Any] = {}
        for key, text in self.metadata.items():
            try:
                numbers[key] = int(text)
            except ValueError:
                try:
                    numbers[key] = float(text)
                except ValueError:
                    pass
        return numbers

    def __str__(self) -> str:
        text = self.message or self.code or type(self).__name__
        for path, description in self.fields:
            if path and path not in text:
                text += f" ({path})" if description and description in text else f"; {path}: {description}"
        if self.resource and self.resource not in text:
            text += f" ({self.resource})"
        notes = [note for note in (self.reason or self.code,) if note and note not in text]
        notes += [f"{key} {value}" for key, value in self.numbers.items()]
        if self.retry_after:
            notes.append(f"try again in {self.retry_after:g} s")
        if self.call_id:
            notes.append(f"call {self.call_id}")
        return text + (f" [{', '.join(notes)}]" if notes else "")

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.__dict__)


def _rebuild(cls: Type[IntrawarpError], state: Dict[str, Any]) -> IntrawarpError:
    error = cls(state.get("message", ""))
    error.__dict__.update(state)
    return error


class InvalidArgument(IntrawarpError, ValueError):
    """A field of the request is wrong; `field` names it. Repeating the call does not help."""


class GeometryError(InvalidArgument):
    """An array whose geometry or space is missing, contradicts itself, or cannot be taken. Made before any call."""


class FileError(InvalidArgument):
    """A file that cannot be read or written as an image: damaged, of another kind, or of a form that is not taken."""


class NotImplementedByServer(IntrawarpError):
    """This server does not take the value of the field that `field` names, or does not have the call."""


class NotFound(IntrawarpError, LookupError):
    """There is no such volume, transform, matrix, session, operation or archive, or it is of another owner."""


class AlreadyExists(IntrawarpError):
    """The wanted id is taken by another object, or the request_id by another request."""


class PreconditionFailed(IntrawarpError):
    """The images, masks or the transform do not serve for what is asked."""


class Diverged(PreconditionFailed):
    """The optimiser found no finite, invertible transform."""


class DeadlineExceeded(IntrawarpError, TimeoutError):
    """The call's timeout, the frame's deadline or the registration's budget has passed."""


class Cancelled(IntrawarpError):
    """The call was cancelled."""


class Superseded(IntrawarpError):
    """A newer frame has taken the place of this one (`latest=True`)."""


class TryAgain(IntrawarpError):
    """Waiting helps: repeat the call after `retry_after` seconds."""


class OutOfCapacity(IntrawarpError):
    """Memory, places or a quota do not suffice; `numbers` has asked, in_use and capacity."""


class Busy(OutOfCapacity, TryAgain):
    """Memory or places are in use now, and come back."""


class Unavailable(TryAgain, ConnectionError):
    """The server cannot be reached, stops, or has lost its device."""


class ConnectionLost(Unavailable):
    """The connection could not be made, broke or went silent. No server gave this error."""


class DataLoss(IntrawarpError):
    """Bytes were damaged or are missing."""


class ContentChanged(IntrawarpError):
    """The object's bytes have changed while they were downloaded."""


class SessionEnded(IntrawarpError):
    """The session is over, or cannot be resumed: open a new one."""


class SharedMemoryUnavailable(IntrawarpError):
    """The server shares no memory with this client. Frames and fields travel over the connection."""


class NotAuthenticated(IntrawarpError):
    """The server does not know who calls."""


class PermissionDenied(IntrawarpError):
    """The caller's role does not suffice."""


class ArchiveError(IntrawarpError):
    """An archive (PACS) refused, or sent too much or too little."""


class InternalError(IntrawarpError):
    """A fault of the server, or an answer that contradicts itself."""


class ReviewNeeded(IntrawarpError):
    """A result whose verdict is not OK (`Result.raise_if_not_ok`). No call made it."""


_BY_REASON: Dict[str, Type[IntrawarpError]] = {
    "INVALID_FIELD": InvalidArgument,
    "MALFORMED_MESSAGE": InvalidArgument,
    "NOT_IMPLEMENTED": NotImplementedByServer,
    "RESOURCE_NOT_FOUND": NotFound,
    "RESOURCE_EXISTS": AlreadyExists,
    "REQUEST_ID_REUSED": AlreadyExists,
    "REQUEST_IN_PROGRESS": TryAgain,
    "PRECONDITION_NOT_MET": PreconditionFailed,
    "OPTIMIZER_DIVERGED": Diverged,
    "BUDGET_USED_UP": DeadlineExceeded,
    "DEADLINE_PASSED": DeadlineExceeded,
    "CALL_CANCELLED": Cancelled,
    "EXCEEDS_CAPACITY": OutOfCapacity,
    "RESIDENT_MEMORY": Busy,
    "PINNED_MEMORY": Busy,
    "DEVICE_MEMORY": Busy,
    "MULTIPLY_MEMORY": Busy,
    "QUEUE_FULL": Busy,
    "TOO_MANY_STREAMS": Busy,
    "TOO_MANY_UPLOADS": Busy,
    "TOO_MANY_TRANSFORMS": OutOfCapacity,
    "CHUNK_OUT_OF_ORDER": DataLoss,
    "CHUNK_CHECKSUM": DataLoss,
    "DIGEST_MISMATCH": DataLoss,
    "UPLOAD_TAKEN_OVER": AlreadyExists,
    "CONTENT_CHANGED": ContentChanged,
    "SERVER_STOPPING": Unavailable,
    "DEVICE_LOST": Unavailable,
    "DEVICE_HUNG": Unavailable,
    "INTERNAL_ERROR": InternalError,
    "UPLOAD_INCOMPLETE": InvalidArgument,
    "STREAM_STALLED": ConnectionLost,
    "DEADLINE_UNREACHABLE": DeadlineExceeded,
    "SESSION_NOT_RESUMABLE": SessionEnded,
    "FRAME_SUPERSEDED": Superseded,
    "TOO_MANY_SESSIONS": Busy,
    "SESSION_ENDED": SessionEnded,
    "SHARED_MEMORY_UNAVAILABLE": SharedMemoryUnavailable,
    "WORKSPACE_MEMORY": Busy,
    "STATE_FULL": OutOfCapacity,
    "STATE_UNAVAILABLE": Unavailable,
    "OBJECT_DAMAGED": DataLoss,
    "SERVER_RESTARTED": Unavailable,
    "NOT_AUTHENTICATED": NotAuthenticated,
    "ROLE_MISSING": PermissionDenied,
    "TOO_MANY_CALLS": Busy,
    "CALL_RATE": Busy,
    "OWNER_QUOTA": OutOfCapacity,
    "TOO_MANY_OPERATIONS": Busy,
    "MESSAGE_RATE": Busy,
    "RUN_TIME_USED_UP": DeadlineExceeded,
    "AUDIT_UNAVAILABLE": Unavailable,
    "ARCHIVE_UNAVAILABLE": Unavailable,
    "ARCHIVE_TOO_SLOW": DeadlineExceeded,
    "ARCHIVE_IDENTITY_REFUSED": ArchiveError,
    "ARCHIVE_REFUSED": ArchiveError,
    "RETRIEVAL_INCOMPLETE": ArchiveError,
    "RETRIEVAL_TOO_LARGE": ArchiveError,
    "SPOOL_FULL": Busy,
    "SPOOL_UNAVAILABLE": Unavailable,
}

# The names of gRPC's status codes, by number.
CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)

_BY_CODE: Dict[str, Type[IntrawarpError]] = {
    "CANCELLED": Cancelled,
    "UNKNOWN": InternalError,
    "INVALID_ARGUMENT": InvalidArgument,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "PERMISSION_DENIED": PermissionDenied,
    "RESOURCE_EXHAUSTED": OutOfCapacity,
    "FAILED_PRECONDITION": PreconditionFailed,
    "ABORTED": IntrawarpError,
    "OUT_OF_RANGE": InvalidArgument,
    "UNIMPLEMENTED": NotImplementedByServer,
    "INTERNAL": InternalError,
    "UNAVAILABLE": Unavailable,
    "DATA_LOSS": DataLoss,
    "UNAUTHENTICATED": NotAuthenticated,
}

_PREFIX = "type.googleapis.com/"
_DETAILS: Dict[str, Any] = {
    "google.rpc.ErrorInfo": v1.GoogleRpcErrorInfo,
    "google.rpc.BadRequest": v1.GoogleRpcBadRequest,
    "google.rpc.ResourceInfo": v1.GoogleRpcResourceInfo,
    "google.rpc.RetryInfo": v1.GoogleRpcRetryInfo,
}


def _details_of(status: v1.GoogleRpcStatus) -> Dict[str, Any]:
    details: Dict[str, Any] = {}
    for packed in status.details:
        name = packed.type_url.rpartition("/")[2]
        if name in _DETAILS and name not in details:
            try:
                details[name] = _DETAILS[name].FromString(packed.value)
            except Exception:  # DecodeError has no stable place across versions of protobuf.
                continue
    return details


def from_status(
    status: v1.GoogleRpcStatus, *, call_id: str = "", method: str = "", address: str = ""
) -> IntrawarpError:
    """The error that a google.rpc.Status of another code than OK stands for."""
    details = _details_of(status)
    info = details.get("google.rpc.ErrorInfo")
    bad = details.get("google.rpc.BadRequest")
    resource = details.get("google.rpc.ResourceInfo")
    retry = details.get("google.rpc.RetryInfo")
    code = CODES[status.code] if 0 <= status.code < len(CODES) else "UNKNOWN"
    reason = info.reason if info is not None else ""
    cls: Type[IntrawarpError] = _BY_REASON.get(reason, _BY_CODE.get(code, IntrawarpError))
    retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9 if retry is not None else None
    if retry_after is None and reason not in _BY_REASON and code == "UNAVAILABLE":
        retry_after = 1.0
    return cls(
        status.message,
        code=code,
        reason=reason,
        fields=tuple((each.field, each.description) for each in bad.field_violations) if bad is not None else (),
        resource=resource.resource_name if resource is not None else "",
        metadata=dict(info.metadata) if info is not None else None,
        retry_after=retry_after,
        call_id=call_id,
        method=method,
        address=address,
    )


def from_call(
    code: int, message: str, details: Optional[bytes], *, call_id: str = "", method: str = "", address: str = ""
) -> IntrawarpError:
    """The error of a call that ended with a gRPC status; `details` is its trailer grpc-status-details-bin."""
    if details:
        status = v1.GoogleRpcStatus()
        try:
            status.ParseFromString(details)
        except Exception:  # as in _details_of
            status = v1.GoogleRpcStatus()
        if status.code == code:
            if not status.message:
                status.message = message
            return from_status(status, call_id=call_id, method=method, address=address)
    status = v1.GoogleRpcStatus(code=code, message=message)
    if CODES[code if 0 <= code < len(CODES) else 2] == "UNAVAILABLE":
        return ConnectionLost(
            message or "the connection broke",
            code="UNAVAILABLE",
            retry_after=1.0,
            call_id=call_id,
            method=method,
            address=address,
        )
    if code == 12 and not message:
        status.message = "the server does not have this call"
    return from_status(status, call_id=call_id, method=method, address=address)


def is_broken(error: BaseException) -> bool:
    """The connection broke or could not be made, the server stops or has lost its device, or a proxy lost the
    server."""
    if not isinstance(error, IntrawarpError):
        return False
    return (
        isinstance(error, Unavailable)
        and error.reason != "STATE_UNAVAILABLE"
        or (error.code in ("INTERNAL", "UNKNOWN", "CANCELLED") and not error.reason and bool(error.method))
    )


_NO_ROOM = {
    "RESIDENT_MEMORY",
    "PINNED_MEMORY",
    "DEVICE_MEMORY",
    "WORKSPACE_MEMORY",
    "TOO_MANY_STREAMS",
    "TOO_MANY_SESSIONS",
}


def is_servers_fault(error: BaseException) -> bool:
    """`is_broken`, or the server has no room: another server may do better."""
    return is_broken(error) or isinstance(error, IntrawarpError) and error.reason in _NO_ROOM
