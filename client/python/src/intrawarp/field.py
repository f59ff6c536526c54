# SPDX-License-Identifier: Apache-2.0
"""Deformations on this side of the wire, and points through them without a call.

A transform T maps points of the fixed image to points of the moving image, LPS mm. To warp an image one therefore
samples the moving image at T(p) for each voxel centre p of the fixed grid.
"""
import os
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from . import v1
from ._geometry import Geometry, space_signs
from .errors import GeometryError, InternalError, InvalidArgument

Path = Union[str, "os.PathLike[str]"]

ENCODINGS: Dict[str, int] = {
    "float32": v1.FIELD_ENCODING_FLOAT32,
    "float16": v1.FIELD_ENCODING_FLOAT16,
    "int16": v1.FIELD_ENCODING_INT16,
    "control": v1.FIELD_ENCODING_CONTROL_POINTS,
    "velocity": v1.FIELD_ENCODING_VELOCITY,
}
ENCODING_NAMES = {number: name for name, number in ENCODINGS.items()}
_WIRE_DTYPES: Dict[int, Any] = {
    v1.FIELD_ENCODING_FLOAT32: np.dtype("<f4"),
    v1.FIELD_ENCODING_FLOAT16: np.dtype("<f2"),
    v1.FIELD_ENCODING_INT16: np.dtype("<i2"),
    v1.FIELD_ENCODING_CONTROL_POINTS: np.dtype("<f4"),
    v1.FIELD_ENCODING_VELOCITY: np.dtype("<f4"),
}
# A spline counts as defined this far beyond its domain, in node distances: rounding of geometries must not decide.
_SPLINE_TOLERANCE = 1e-5
# The longest step of a point along a velocity, in voxels.
_VELOCITY_STEP = 0.05


def encoding_of(name: Any) -> int:
    """The number of "float32", "float16", "int16", "control" or "velocity"."""
    number = ENCODINGS.get(str(name).lower().replace("control_points", "control"))
    if number is None:
        raise InvalidArgument(f"field: {name!r} is none of {', '.join(ENCODINGS)}", fields=(("field", "is unknown"),))
    return number


def points_of(points: Any) -> Tuple[Any, Tuple[int, ...]]:
    """(N, 3) float64, and the shape that was given: (3,) or (..., 3)."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] != 3:
        raise GeometryError(
            "points: must have the shape (N, 3), or (3,) for one point: x, y, z in mm",
            fields=(("points", "must have three coordinates each"),),
        )
    return array.reshape(-1, 3), array.shape


def affine_of(message: v1.AffineMap) -> Any:
    """4 x 4 float64; InternalError for what is not one."""
    if len(message.values) != 16:
        raise InternalError("the server sent an affine map that is not a 4 x 4 matrix")
    return np.array(message.values, dtype=np.float64).reshape(4, 4)


def apply_affine(matrix: Any, points: Any) -> Any:
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def field_bytes(header: v1.FieldHeader) -> int:
    """The bytes that a header's grid and encoding take; InternalError for a header that contradicts itself."""
    dtype = _WIRE_DTYPES.get(header.encoding)
    if dtype is None:
        raise InternalError("the server sent a field in an encoding that this version does not know")
    try:
        geometry = Geometry.from_proto(header.geometry)
    except GeometryError as error:
        raise InternalError(f"the server sent a field whose grid is not one: {error.message}") from None
    size = geometry.voxels * 3 * int(dtype.itemsize)
    if header.total_bytes != size:
        raise InternalError(f"the server announced {header.total_bytes} bytes for a field of {size}")
    if header.encoding == v1.FIELD_ENCODING_INT16 and not (np.isfinite(header.scale) and header.scale >= 0):
        raise InternalError("the server sent a field without a scale")
    return size


class Field:
    """A displacement field, a control grid, or a velocity: what a transform is made of.

    Attributes:
        geometry: the grid of the numbers (of a control grid: that of the control points, with the meaning of ITK's
            BSplineTransform of order 3).
        encoding: "float32", "float16", "int16" (dense displacements T(p) - p, affine part included), "control" or
            "velocity".
        max_error_mm: no component is farther than this from the one that float32 would have had.
        affine: 4 x 4, the affine part A: T(x) = A(x + u(x)) for "control", A(exp(v)(x)) for "velocity". For a dense
            field it is what points outside the field are mapped by, None where it is not known.
        domain: the fixed image's grid, None where it is not known.

    Immutable, so safe to use from several threads.
    """

    __slots__ = ("geometry", "encoding", "scale", "max_error_mm", "affine", "domain", "_raw", "_decoded", "_steps")

    def __init__(
        self,
        raw: Any,
        geometry: Geometry,
        encoding: str,
        *,
        scale: float = 0.0,
        max_error_mm: float = 0.0,
        affine: Any = None,
        domain: Optional[Geometry] = None,
    ) -> None:
        self._raw = raw.reshape(*geometry.size_zyx, 3)
        self._raw.setflags(write=False)
        self.geometry = geometry
        self.encoding = encoding
        self.scale = scale
        self.max_error_mm = max_error_mm
        self.affine = affine
        self.domain = domain
        self._decoded: Any = None
        self._steps = 0

    @classmethod
    def from_wire(
        cls, header: v1.FieldHeader, data: Any, *, affine: Any = None, domain: Optional[Geometry] = None
    ) -> "Field":
        """From a checked header (`field_bytes`) and its bytes, a numpy array of uint8 that is not copied."""
        geometry = Geometry.from_proto(header.geometry)
        if header.HasField("affine"):
            affine = affine_of(header.affine)
        if header.HasField("domain"):
            domain = Geometry.from_proto(header.domain)
        return cls(
            data.view(_WIRE_DTYPES[header.encoding]),
            geometry,
            ENCODING_NAMES[header.encoding],
            scale=header.scale,
            max_error_mm=header.max_error_mm,
            affine=affine,
            domain=domain,
        )

    @property
    def array(self) -> Any:
        """(z, y, x, 3) float32, components x, y, z in LPS mm: displacements, coefficients or velocities. Read-only."""
        if self._decoded is None:
            if self.encoding == "int16":
                decoded = self._raw * np.float32(self.scale)
            else:
                decoded = self._raw.astype(np.float32, copy=False)
            decoded.setflags(write=False)
            self._decoded = decoded
        return self._decoded

    @property
    def array_xyz(self) -> Any:
        """The same as a view (x, y, z, 3)."""
        return self.array.transpose(2, 1, 0, 3)

    @property
    def raw(self) -> Any:
        """(z, y, x, 3) as they travelled: a number v of int16 means v * scale mm. Read-only."""
        return self._raw

    @property
    def is_dense(self) -> bool:
        """Whether it has a displacement for each voxel of its grid: "float32", "float16" and "int16"."""
        return self.encoding in ("float32", "float16", "int16")

    @property
    def nbytes(self) -> int:
        """Bytes of `raw`, as the field travelled."""
        return int(self._raw.nbytes)

    def __repr__(self) -> str:
        return f"Field({self.encoding}, {self.geometry!r})"

    # ---- points ----

    def map_points(self, points: Any, *, space: str = "LPS") -> Any:
        """Points of the fixed image to points of the moving image.

        Args:
            points: (N, 3) or (3,), mm in `space`.
            space: "LPS" or "RAS", of the points and of the answer.

        Returns:
            float64 of the same shape. Outside the deformation the affine part maps; where that is not known the answer
            is NaN NaN NaN.
        """
        flat, shape = points_of(points)
        signs = space_signs(space)
        return (self._map(flat * signs) * signs).reshape(shape)

    def inverse_points(
        self, points: Any, *, space: str = "LPS", tolerance_mm: float = 1e-4, iterations: int = 100
    ) -> Any:
        """Points of the moving image to points of the fixed image, by fixed-point iteration.

        A point that does not converge to `tolerance_mm` (the transform is not invertible there, or maps outside) is NaN
        NaN NaN. Arguments and answer as of `map_points`.
        """
        flat, shape = points_of(points)
        signs = space_signs(space)
        target = flat * signs
        # For a dense field the affine part is in the displacements, so that a plain step would not contract for a large
        # rotation: the step goes through the inverse of the affine part where that is known.
        linear = np.eye(4) if self.affine is None else self.affine
        back = np.linalg.inv(linear)
        found = apply_affine(back, target)
        residual = np.full(len(found), np.inf)
        for _ in range(iterations):
            off = target - self._map(found)
            residual = np.linalg.norm(off, axis=1)
            if not (residual > tolerance_mm).any():
                break
            found = found + off @ back[:3, :3].T
        found[~(residual <= tolerance_mm)] = np.nan
        return (found * signs).reshape(shape)

    def _map(self, points: Any) -> Any:
        if self.encoding == "control":
            return apply_affine(self._affine_or_identity(), points + self._spline(points))
        if self.encoding == "velocity":
            return apply_affine(self._affine_or_identity(), self._flow(points))
        displacement, inside, nearest = self._linear(points)
        if self.affine is None:
            mapped = points + displacement
        else:
            # Beyond the outermost samples (by half a voxel, or a stride) the affine part goes on, and only what the
            # deformation adds to it stays as it is there.
            mapped = apply_affine(self.affine, points) + displacement + nearest - apply_affine(self.affine, nearest)
        if not inside.all():
            outside = ~inside
            mapped[outside] = np.nan if self.affine is None else apply_affine(self.affine, points[outside])
        return mapped

    def _affine_or_identity(self) -> Any:
        return np.eye(4) if self.affine is None else self.affine

    def _inside(self, points: Any) -> Any:
        grid = self.domain or self.geometry
        index = grid.physical_to_index(points)
        sizes = np.array(grid.size_xyz)
        return ((index >= -0.5) & (index <= sizes - 0.5)).all(axis=1)

    def _linear(self, points: Any) -> Tuple[Any, Any, Any]:
        """The trilinear value at the nearest point within the samples, whether the point itself is within the domain,
        and that nearest point."""
        sizes = np.array(self.geometry.size_xyz)
        index = self.geometry.physical_to_index(points)
        inside = self._inside(points)
        clamped = np.clip(np.where(np.isfinite(index), index, 0.0), 0.0, sizes - 1.0)
        lower = np.minimum(clamped.astype(np.intp), np.maximum(sizes - 2, 0))
        weight = clamped - lower
        step = (sizes > 1).astype(np.intp)
        flat = self._raw.reshape(-1, 3)
        nx, ny = int(sizes[0]), int(sizes[1])
        total = np.zeros((len(points), 3))
        for corner in range(8):
            bits = np.array([corner & 1, corner >> 1 & 1, corner >> 2 & 1])
            at = lower + bits * step
            share = np.where(bits, weight, 1.0 - weight).prod(axis=1)
            total += share[:, None] * flat[(at[:, 2] * ny + at[:, 1]) * nx + at[:, 0]]
        nearest = self.geometry.index_to_physical(clamped)
        return (total * self.scale if self.encoding == "int16" else total), inside, nearest

    def _spline(self, points: Any) -> Any:
        """u of the cubic B-spline; 0 outside its domain."""
        sizes = self.geometry.size_xyz
        index = self.geometry.physical_to_index(points)
        inside = np.ones(len(points), bool)
        bases, weights = [], []
        for axis, nodes in enumerate(sizes):
            at = index[:, axis]
            if nodes == 1:
                inside &= (at >= -0.5 - _SPLINE_TOLERANCE) & (at <= 0.5 + _SPLINE_TOLERANCE)
                bases.append(np.zeros(len(points), np.intp))
                weights.append(np.ones((1, len(points))))
                continue
            inside &= (at >= 1 - _SPLINE_TOLERANCE) & (at <= nodes - 2 + _SPLINE_TOLERANCE)
            clamped = np.clip(np.where(np.isfinite(at), at, 1.0), 1.0, nodes - 2.0)
            base = np.minimum(clamped.astype(np.intp) - 1, nodes - 4)
            t = clamped - (base + 1)
            s = 1.0 - t
            bases.append(base)
            weights.append(np.stack([s**3, 4 + t * t * (3 * t - 6), 4 + s * s * (3 * s - 6), t**3]) / 6.0)
        flat = self._raw.reshape(-1, 3)
        total = np.zeros((len(points), 3))
        for k in range(len(weights[2])):
            for j in range(len(weights[1])):
                row = ((bases[2] + k) * sizes[1] + bases[1] + j) * sizes[0] + bases[0]
                share = weights[2][k] * weights[1][j]
                for i in range(len(weights[0])):
                    total += (share * weights[0][i])[:, None] * flat[row + i]
        total[~inside] = 0
        return total

    def _flow(self, points: Any) -> Any:
        """exp(v)(x), by midpoint steps."""
        if self._steps == 0:
            spacing = min(d for d, n in zip(self.geometry.spacing_xyz, self.geometry.size_xyz) if n > 1 or d > 0)
            fastest = float(np.sqrt((self._raw.astype(np.float64) ** 2).sum(axis=-1)).max()) / spacing
            self._steps = max(1, int(np.ceil(fastest / _VELOCITY_STEP)))
        inside = self._inside(points)
        at = points.copy()
        step = 1.0 / self._steps
        for _ in range(self._steps):
            middle = at + 0.5 * step * self._linear(at)[0]
            at = at + step * self._linear(middle)[0]
        at[~inside] = points[~inside]
        return at

    def displacement(self, geometry: Optional[Geometry] = None) -> "Field":
        """The dense displacement T(p) - p at the voxels of `geometry` (its domain, or its own grid), as float32.

        It is computed here; `Result.field()` has the server do it.
        """
        if geometry is None and self.is_dense:
            return Field(self.array, self.geometry, "float32", affine=self.affine, domain=self.domain)
        grid = geometry or self.domain or self.geometry
        nx, ny, nz = grid.size_xyz
        out = np.empty((nz, ny, nx, 3), np.float32)
        columns, rows = np.meshgrid(np.arange(nx), np.arange(ny))
        for k in range(nz):
            index = np.stack([columns, rows, np.full_like(rows, k)], axis=-1).reshape(-1, 3)
            points = grid.index_to_physical(index)
            out[k] = (self._map(points) - points).reshape(ny, nx, 3)
        return Field(out, grid, "float32", affine=self.affine, domain=self.domain)

    # ---- other objects and files ----

    def write(self, path: Path) -> None:
        """A dense field as .nii, .nii.gz (intent 1007, LPS components, as ITK and ANTs), .nrrd (Slicer's grid
        transform) or .mha. InvalidArgument for a control grid or a velocity: write `displacement()`."""
        from ._files import write_field

        self._require_dense("write")
        write_field(os.fspath(path), self)

    def to_sitk(self) -> Any:
        """A SimpleITK DisplacementFieldTransform (a copy)."""
        from ._objects import field_to_sitk

        self._require_dense("to_sitk")
        return field_to_sitk(self)

    def _require_dense(self, what: str) -> None:
        if not self.is_dense:
            raise InvalidArgument(f"{what}: this is a {self.encoding} field; use field.displacement().{what}(...)")
