# SPDX-License-Identifier: Apache-2.0
"""intrawarp: registration of intra-operative images to pre-operative ones, on a server, from Python.

    import intrawarp

    with intrawarp.connect("or3:50051") as server:            # or the environment's INTRAWARP_SERVER
        preop = server.put("preop.nii.gz")
        result = server.register(preop, "intraop.nii.gz", progress=True)
        result.raise_if_not_ok()                              # a verdict, not only the absence of an error
        result.map_points([[10.0, -25.0, 40.0]])              # LPS mm, fixed to moving
        result.warped().write("warped.nii.gz")

Physical space is LPS in millimetres; a transform maps points of the fixed image to points of the moving image. Arrays
travel with their geometry as an `Image`. `intrawarp.aio` has the same client for asyncio, `intrawarp.testing` a server
for tests, and `intrawarp.v1` the messages of the wire.
"""
from typing import TYPE_CHECKING

from . import errors, v1
from ._geometry import Geometry
from ._io import Cancellation
from ._options import make_stage as stage
from ._session import Answer, MappedPoints, StaleField
from ._sync import Matrix, Operation, Result, Server, Session, Transform, Volume, connect
from ._version import __version__
from .errors import (
    AlreadyExists,
    ArchiveError,
    Busy,
    Cancelled,
    ConnectionLost,
    ContentChanged,
    DataLoss,
    DeadlineExceeded,
    Diverged,
    FileError,
    GeometryError,
    InternalError,
    IntrawarpError,
    InvalidArgument,
    NotAuthenticated,
    NotFound,
    NotImplementedByServer,
    OutOfCapacity,
    PermissionDenied,
    PreconditionFailed,
    ReviewNeeded,
    SessionEnded,
    SharedMemoryUnavailable,
    Superseded,
    TryAgain,
    Unavailable,
)
from .field import Field
from .image import Image
from .progress import Progress, steps
from .report import ErrorMap, Reason, Report

if TYPE_CHECKING:
    from . import aio, testing
    from .testing import phantom

__all__ = [
    "AlreadyExists",
    "Answer",
    "ArchiveError",
    "Busy",
    "Cancellation",
    "Cancelled",
    "ConnectionLost",
    "ContentChanged",
    "DataLoss",
    "DeadlineExceeded",
    "Diverged",
    "ErrorMap",
    "Field",
    "FileError",
    "Geometry",
    "GeometryError",
    "Image",
    "InternalError",
    "IntrawarpError",
    "InvalidArgument",
    "MappedPoints",
    "Matrix",
    "NotAuthenticated",
    "NotFound",
    "NotImplementedByServer",
    "Operation",
    "OutOfCapacity",
    "PermissionDenied",
    "PreconditionFailed",
    "Progress",
    "Reason",
    "Report",
    "Result",
    "ReviewNeeded",
    "Server",
    "Session",
    "SessionEnded",
    "SharedMemoryUnavailable",
    "StaleField",
    "Superseded",
    "Transform",
    "TryAgain",
    "Unavailable",
    "Volume",
    "__version__",
    "aio",
    "connect",
    "errors",
    "phantom",
    "stage",
    "steps",
    "testing",
    "v1",
]


def __getattr__(name: str) -> object:
    """`intrawarp.aio`, `intrawarp.testing` and `intrawarp.phantom` are imported when they are first used."""
    import importlib

    if name in ("aio", "testing"):
        return importlib.import_module(f".{name}", __name__)
    if name == "phantom":
        return importlib.import_module(".testing", __name__).phantom
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
