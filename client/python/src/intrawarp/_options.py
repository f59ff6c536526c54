# SPDX-License-Identifier: Apache-2.0
"""From keywords to RegistrationOptions and FieldRequest. What a keyword may be is said by the protos' descriptors."""
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import v1
from .errors import InvalidArgument
from .field import encoding_of, points_of

# The members of Stage.method by the name that people write.
_METHODS: Dict[str, Tuple[str, Any]] = {
    "rigid": ("rigid", v1.RigidStage),
    "affine": ("affine", v1.AffineStage),
    "ffd": ("ffd", v1.FfdStage),
    "log-demons": ("log_demons", v1.LogDemonsStage),
    "log_demons": ("log_demons", v1.LogDemonsStage),
    "search": ("search", v1.SearchStage),
}
_ENUMS: Dict[str, Tuple[Any, str]] = {
    "metric": (v1.Metric, "METRIC_"),
    "optimizer": (v1.Optimizer, "OPTIMIZER_"),
    "velocity_update": (v1.VelocityUpdate, "VELOCITY_UPDATE_"),
    "velocity_grid": (v1.VelocityGrid, "VELOCITY_GRID_"),
}
_INTERPOLATIONS = {
    "linear": v1.INTERPOLATION_LINEAR,
    "nearest": v1.INTERPOLATION_NEAREST,
    "cubic": v1.INTERPOLATION_CUBIC,
}
_BILLION = 1_000_000_000
_TEN_YEARS = 10 * 366 * 86400.0

Method = Union[str, Sequence[Any]]


def refuse(field: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {message}", fields=((field, message),))


def duration(seconds: float, field: str) -> v1.GoogleProtobufDuration:
    """InvalidArgument unless it is a finite number of 0 or more."""
    if not isinstance(seconds, (int, float, np.floating, np.integer)) or not 0 <= seconds <= _TEN_YEARS:
        raise refuse(field, "must be seconds, 0 or more")
    nanos = round(float(seconds) * _BILLION)
    return v1.GoogleProtobufDuration(seconds=nanos // _BILLION, nanos=nanos % _BILLION)


def seconds_of(message: v1.GoogleProtobufDuration) -> float:
    return message.seconds + message.nanos / _BILLION


def timestamp(seconds: float, field: str) -> v1.GoogleProtobufTimestamp:
    """Of seconds since 1970."""
    if (
        not isinstance(seconds, (int, float, np.floating, np.integer))
        or not math.isfinite(seconds)
        or abs(seconds) > 2e11
    ):
        raise refuse(field, "must be seconds since 1970, as time.time() gives them")
    nanos = round(float(seconds) * _BILLION)
    return v1.GoogleProtobufTimestamp(seconds=nanos // _BILLION, nanos=nanos % _BILLION)


def timestamp_seconds(message: v1.GoogleProtobufTimestamp) -> float:
    return message.seconds + message.nanos / _BILLION


def _enum(name: str, value: Any) -> int:
    enum, prefix = _ENUMS[name]
    known = {key[len(prefix) :].lower(): number for key, number in enum.items() if number}
    number: Optional[int] = known.get(str(value).lower().replace("-", "_"))
    if number is None and name == "optimizer" and value == "cg":
        number = v1.OPTIMIZER_CONJUGATE_GRADIENT
    if number is None:
        raise refuse(name, f"{value!r} is none of {', '.join(sorted(known))}")
    return number


def make_stage(method: str, **options: Any) -> v1.Stage:
    """A stage by its method's name ("rigid", "affine", "search", "ffd", "log-demons") and the fields of its message.

    Raises:
        InvalidArgument: an unknown method, an option that the method does not have, or a value of another type.
    """
    found = _METHODS.get(str(method).lower())
    if found is None:
        raise refuse("method", f"{method!r} is none of auto, rigid, affine, search, ffd, log-demons")
    member, cls = found
    known = cls.DESCRIPTOR.fields_by_name
    stage = v1.Stage()
    message = getattr(stage, member)
    message.SetInParent() if hasattr(message, "SetInParent") else None
    for name, value in options.items():
        if value is None:
            continue
        if name not in known:
            raise refuse(name, f"{method} has no such option; it has {', '.join(sorted(known))}")
        try:
            setattr(message, name, _enum(name, value) if name in _ENUMS else _plain(value))
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise refuse(name, "has a value of another type than the option takes") from None
    return stage


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's, which every version of protobuf takes."""
    return value.item() if isinstance(value, (np.generic,)) else value


def make_stages(method: Optional[Method], options: Mapping[str, Any]) -> List[v1.Stage]:
    """The stages of `method`; `options` are the last one's. Empty for "auto": the server chooses.

    A rigid or affine stage before the last one uses ssd when the last stage does, and ngf, which serves unlike
    intensities best, otherwise.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if method is None or method == "auto":
        if given:
            raise refuse(next(iter(given)), "needs a method: with 'auto' the server chooses the stages")
        return []
    parts: Iterable[Any] = method.replace("+", ",").split(",") if isinstance(method, str) else method
    parts = list(parts)
    if not parts:
        raise refuse("method", "names no stage")
    stages = []
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if isinstance(part, str):
            stages.append(make_stage(part.strip(), **(given if last else {})))
        elif isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[1], Mapping):
            stages.append(make_stage(part[0], **{**dict(part[1]), **(given if last else {})}))
        elif hasattr(part, "WhichOneof"):
            stages.append(part)
        else:
            raise refuse("method", "must be names, pairs of a name and its options, or v1.Stage")
    _complete_metrics(stages)
    return stages


def _complete_metrics(stages: List[v1.Stage]) -> None:
    last = stages[-1]
    which = last.WhichOneof("method")
    metric = getattr(last, which).metric if which else 0
    takes_ssd = metric == v1.METRIC_SSD or (metric == 0 and which != "ffd")
    for stage in stages[:-1]:
        member = stage.WhichOneof("method")
        if member in ("rigid", "affine") and getattr(stage, member).metric == 0:
            getattr(stage, member).metric = v1.METRIC_SSD if takes_ssd else v1.METRIC_NGF


def affine_message(matrix: Any, field: str) -> v1.AffineMap:
    values = np.asarray(matrix, dtype=np.float64)
    if values.shape != (4, 4) or not np.isfinite(values).all():
        raise refuse(field, "must be a finite 4 x 4 matrix, fixed to moving, LPS mm")
    return v1.AffineMap(values=values.reshape(-1).tolist())


def landmark_messages(landmarks: Any) -> List[v1.Landmark]:
    """Of tuples (fixed, moving) or (fixed, moving, sigma_mm); LPS mm."""
    messages = []
    for place, landmark in enumerate(landmarks):
        field = f"landmarks[{place}]"
        if len(landmark) not in (2, 3):
            raise refuse(field, "must be (fixed, moving) or (fixed, moving, sigma_mm)")
        points = np.asarray(landmark[:2], dtype=np.float64)
        if points.shape != (2, 3) or not np.isfinite(points).all():
            raise refuse(field, "must have two points of three finite coordinates")
        message = v1.Landmark(fixed=points[0].tolist(), moving=points[1].tolist())
        if len(landmark) == 3 and landmark[2] is not None:
            message.sigma_mm = float(landmark[2])
        messages.append(message)
    return messages


def registration_options(
    *,
    stages: List[v1.Stage],
    initial: Any = None,
    budget: Optional[float] = None,
    best_effort: Optional[bool] = None,
    error_limit_mm: Optional[float] = None,
    error_map: bool = False,
    error_at: Any = None,
    keep_deformation: Optional[bool] = None,
    find_missing_tissue: Optional[bool] = None,
    landmarks: Any = None,
) -> v1.RegistrationOptions:
    """`initial`: "transforms/ID", or a 4 x 4 matrix. Masks are left out."""
    options = v1.RegistrationOptions(stages=stages)
    if isinstance(initial, str):
        options.initial_transform = initial
    elif initial is not None:
        options.initial_affine.CopyFrom(affine_message(initial, "initial"))
    if budget is not None:
        options.budget.CopyFrom(duration(budget, "budget"))
    if best_effort is not None:
        options.best_effort = bool(best_effort)
    if error_limit_mm is not None:
        options.error_limit_mm = float(error_limit_mm)
    if keep_deformation is not None:
        options.keep_deformation = bool(keep_deformation)
    if find_missing_tissue is not None:
        options.find_missing_tissue = bool(find_missing_tissue)
    if landmarks is not None:
        options.landmarks.extend(landmark_messages(landmarks))
    if error_map:
        options.error.map = True
    if error_at is not None:
        options.error.points.extend(points_of(error_at)[0].reshape(-1).tolist())
    return options


def triple(value: Any, field: str) -> List[int]:
    """Three whole numbers; one stands for all."""
    numbers = np.asarray(value)
    if numbers.ndim == 0:
        numbers = np.repeat(numbers, 3)
    if numbers.shape != (3,) or numbers.dtype.kind not in "iu":
        raise refuse(field, "must be a whole number, or three (x, y, z)")
    return [int(each) for each in numbers]


def field_request(encoding: str, stride: Any = None, region: Any = None) -> v1.FieldRequest:
    """`region`: ((x, y, z) of its first voxel, (x, y, z) of its size)."""
    request = v1.FieldRequest(encoding=encoding_of(encoding))
    if stride is not None and triple(stride, "stride") != [1, 1, 1]:
        request.stride.extend(triple(stride, "stride"))
    if region is not None:
        if len(region) != 2:
            raise refuse("region", "must be the first voxel and the size, ((x, y, z), (x, y, z))")
        request.region_start.extend(triple(region[0], "region"))
        request.region_size.extend(triple(region[1], "region"))
    return request


def interpolation_of(name: str) -> int:
    number = _INTERPOLATIONS.get(str(name).lower())
    if number is None:
        raise refuse("interpolation", f"{name!r} is none of {', '.join(_INTERPOLATIONS)}")
    return number
