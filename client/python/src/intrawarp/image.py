# SPDX-License-Identifier: Apache-2.0
"""Image: voxels and their geometry in one object, so that neither travels without the other.

    Image(array, axes="zyx", spacing_xyz=(0.7, 0.7, 1.0), origin_xyz=(0, 0, 0), space="LPS")
    Image(array, axes="xyz", affine=nifti.affine, space="RAS")
    Image.of(sitk_image)          # SimpleITK, ITK, nibabel, pydicom, a path, an Image
    Image.read("preop.nii.gz")    # NIfTI, NRRD, MetaImage

An array says neither which of its axes is which, nor where it lies. So `axes` and `space` have no default, and an array
without them is refused with a sentence that says what to give. Strides never count: voxel [k, j, i] of the axes "zyx"
is the voxel at z = k, whether the array is C-ordered, Fortran-ordered or a flipped view.
"""
import os
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from . import v1
from ._geometry import KEYS, Geometry, geometry_from_keys
from .errors import GeometryError

Path = Union[str, "os.PathLike[str]"]

PIXEL_TYPES: Dict[str, int] = {
    "uint8": v1.PIXEL_TYPE_UINT8,
    "int8": v1.PIXEL_TYPE_INT8,
    "uint16": v1.PIXEL_TYPE_UINT16,
    "int16": v1.PIXEL_TYPE_INT16,
    "uint32": v1.PIXEL_TYPE_UINT32,
    "int32": v1.PIXEL_TYPE_INT32,
    "float32": v1.PIXEL_TYPE_FLOAT32,
    "float64": v1.PIXEL_TYPE_FLOAT64,
}
DTYPES: Dict[int, Any] = {number: np.dtype(name) for name, number in PIXEL_TYPES.items()}


def _refuse(field: str, message: str) -> GeometryError:
    return GeometryError(f"{field}: {message}", fields=((field, message),))


def _to_zyx(array: Any, axes: Optional[str]) -> Any:
    """A view with the axes z, y, x."""
    if axes is None:
        raise _refuse(
            "axes",
            "an array does not say which axis is which: give axes='zyx' where array[k, j, i] is the voxel "
            "at x = i (SimpleITK, ITK, pydicom stacks), or axes='xyz' where array[i, j, k] is "
            "(nibabel)",
        )
    name = str(axes).lower()
    if array.ndim not in (2, 3):
        raise _refuse(
            "array",
            f"has {array.ndim} axes, must have 3 (or 2 for a slice): choose one time point, and one "
            "channel of a colour image",
        )
    if sorted(name) != ["x", "y", "z"][: array.ndim]:
        raise _refuse(
            "axes",
            f"is {axes!r}, must name each of the array's {array.ndim} axes once, 'zyx' say"
            if array.ndim == 3
            else f"is {axes!r}, must be 'yx' or 'xy' for an array of two axes",
        )
    order = [name.index(axis) for axis in ("zyx" if array.ndim == 3 else "yx")]
    view = array.transpose(order)
    return view if array.ndim == 3 else view[np.newaxis]


def _to_wire_type(array: Any) -> Any:
    """Voxels of a type that travels, in native byte order. A conversion that would change a value is refused."""
    dtype = array.dtype
    if dtype.kind == "b":
        return array.astype(np.uint8)
    name = dtype.newbyteorder("=").name
    if name in PIXEL_TYPES:
        return array.astype(dtype.newbyteorder("="), copy=False)
    if name == "float16":
        return array.astype(np.float32)
    if dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        for smaller in (np.int32, np.uint32):
            limits = np.iinfo(smaller)
            if limits.min <= low and high <= limits.max:
                return array.astype(smaller)
        raise _refuse("array", f"is {dtype.name} with values beyond 32 bits: convert it to float64 if that will do")
    raise _refuse(
        "array", f"has the type {dtype}, must be a real number of 8 to 64 bits: give the magnitude, or one channel"
    )


class Image:
    """Voxels on a grid. The array and the geometry belong together; a function that changes one makes another Image.

    Args:
        array: 3-D or 2-D, of bool, integers or floats. It is not copied where it is C-ordered with the axes z, y, x.
        axes: which axis of `array` is which: "zyx", "xyz" or any other order; "yx" or "xy" for two axes. Required.
        space: the frame that origin, direction and affine are given in, "LPS" or "RAS". Required.
        affine: 4 x 4, voxel (i, j, k, 1) to mm in `space`; instead of the keys.
        geometry: a Geometry (LPS); instead of space, affine and the keys.
        **keys: origin_xyz, spacing_xyz, direction_xyz, index_xyz, size_xyz, or the same with _zyx. Spacing and origin
            are required. The direction defaults to the axes of `space`. A start index moves the origin, as in ITK.
        rescale: (slope, intercept); the stored value v means v * slope + intercept. None: voxels as they are.

    Raises:
        GeometryError: something is missing, contradicts itself, or cannot be taken. `field` names it.
    """

    __slots__ = ("_zyx", "geometry", "rescale", "provenance")

    geometry: Geometry
    rescale: Optional[Tuple[float, float]]
    provenance: Optional[v1.Provenance]

    def __init__(
        self,
        array: Any,
        *,
        axes: Optional[str] = None,
        space: Optional[str] = None,
        affine: Any = None,
        geometry: Optional[Geometry] = None,
        rescale: Optional[Tuple[float, float]] = None,
        **keys: Any,
    ) -> None:
        if isinstance(array, np.ma.MaskedArray):
            raise _refuse("array", "is a masked array, whose masked voxels would count: fill it first")
        voxels = _to_zyx(np.asarray(array), axes)
        size_xyz = voxels.shape[::-1]
        if geometry is None:
            geometry = geometry_from_keys(size_xyz, keys, space=space, affine=affine)
        elif affine is not None or any(value is not None for value in keys.values()):
            raise _refuse("geometry", "give geometry, or affine, or the keys")
        if geometry.size_xyz != tuple(size_xyz):
            raise _refuse("size", f"the geometry has {geometry.size_xyz}, the array {tuple(size_xyz)} (x, y, z)")
        self._zyx: Any = np.ascontiguousarray(_to_wire_type(voxels))
        self.geometry = geometry
        if rescale is not None:
            slope, intercept = float(rescale[0]), float(rescale[1])
            if not (np.isfinite(slope) and np.isfinite(intercept)) or slope == 0:
                raise _refuse("rescale", "must be a finite slope other than 0 and a finite intercept")
            rescale = None if (slope, intercept) == (1.0, 0.0) else (slope, intercept)
        self.rescale = rescale
        self.provenance = None

    # ---- voxels ----

    @property
    def array(self) -> Any:
        """The stored voxels as a view with the axes z, y, x (C-ordered)."""
        return self._zyx

    @property
    def array_xyz(self) -> Any:
        """The same voxels as a view with the axes x, y, z (Fortran-ordered), as nibabel has them."""
        return self._zyx.transpose(2, 1, 0)

    @property
    def values(self) -> Any:
        """The voxels with their rescaling applied (float64), or the stored ones where there is none; axes z, y, x."""
        if self.rescale is None:
            return self._zyx
        return self._zyx * self.rescale[0] + self.rescale[1]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """`values`. numpy 2 says by `copy` whether the caller may write to them (True), wants a view (False), or does
        not mind (None), and does not copy again."""
        values = self.values
        made = values if dtype is None else values.astype(dtype, copy=False)
        if made is self._zyx:
            return made.copy() if copy else made
        if copy is False:
            raise ValueError("the voxels cannot be viewed so without a copy: they are rescaled or of another type")
        return made

    @property
    def dtype(self) -> Any:
        """The type of the stored voxels, one of the eight that travel."""
        return self._zyx.dtype

    @property
    def shape(self) -> Tuple[int, int, int]:
        """Of `array`: z, y, x."""
        return self.geometry.size_zyx

    @property
    def nbytes(self) -> int:
        """Bytes of the stored voxels, as they travel."""
        return int(self._zyx.nbytes)

    @property
    def pixel_type(self) -> int:
        """The number of v1.PixelType that stands for `dtype`."""
        return PIXEL_TYPES[self._zyx.dtype.name]

    def buffer(self) -> memoryview:
        """The bytes as they travel: dense, x fastest, little-endian."""
        voxels = self._zyx
        if voxels.dtype.byteorder == ">" or (voxels.dtype.byteorder == "=" and np.little_endian is False):
            voxels = voxels.astype(voxels.dtype.newbyteorder("<"))
        return memoryview(voxels.data).cast("B")

    # ---- geometry ----

    def __getitem__(self, key: str) -> Any:
        """`image["spacing_xyz"]`: the keys that ITK and SimpleITK share. A key without its order is a KeyError."""
        return self.geometry[key]

    def keys(self) -> Tuple[str, ...]:
        """The keys that `image[key]` takes."""
        return KEYS

    @property
    def spacing_xyz(self) -> Tuple[float, float, float]:
        """Millimetres between voxel centres along x, y, z."""
        return self.geometry.spacing_xyz

    @property
    def origin_xyz(self) -> Tuple[float, float, float]:
        """The centre of voxel (0, 0, 0), LPS mm, as x, y, z."""
        return self.geometry.origin_xyz

    def affine(self, space: str = "LPS") -> Any:
        """4 x 4: voxel index (i, j, k, 1) to mm in `space`."""
        return self.geometry.affine(space)

    def __repr__(self) -> str:
        return f"Image({self.dtype.name}, {self.geometry!r})"

    def _repr_html_(self) -> str:
        from ._display import image_html

        return image_html(self)

    # ---- other objects and files ----

    @classmethod
    def of(cls, source: Any, **how: Any) -> "Image":
        """An Image of what other packages have.

        Args:
            source: an Image; a SimpleITK or ITK image; a nibabel image; a pydicom dataset or a list of them (the slices
                of one series); a path of a NIfTI, NRRD or MetaImage file; an array (with `how`), or a pair of an array
                and a 4 x 4 affine (with axes= and space=).
            **how: the arguments of Image(), for arrays alone.

        Raises:
            GeometryError: the object has no geometry that can be taken, or a choice is missing.
            FileError: the path is not a readable image.
        """
        from ._objects import image_of

        return image_of(source, how)

    @classmethod
    def read(cls, path: Path, *, max_bytes: int = 4 << 30) -> "Image":
        """A file: .nii, .nii.gz, .hdr/.img, .nrrd, .nhdr, .mha, .mhd. A DICOM folder is the command line's.

        Raises:
            FileError: the file is damaged, of another kind, or larger than `max_bytes`; `field` names the header's
                field.
            OSError: the file cannot be opened.
        """
        from ._files import read_image

        return read_image(os.fspath(path), max_bytes)

    def write(self, path: Path) -> None:
        """A file of the suffix's kind: .nii, .nii.gz, .nrrd, .mha. It replaces the file at once or leaves it as it
        was."""
        from ._files import write_image

        write_image(os.fspath(path), self)

    def to_sitk(self) -> Any:
        """A SimpleITK image (a copy), with the rescaling applied. ImportError where SimpleITK is not installed."""
        from ._objects import to_sitk

        return to_sitk(self)

    def to_itk(self) -> Any:
        """An ITK image (a copy), with the rescaling applied. ImportError where ITK is not installed."""
        from ._objects import to_itk

        return to_itk(self)

    def to_nibabel(self) -> Any:
        """A nibabel Nifti1Image in RAS (a view of the voxels), with the rescaling applied."""
        from ._objects import to_nibabel

        return to_nibabel(self)
