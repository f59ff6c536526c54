# SPDX-License-Identifier: Apache-2.0
"""Images of other packages, by what they can do rather than by their classes: none of them is imported to take one."""
import os
from typing import Any, Dict, List, Optional

import numpy as np

from ._geometry import Geometry
from .errors import GeometryError
from .image import Image


def _refuse(field: str, message: str) -> GeometryError:
    return GeometryError(f"{field}: {message}", fields=((field, message),))


def image_of(source: Any, how: Dict[str, Any]) -> Image:
    if isinstance(source, Image):
        return _without_arguments(source, how)
    if isinstance(source, (str, os.PathLike)):
        from ._files import read_image

        return _without_arguments(read_image(os.fspath(source), 4 << 30), how)
    if hasattr(source, "dataobj") and hasattr(source, "affine") and hasattr(source, "header"):
        return _without_arguments(_of_nibabel(source), how)
    if hasattr(source, "GetDirection") and hasattr(source, "GetSpacing") and hasattr(source, "GetOrigin"):
        return _without_arguments(_of_itk_like(source), how)
    if hasattr(source, "PixelData") or (
        isinstance(source, (list, tuple)) and source and all(hasattr(each, "PixelData") for each in source)
    ):
        return _without_arguments(of_datasets(source if isinstance(source, (list, tuple)) else [source]), how)
    if isinstance(source, tuple) and len(source) == 2 and np.shape(source[1]) == (4, 4):
        if how.get("affine") is not None:
            raise _refuse("affine", "is given twice")
        return Image(source[0], **{**how, "affine": source[1]})
    if isinstance(source, np.ndarray) or hasattr(source, "__array__") or hasattr(source, "__array_interface__"):
        return Image(source, **how)
    raise _refuse(
        "source",
        f"a {type(source).__name__} is none of what can be taken: an Image, a SimpleITK, ITK, nibabel or "
        "pydicom object, a path, or an array with its geometry",
    )


def _without_arguments(image: Image, how: Dict[str, Any]) -> Image:
    given = [name for name, value in how.items() if value is not None]
    if given:
        raise _refuse(given[0], "this object brings its own geometry; give none beside it, or give its array")
    return image


# ---- SimpleITK and ITK ----------------------------------------------------------------------------------------------


def _numbers(value: Any) -> List[float]:
    """Of a tuple of SimpleITK or a vector of ITK."""
    return [float(each) for each in (value if hasattr(value, "__len__") or hasattr(value, "__iter__") else [value])]


def _of_itk_like(source: Any) -> Image:
    """Physical space of ITK is LPS. The array's axes are z, y, x; the origin is that of index 0, which a region of ITK
    need not begin with."""
    if hasattr(source, "GetNumberOfComponentsPerPixel") and int(source.GetNumberOfComponentsPerPixel()) != 1:
        raise _refuse("source", "has several components a voxel: choose one, or take its magnitude")
    array, start = _itk_array(source)
    dimension = int(source.GetDimension()) if hasattr(source, "GetDimension") else array.ndim
    direction = source.GetDirection()
    if not isinstance(direction, (tuple, list)):  # ITK's matrix
        get = getattr(direction, "GetVnlMatrix", None)
        if get is not None:
            matrix = get()
            direction = [[matrix.get(r, c) for c in range(dimension)] for r in range(dimension)]
    return Image(
        array,
        axes="zyx"[3 - dimension :],
        space="LPS",
        spacing_xyz=_numbers(source.GetSpacing()),
        origin_xyz=_numbers(source.GetOrigin()),
        direction_xyz=np.asarray(direction, dtype=np.float64).reshape(dimension, dimension),
        index_xyz=start,
    )


def _itk_array(source: Any) -> Any:
    """The voxels, and the index of the first one (None for SimpleITK, whose images begin at 0)."""
    if hasattr(source, "GetPixelIDValue") or hasattr(source, "GetPixelIDTypeAsString"):
        import SimpleITK

        return SimpleITK.GetArrayFromImage(source), None
    start = None
    if hasattr(source, "GetBufferedRegion"):
        start = _numbers(source.GetBufferedRegion().GetIndex())
    interface = getattr(source, "__array__", None)
    if interface is not None:
        return np.asarray(source), start
    import itk

    return itk.array_from_image(source), start


def to_sitk(image: Image) -> Any:
    import SimpleITK

    made = SimpleITK.GetImageFromArray(np.ascontiguousarray(image.values))
    made.SetSpacing(image.geometry.spacing_xyz)
    made.SetOrigin(image.geometry.origin_xyz)
    made.SetDirection(image.geometry.direction_xyz.reshape(-1).tolist())
    return made


def to_itk(image: Image) -> Any:
    import itk

    values = image.values
    if values.dtype == np.float64 and image.dtype != np.float64:
        values = values.astype(np.float32)
    made = itk.image_from_array(np.ascontiguousarray(values))
    made.SetSpacing(image.geometry.spacing_xyz)
    made.SetOrigin(image.geometry.origin_xyz)
    made.SetDirection(np.array(image.geometry.direction_xyz))
    return made


def field_to_sitk(field: Any) -> Any:
    import SimpleITK

    made = SimpleITK.GetImageFromArray(np.ascontiguousarray(field.array, dtype=np.float64), isVector=True)
    made.SetSpacing(field.geometry.spacing_xyz)
    made.SetOrigin(field.geometry.origin_xyz)
    made.SetDirection(field.geometry.direction_xyz.reshape(-1).tolist())
    return SimpleITK.DisplacementFieldTransform(made)


# ---- nibabel --------------------------------------------------------------------------------------------------------


def _of_nibabel(source: Any) -> Image:
    """World coordinates of nibabel are RAS mm, and the array's axes are x, y, z."""
    unit = _nibabel_unit(source.header)
    stored, rescale = _nibabel_voxels(source)
    while stored.ndim > 3 and stored.shape[-1] == 1:
        stored = stored[..., 0]
    if stored.ndim > 3:
        raise _refuse("source", f"has {stored.ndim} axes: choose one time point, image.slicer[..., 0]")
    affine = np.array(source.affine, dtype=np.float64)
    affine[:3] *= unit
    if stored.ndim == 2:
        stored = stored[..., np.newaxis]
    return Image(stored, axes="xyz", space="RAS", affine=affine, rescale=rescale)


def _nibabel_unit(header: Any) -> float:
    if not hasattr(header, "get_xyzt_units"):
        return 1.0
    try:
        unit = header.get_xyzt_units()[0]
    except (KeyError, ValueError):
        raise _refuse("units", "the header names no unit of length") from None
    return {"meter": 1e3, "micron": 1e-3}.get(unit, 1.0)


def _nibabel_voxels(source: Any) -> Any:
    """The stored voxels with their rescaling, where the image is backed by a file; otherwise its values."""
    proxy = source.dataobj
    if hasattr(proxy, "get_unscaled") and hasattr(proxy, "slope"):
        slope, inter = float(proxy.slope), float(proxy.inter)
        return np.asarray(proxy.get_unscaled()), None if (slope, inter) == (1.0, 0.0) else (slope, inter)
    return np.asanyarray(proxy), None


def to_nibabel(image: Image) -> Any:
    import nibabel

    return nibabel.Nifti1Image(np.asarray(image.values).transpose(2, 1, 0), image.affine("RAS"))


# ---- pydicom --------------------------------------------------------------------------------------------------------


def of_datasets(datasets: Any) -> Image:
    """The slices of one series, as pydicom datasets, sorted along their normal. What is not a plain stack is refused:
    the reader of the command line (`intrawarp volume put FOLDER`) knows far more of DICOM."""
    first = datasets[0]
    if int(getattr(first, "NumberOfFrames", 1) or 1) != 1:
        raise _refuse("source", "is a multi-frame DICOM image: use `intrawarp volume put FILE`, which reads it")
    if int(getattr(first, "SamplesPerPixel", 1)) != 1:
        raise _refuse("source", "is a colour image")
    for name in ("ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing"):
        if any(getattr(each, name, None) is None for each in datasets):
            raise _refuse(name, "is missing in a slice, so that its place is not known")
    if len({str(each.SeriesInstanceUID) for each in datasets if hasattr(each, "SeriesInstanceUID")}) > 1:
        raise _refuse("SeriesInstanceUID", "the slices are of several series")
    rows = np.array([[float(v) for v in each.ImageOrientationPatient] for each in datasets])
    if np.abs(rows - rows[0]).max() > 1e-4 or any(
        list(each.PixelSpacing) != list(first.PixelSpacing) for each in datasets
    ):
        raise _refuse("ImageOrientationPatient", "the slices do not lie parallel on one grid")
    x, y = rows[0][:3], rows[0][3:]
    normal = np.cross(x, y)
    places = [float(np.dot(normal, [float(v) for v in each.ImagePositionPatient])) for each in datasets]
    order = sorted(range(len(datasets)), key=places.__getitem__)
    sorted_sets = [datasets[each] for each in order]
    step = _slice_step([places[each] for each in order], first)
    origins = np.array([[float(v) for v in each.ImagePositionPatient] for each in sorted_sets])
    expected = origins[0] + np.arange(len(order))[:, None] * step * normal
    if np.abs(origins - expected).max() > 0.01 * step + 1e-3:
        raise _refuse(
            "ImagePositionPatient",
            "the slices are not stacked evenly along their normal (a gantry tilt, a gap "
            "or a doubled slice): use `intrawarp volume put FOLDER`, which tells what it is",
        )
    scales = {
        (float(getattr(each, "RescaleSlope", 1)), float(getattr(each, "RescaleIntercept", 0))) for each in sorted_sets
    }
    pixels = [each.pixel_array for each in sorted_sets]
    rescale: Optional[Any] = None
    if len(scales) == 1:
        rescale = next(iter(scales))
        stack = np.stack(pixels)
    else:  # every slice has its own, as PET has
        stack = np.stack(
            [
                (plane * float(getattr(each, "RescaleSlope", 1)) + float(getattr(each, "RescaleIntercept", 0))).astype(
                    np.float32
                )
                for plane, each in zip(pixels, sorted_sets)
            ]
        )
    # PixelSpacing is the distance of the rows first, then of the columns.
    spacing = (float(first.PixelSpacing[1]), float(first.PixelSpacing[0]), step)
    geometry = Geometry(
        stack.shape[::-1], spacing, [float(each) for each in origins[0]], np.stack([x, y, normal], axis=1)
    )
    return Image(stack, axes="zyx", geometry=geometry, rescale=rescale)


def _slice_step(places: List[float], first: Any) -> float:
    if len(places) > 1:
        step = (places[-1] - places[0]) / (len(places) - 1)
        if not step > 1e-6:
            raise _refuse("ImagePositionPatient", "two slices lie at one place")
        return step
    for name in ("SpacingBetweenSlices", "SliceThickness"):
        value = getattr(first, name, None)
        if value is not None and str(value) and abs(float(value)) > 0:
            return abs(float(value))
    return 1.0
