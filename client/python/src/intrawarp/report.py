# SPDX-License-Identifier: Apache-2.0
"""Report: what a registration did, and how good its result is. Plain values; `proto` has everything."""
import json
from typing import Any, Dict, Optional, Tuple

import numpy as np

from . import v1
from ._geometry import Geometry
from .errors import GeometryError, InternalError
from .field import affine_of
from .image import Image


def enum_name(enum: Any, number: int, prefix: str) -> str:
    """Without its prefix; a number that this version does not know as itself."""
    try:
        return str(enum.Name(number))[len(prefix) :]
    except ValueError:
        return str(number)


class Reason:
    """Why a verdict is what it is: the cause ("LATE", "ERROR_ABOVE_LIMIT", ...), a sentence for people, and the number
    that was judged with the one it was held against (None where the cause has none)."""

    __slots__ = ("cause", "message", "value", "limit")

    def __init__(self, message: v1.VerdictReason) -> None:
        self.cause = enum_name(v1.VerdictCause, message.cause, "VERDICT_CAUSE_")
        self.message = message.message
        self.value: Optional[float] = message.value if message.HasField("value") else None
        self.limit: Optional[float] = message.limit if message.HasField("limit") else None

    def __str__(self) -> str:
        return self.message or self.cause

    def __repr__(self) -> str:
        return f"Reason({self.cause}, {self.message!r})"


class ErrorMap:
    """The predicted error block by block, mm; NaN where there is too little structure, or nothing in common, to judge
    by.

    Attributes:
        expected: an Image of the expected error.
        bound: an Image of the bound below which 95 % of the errors lie.
    """

    __slots__ = ("expected", "bound")

    def __init__(self, message: v1.ErrorMap) -> None:
        try:
            geometry = Geometry.from_proto(message.geometry)
        except GeometryError as error:
            raise InternalError(f"the server sent an error map whose grid is not one: {error.message}") from None
        if len(message.expected_mm) != geometry.voxels or len(message.bound_mm) != geometry.voxels:
            raise InternalError("the server sent an error map with blocks missing")
        self.expected = _map_image(message.expected_mm, geometry)
        self.bound = _map_image(message.bound_mm, geometry)


def _missing_image(message: v1.MissingTissue) -> Image:
    try:
        geometry = Geometry.from_proto(message.geometry)
    except GeometryError as error:
        raise InternalError(f"the server sent a map of missing tissue whose grid is not one: {error.message}") from None
    nodes = np.zeros(geometry.voxels, dtype=np.uint8)
    if message.nodes:
        bits = np.unpackbits(np.frombuffer(message.nodes, dtype=np.uint8), bitorder="little")
        if len(bits) < geometry.voxels or len(bits) >= geometry.voxels + 8:
            raise InternalError("the server sent a map of missing tissue with nodes missing")
        nodes[:] = bits[: geometry.voxels]
    return Image(nodes.reshape(geometry.size_zyx), axes="zyx", geometry=geometry)


def _map_image(values: Any, geometry: Geometry) -> Image:
    return Image(np.array(values, dtype=np.float32).reshape(geometry.size_zyx), axes="zyx", geometry=geometry)


class Report:
    """What a registration did, and how good its result is.

    Attributes:
        proto: the message v1.Report, with everything that has no attribute here.
        verdict: "OK", or "REVIEW": a person should look before the result is used.
        reasons: why, as Reason objects.
        affine: 4 x 4, the affine part of the transform, fixed to moving, LPS mm.
    """

    __slots__ = ("proto", "verdict", "reasons", "affine")

    def __init__(self, proto: v1.Report) -> None:
        self.proto = proto
        self.verdict = enum_name(v1.Verdict, proto.verdict, "VERDICT_")
        self.reasons: Tuple[Reason, ...] = tuple(Reason(each) for each in proto.reasons)
        self.affine = affine_of(proto.affine)

    @property
    def ok(self) -> bool:
        """Whether the verdict is OK."""
        return self.proto.verdict == v1.VERDICT_OK

    @property
    def error(self) -> Optional[v1.ErrorEstimate]:
        """expected_mm, bound_mm, bound_p95_mm, ...; None where the images have too little structure to judge by."""
        return self.proto.error if self.proto.HasField("error") else None

    @property
    def expected_error_mm(self) -> Optional[float]:
        """The median of the expected error over the region of interest, mm; None where it is unknown."""
        return self.proto.error.expected_mm if self.proto.HasField("error") else None

    @property
    def error_map(self) -> Optional[ErrorMap]:
        """None where no map was asked for, or the error is unknown."""
        return ErrorMap(self.proto.error_map) if self.proto.HasField("error_map") else None

    @property
    def missing_tissue(self) -> Optional[Image]:
        """1 where tissue has no counterpart, otherwise 0, on a grid of its own over the fixed image's domain; None where
        nobody looked (find_missing_tissue)."""
        return _missing_image(self.proto.missing_tissue) if self.proto.HasField("missing_tissue") else None

    @property
    def landmarks(self) -> Optional[v1.LandmarkFit]:
        """How far the result is from the landmarks: distance_mm of each, mean_mm, max_mm, max_sigmas; None without
        landmarks."""
        return self.proto.landmarks if self.proto.HasField("landmarks") else None

    @property
    def second_layer_fraction(self) -> Optional[float]:
        """The part of the fixed image's (mask's) voxels that are in the second layer of the last ffd stage with
        sliding=True. 0: nothing slid, or a budget ended the stage before; None: no stage had sliding=True."""
        for stage in reversed(self.proto.stages):
            if stage.HasField("second_layer_fraction"):
                return stage.second_layer_fraction
        return None

    @property
    def stop_reason(self) -> str:
        """Why the optimisation ended, a name of v1.StopReason without its prefix: "CONVERGED"."""
        return enum_name(v1.StopReason, self.proto.stop_reason, "STOP_REASON_")

    @property
    def overlap(self) -> float:
        """The fraction of the fixed image's (mask's) voxels that have a source in the moving image."""
        return self.proto.overlap

    @property
    def latency_ms(self) -> Dict[str, float]:
        """Milliseconds of each phase, and "total"."""
        return {field.name[:-3]: value for field, value in self.proto.latency.ListFields()}

    def to_dict(self) -> Dict[str, Any]:
        """The whole message, with the names of the proto."""
        return message_dict(self.proto)

    def to_json(self) -> str:
        """`to_dict` as JSON. A number that is not finite is written as NaN or Infinity."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=True)

    def __repr__(self) -> str:
        error = f", expected error {self.expected_error_mm:.2f} mm" if self.expected_error_mm is not None else ""
        reasons = "".join(f"; {each}" for each in self.reasons)
        return f"Report({self.verdict}{error}{reasons})"


def message_dict(message: v1.Message) -> Dict[str, Any]:
    """A message as plain values: enums by their names, bytes as hexadecimal, durations and times in seconds."""
    out: Dict[str, Any] = {}
    for field, value in message.ListFields():
        if hasattr(value, "items"):
            out[field.name] = dict(value.items())
        elif hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
            out[field.name] = [_plain(field, each) for each in value]
        else:
            out[field.name] = _plain(field, value)
    return out


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
            return value.seconds + value.nanos * 1e-9
        return message_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value.hex() if isinstance(value, bytes) else value
