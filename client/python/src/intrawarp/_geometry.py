# SPDX-License-Identifier: Apache-2.0
"""Grids in physical space. The package's own frame is LPS in millimetres, as the server's; RAS is converted at the
edge.

Every name says the order of its axes: `_xyz` is x, y, z with x fastest in memory, and `_zyx` is the order of the axes
of a C-ordered numpy array. The keys are the ones that ITK and SimpleITK agreed on in 2026: origin, spacing, direction,
index and size, each with `_xyz` or `_zyx`. A key without its order is refused.
"""
import math
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from . import v1
from .errors import GeometryError

Vector = Tuple[float, float, float]

MAX_AXIS = 32767
_DIRECTION_TOLERANCE = 1e-3
KEYS = tuple(
    f"{name}_{order}" for name in ("origin", "spacing", "direction", "index", "size") for order in ("xyz", "zyx")
)

# The sign of each physical axis relative to LPS.
_SPACES: Dict[str, Vector] = {"LPS": (1.0, 1.0, 1.0), "RAS": (-1.0, -1.0, 1.0)}
_SPACE_NAMES = {"left-posterior-superior": "LPS", "right-anterior-superior": "RAS"}


def space_signs(space: Any, what: str = "space") -> Any:
    """What turns coordinates of a space into LPS, and back."""
    name = _SPACE_NAMES.get(str(space).lower(), str(space).upper())
    if name not in _SPACES:
        raise GeometryError(
            f"{what}: give the frame of the coordinates, space='LPS' (DICOM, ITK, SimpleITK) or "
            f"space='RAS' (NIfTI, nibabel, Slicer's scene)",
            fields=((what, "must be LPS or RAS"),),
        )
    return np.array(_SPACES[name])


def _refuse(field: str, message: str) -> GeometryError:
    return GeometryError(f"{field}: {message}", fields=((field, message),))


def vector_of(value: Any, field: str, fill: float = 0.0) -> Vector:
    """Three finite numbers; two are those of a plane, whose third is `fill`."""
    try:
        numbers = [float(each) for each in np.asarray(value, dtype=np.float64).reshape(-1)]
    except (TypeError, ValueError):
        raise _refuse(field, "must be three numbers") from None
    if len(numbers) == 2:
        numbers.append(fill)
    if len(numbers) != 3 or not all(math.isfinite(each) for each in numbers):
        raise _refuse(field, "must be three finite numbers")
    return numbers[0], numbers[1], numbers[2]


def _matrix_of(value: Any, field: str) -> Any:
    try:
        matrix = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise _refuse(field, "must be a 3 x 3 matrix") from None
    if matrix.size == 4:
        plane = np.eye(3)
        plane[:2, :2] = matrix.reshape(2, 2)
        return plane
    if matrix.size != 9 or not np.isfinite(matrix).all():
        raise _refuse(field, "must be a 3 x 3 matrix of finite numbers")
    return matrix.reshape(3, 3)


def orthonormal(direction: Any) -> Any:
    """The nearest rotation or reflection; GeometryError for a shear."""
    deviation = np.abs(direction.T @ direction - np.eye(3)).max()
    if not deviation <= _DIRECTION_TOLERANCE:
        raise _refuse(
            "direction",
            "its columns are not perpendicular unit vectors (a shear, or spacing that is left in "
            "it): resample the image onto a rectangular grid",
        )
    if deviation < 1e-12:  # of rounding: a grid that came over the wire stays as it is
        return direction
    u, _, v = np.linalg.svd(direction)
    return u @ v


class Geometry:
    """A regular grid: p = origin + direction * diag(spacing) * index, LPS millimetres. Immutable.

    Args:
        size_xyz: voxels along x, y, z, each 1 to 32767; z = 1 is a 2-D image.
        spacing_xyz: millimetres between voxel centres, each 1e-6 to 1e6.
        origin_xyz: the centre of voxel (0, 0, 0), LPS mm.
        direction_xyz: 3 x 3; its columns are the unit vectors of the index axes in LPS. Either hand.

    Raises:
        GeometryError: a value that no grid can have; `field` names it.
    """

    __slots__ = ("size_xyz", "spacing_xyz", "origin_xyz", "_direction")

    size_xyz: Tuple[int, int, int]
    spacing_xyz: Vector
    origin_xyz: Vector
    _direction: Any

    def __init__(
        self,
        size_xyz: Sequence[int],
        spacing_xyz: Sequence[float],
        origin_xyz: Sequence[float],
        direction_xyz: Any = None,
    ) -> None:
        sizes = [int(each) for each in size_xyz]
        if len(sizes) == 2:
            sizes.append(1)
        if len(sizes) != 3 or not all(1 <= each <= MAX_AXIS for each in sizes):
            raise _refuse("size", f"must be three whole numbers from 1 to {MAX_AXIS}")
        spacing = vector_of(spacing_xyz, "spacing", 1.0)
        if not all(1e-6 <= each <= 1e6 for each in spacing):
            raise _refuse("spacing", "must be above 0 (1e-6 to 1e6 mm)")
        origin = vector_of(origin_xyz, "origin")
        if not all(abs(each) <= 1e7 for each in origin):
            raise _refuse("origin", "must be within 1e7 mm")
        direction = np.eye(3) if direction_xyz is None else orthonormal(_matrix_of(direction_xyz, "direction"))
        # -0.0, which a change of sign makes, prints differently from 0.
        direction = direction + 0.0
        direction.setflags(write=False)
        for name, value in (
            ("size_xyz", (sizes[0], sizes[1], sizes[2])),
            ("spacing_xyz", spacing),
            ("origin_xyz", (origin[0] + 0.0, origin[1] + 0.0, origin[2] + 0.0)),
            ("_direction", direction),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Geometry does not change; make another one")

    def __reduce__(self) -> Any:
        return Geometry, (self.size_xyz, self.spacing_xyz, self.origin_xyz, np.array(self._direction))

    @classmethod
    def from_affine(cls, size_xyz: Sequence[int], affine: Any, space: str) -> "Geometry":
        """The grid of a 4 x 4 matrix from voxel indices (i, j, k, 1) to mm in `space` ("LPS" or "RAS").

        Raises:
            GeometryError: a matrix with a shear, of another shape, or with a last row other than 0 0 0 1.
        """
        matrix = np.asarray(affine, dtype=np.float64)
        if matrix.shape != (4, 4) or not np.isfinite(matrix).all() or not np.allclose(matrix[3], (0, 0, 0, 1)):
            raise _refuse("affine", "must be a finite 4 x 4 matrix with the last row 0 0 0 1, from voxel to mm")
        signs = space_signs(space)
        columns = signs[:, None] * matrix[:3, :3]
        if len(size_xyz) == 2 or int(size_xyz[2]) == 1:
            columns = _with_normal(columns)
        spacing = np.linalg.norm(columns, axis=0)
        if not (spacing > 0).all():
            raise _refuse("affine", "a column is 0, so an axis has no length")
        return cls(
            size_xyz,
            [float(each) for each in spacing],
            [float(each) for each in signs * matrix[:3, 3]],
            columns / spacing,
        )

    @property
    def direction_xyz(self) -> Any:
        """3 x 3 float64, read-only; columns are the unit vectors of x, y, z in LPS."""
        return self._direction

    @property
    def size_zyx(self) -> Tuple[int, int, int]:
        """The shape of the numpy array."""
        return self.size_xyz[2], self.size_xyz[1], self.size_xyz[0]

    @property
    def spacing_zyx(self) -> Vector:
        """Millimetres between voxel centres along z, y, x."""
        return self.spacing_xyz[2], self.spacing_xyz[1], self.spacing_xyz[0]

    @property
    def origin_zyx(self) -> Vector:
        """The centre of voxel (0, 0, 0), LPS mm, as z, y, x."""
        return self.origin_xyz[2], self.origin_xyz[1], self.origin_xyz[0]

    @property
    def direction_zyx(self) -> Any:
        """Rows and columns of `direction_xyz` in reverse order."""
        return self._direction[::-1, ::-1]

    @property
    def voxels(self) -> int:
        """The number of voxels."""
        return self.size_xyz[0] * self.size_xyz[1] * self.size_xyz[2]

    def __getitem__(self, key: str) -> Any:
        """One of the ten keys that ITK and SimpleITK share, as numpy arrays (`index_*` is always 0)."""
        if key not in KEYS:
            raise KeyError(f"{key!r} says nothing about the order of the axes: use one of {', '.join(KEYS)}")
        if key.startswith("index"):
            return np.zeros(3, np.int64)
        return np.array(getattr(self, key))

    def affine(self, space: str = "LPS") -> Any:
        """4 x 4: voxel index (i, j, k, 1) to mm in `space`."""
        matrix = np.eye(4)
        signs = space_signs(space)
        matrix[:3, :3] = signs[:, None] * self._direction * np.array(self.spacing_xyz)
        matrix[:3, 3] = signs * np.array(self.origin_xyz)
        return matrix + 0.0

    def index_to_physical(self, index_xyz: Any) -> Any:
        """(..., 3) indices i, j, k to LPS mm."""
        index = np.asarray(index_xyz, dtype=np.float64)
        return index @ (self._direction * np.array(self.spacing_xyz)).T + np.array(self.origin_xyz)

    def physical_to_index(self, points: Any) -> Any:
        """(..., 3) LPS mm to continuous indices i, j, k."""
        # The direction is orthonormal, so that its transpose is its inverse.
        offset = np.asarray(points, dtype=np.float64) - np.array(self.origin_xyz)
        return offset @ self._direction / np.array(self.spacing_xyz)

    def same_grid(self, other: "Geometry", tolerance_voxels: float = 1e-2) -> bool:
        """Equal sizes, and corners within `tolerance_voxels` of each other."""
        if self.size_xyz != other.size_xyz:
            return False
        corners = np.array([[(n - 1) * (c >> a & 1) for a, n in enumerate(self.size_xyz)] for c in range(8)])
        off = self.physical_to_index(other.index_to_physical(corners)) - corners
        return bool(np.abs(off).max() <= tolerance_voxels)

    def strided(self, stride_xyz: Sequence[int]) -> "Geometry":
        """Every n-th voxel along each axis, from the first."""
        size = [-(-n // s) for n, s in zip(self.size_xyz, stride_xyz)]
        return Geometry(size, [d * s for d, s in zip(self.spacing_xyz, stride_xyz)], self.origin_xyz, self._direction)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Geometry)
            and self.size_xyz == other.size_xyz
            and (
                self.spacing_xyz == other.spacing_xyz
                and self.origin_xyz == other.origin_xyz
                and bool((self._direction == other._direction).all())
            )
        )

    def __hash__(self) -> int:
        return hash((self.size_xyz, self.spacing_xyz, self.origin_xyz))

    def __repr__(self) -> str:
        direction = (
            "" if (self._direction == np.eye(3)).all() else (f", direction_xyz={np.round(self._direction, 6).tolist()}")
        )
        return (
            f"Geometry(size_xyz={self.size_xyz}, spacing_xyz={_short(self.spacing_xyz)}, "
            f"origin_xyz={_short(self.origin_xyz)}{direction})"
        )

    def to_proto(self) -> v1.Geometry:
        """The message v1.Geometry."""
        return v1.Geometry(
            size=self.size_xyz,
            spacing=self.spacing_xyz,
            origin=self.origin_xyz,
            direction=self._direction.reshape(-1).tolist(),
        )

    @classmethod
    def from_proto(cls, message: v1.Geometry) -> "Geometry":
        """Raises GeometryError for a message that is not a grid."""
        if not (len(message.size) == len(message.spacing) == len(message.origin) == 3 and len(message.direction) == 9):
            raise _refuse("geometry", "the server sent a grid with numbers missing")
        return cls(message.size, message.spacing, message.origin, list(message.direction))


def _short(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{each:.6g}" for each in values) + ")"


def _with_normal(columns: Any) -> Any:
    """In an image of one slice, a third axis of length 0 becomes the normal of the plane, 1 mm."""
    if np.linalg.norm(columns[:, 2]) > 0:
        return columns
    out = columns.copy()
    normal = np.cross(columns[:, 0], columns[:, 1])
    length = np.linalg.norm(normal)
    out[:, 2] = normal / length if length > 0 else (0, 0, 1)
    return out


def _one_of(keys: Mapping[str, Any], name: str, dims: int) -> Any:
    """The value of NAME_xyz or NAME_zyx, in the order x y z; None where neither is given."""
    xyz, zyx = keys.get(f"{name}_xyz"), keys.get(f"{name}_zyx")
    if xyz is not None and zyx is not None:
        raise _refuse(name, f"give {name}_xyz or {name}_zyx, not both")
    if zyx is None:
        return xyz
    value = np.asarray(zyx, dtype=np.float64)
    if name == "direction":
        side = 2 if value.size == 4 else 3
        return value.reshape(side, side)[::-1, ::-1]
    return value[::-1]


def geometry_from_keys(
    size_xyz: Sequence[int], keys: Mapping[str, Any], *, space: Optional[str], affine: Any = None
) -> Geometry:
    """The grid of an array from what its caller says; GeometryError with a sentence that says what is missing."""
    unknown = [key for key in keys if key not in KEYS and keys[key] is not None]
    if unknown:
        raise _refuse(unknown[0], f"is not a key of a geometry; the keys are {', '.join(KEYS)} and affine")
    dims = len(size_xyz)
    given = {name: _one_of(keys, name, dims) for name in ("origin", "spacing", "direction", "index", "size")}
    if space is None:
        raise _refuse(
            "space",
            "an array says nothing about its frame: give space='LPS' (DICOM, ITK, SimpleITK) or "
            "space='RAS' (NIfTI, nibabel)",
        )
    if given["size"] is not None and [int(each) for each in given["size"]][:dims] != [int(n) for n in size_xyz]:
        raise _refuse("size", f"says {[int(each) for each in given['size']]}, the array has {list(size_xyz)} (x, y, z)")
    if affine is not None:
        if any(given[name] is not None for name in ("origin", "spacing", "direction")):
            raise _refuse("affine", "give affine, or origin, spacing and direction, not both")
        grid = Geometry.from_affine(size_xyz, affine, space)
    else:
        missing = [f"{name}_xyz" for name in ("spacing", "origin") if given[name] is None]
        if missing:
            raise _refuse(
                missing[0],
                f"an array has no geometry: give {' and '.join(missing)} (mm; or their _zyx), "
                "direction_xyz where the axes are not those of the space, or affine (4 x 4, voxel "
                "to mm)",
            )
        signs = space_signs(space)
        direction = np.eye(3) if given["direction"] is None else _matrix_of(given["direction"], "direction")
        origin = np.array(vector_of(given["origin"], "origin"))
        grid = Geometry(
            size_xyz,
            vector_of(given["spacing"], "spacing", 1.0),
            [float(each) for each in signs * origin],
            signs[:, None] * direction,
        )
    if given["index"] is None:
        return grid
    # ITK's start index: the origin is the place of index 0, which need not be a voxel of the array.
    start = vector_of(given["index"], "index")
    return Geometry(
        grid.size_xyz, grid.spacing_xyz, [float(each) for each in grid.index_to_physical(start)], grid.direction_xyz
    )
