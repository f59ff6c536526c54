# SPDX-License-Identifier: Apache-2.0
"""NIfTI, NRRD and MetaImage without dependencies.

Files are taken for hostile. All of a header is checked before memory is taken for the voxels, a plain file must hold
exactly the bytes that its header says, memory for a compressed one grows with the bytes that have really come out, and
a data file that a header names lies in the header's folder. Messages hold no free text of a file. What is taken and
what is refused is what io/format/nifti.h, io/format/nrrd.h and io/format/metaimage.h of the project say.
"""
import contextlib
import gzip
import math
import os
import re
import stat
import struct
import tempfile
import zlib
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ._geometry import MAX_AXIS, Geometry
from .errors import FileError, GeometryError
from .image import Image

_MAX_SKIP = 256 << 20
_STEP = 1 << 20
# Deflate packs at most 1032 bytes into one.
_MOST_DEFLATE = 1040


def _refuse(field: str, message: str) -> FileError:
    return FileError(f"{field}: {message}", fields=((field, message),))


# ---- bytes in -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open(path: str) -> Iterator[Tuple[BinaryIO, int]]:
    """A regular file and its length. A FIFO or a device is refused without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _refuse("file", "is not a regular file")
        yield file, status.st_size


def _inflate(file: BinaryIO, size: int, window: int, file_bytes: int) -> bytes:
    """`size` bytes of a zlib or gzip stream, which ends there, with its checksum compared."""
    if size // _MOST_DEFLATE > file_bytes:
        raise _refuse("data", "the file is too short for the size that its header says")
    out = bytearray()
    decoder = zlib.decompressobj(window)
    try:
        while not decoder.eof:
            source = decoder.unconsumed_tail or file.read(_STEP)
            if not source:
                raise _refuse("data", "the compressed stream is cut short")
            out += decoder.decompress(source, min(8 * _STEP, size + 1 - len(out)))
            if len(out) > size:
                raise _refuse("data", "there are more bytes than the header says")
    except zlib.error:
        raise _refuse("data", "the compressed stream is corrupt") from None
    if len(out) != size:
        raise _refuse("data", f"ends after {len(out)} of {size} bytes")
    return bytes(out)


def _plain(file: BinaryIO, offset: int, size: int, file_bytes: int, *, exact: bool = True) -> bytes:
    if file_bytes - offset < size:
        raise _refuse("data", f"ends after {max(0, file_bytes - offset)} of {size} bytes")
    if exact and file_bytes - offset > size:
        raise _refuse("data", "there are more bytes than the header says")
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise _refuse("data", f"ends after {len(data)} of {size} bytes")
    return data


def _count(sizes: Sequence[int], dtype: Any, max_bytes: int) -> int:
    total = math.prod(sizes) * int(dtype.itemsize)
    if total > max_bytes:
        raise _refuse("size", f"{total} bytes are more than max_bytes ({max_bytes})")
    return total


def _image(
    data: bytes, dtype: Any, sizes: Sequence[int], geometry: Geometry, rescale: Optional[Tuple[float, float]]
) -> Image:
    voxels = np.frombuffer(data, dtype).reshape(geometry.size_zyx)
    return Image(voxels.astype(dtype.newbyteorder("="), copy=False), axes="zyx", geometry=geometry, rescale=rescale)


def _grid(sizes: Sequence[int], columns: Any, origin: Sequence[float]) -> Geometry:
    """From one vector an index axis, LPS mm."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = columns, origin
    try:
        return Geometry.from_affine(sizes, matrix, "LPS")
    except GeometryError as error:
        field = error.field or "geometry"
        raise _refuse(field, error.message.partition(": ")[2] or error.message) from None


def read_image(path: str, max_bytes: int) -> Image:
    """An error says which file, since a call may be given two."""
    try:
        return _read_image(path, max_bytes)
    except (FileError, GeometryError) as error:
        raise type(error)(f"{path}: {error.message}", fields=error.fields) from None


def _read_image(path: str, max_bytes: int) -> Image:
    if os.path.isdir(path):
        raise _refuse(
            "file",
            "is a folder: DICOM series are read by `intrawarp volume put FOLDER` (or sent to the server's "
            "DICOM port), or give their pydicom datasets",
        )
    name = path.lower()
    for endings, read in _READERS:
        if name.endswith(endings):
            return read(path, max_bytes)
    if name.endswith((".dcm", ".ima")) or _looks_like_dicom(path):
        raise _refuse("file", "is DICOM: use `intrawarp volume put FILE`, or give its pydicom dataset")
    raise _refuse("file", "the suffix is none of .nii, .nii.gz, .hdr, .img, .nrrd, .nhdr, .mha, .mhd")


def _looks_like_dicom(path: str) -> bool:
    with _open(path) as (file, _):
        return file.read(132)[128:] == b"DICM"


# ---- NIfTI ----------------------------------------------------------------------------------------------------------

_NIFTI_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
_NIFTI_CODES = {
    "uint8": 2,
    "int16": 4,
    "int32": 8,
    "float32": 16,
    "float64": 64,
    "int8": 256,
    "uint16": 512,
    "uint32": 768,
}
_NIFTI_OTHERS = {1, 32, 128, 1024, 1280, 1536, 1792, 2048, 2304}
_NIFTI_UNITS = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}


class _Nifti:
    """The fields of a header that count, of NIfTI-1 or NIfTI-2."""

    def __init__(self, raw: bytes) -> None:
        for order in "<>":
            size = struct.unpack_from(order + "i", raw)[0] if len(raw) >= 4 else 0
            if size in (348, 540):
                break
        else:
            raise _refuse("header", "not a NIfTI file")
        if len(raw) < size:
            raise _refuse("header", f"ends after {len(raw)} of {size} bytes")
        self.order = order
        self.bytes = size
        (self._read_first if size == 348 else self._read_second)(raw)

    def _take(self, raw: bytes, form: str, offset: int) -> Any:
        values = struct.unpack_from(self.order + form, raw, offset)
        return values[0] if len(values) == 1 else values

    def _read_first(self, raw: bytes) -> None:
        take = self._take
        self.dim = take(raw, "8h", 40)
        self.intent = take(raw, "h", 68)
        self.datatype, self.bitpix = take(raw, "2h", 70)
        self.pixdim = take(raw, "8f", 76)
        self.offset, self.slope, self.inter = take(raw, "3f", 108)
        self.units = raw[123]
        self.qform, self.sform = take(raw, "2h", 252)
        self.quatern = take(raw, "6f", 256)
        self.srow = take(raw, "12f", 280)
        magic = raw[344:348]
        if magic not in (b"n+1\0", b"ni1\0"):
            raise _refuse("header", "the magic is not the one of NIfTI-1")
        self.pair = magic == b"ni1\0"

    def _read_second(self, raw: bytes) -> None:
        take = self._take
        magic = raw[4:12]
        # The end of the magic shows what a transfer as text has done to the file.
        if magic not in (b"n+2\0\r\n\x1a\n", b"ni2\0\r\n\x1a\n"):
            raise _refuse("header", "the magic is not the one of NIfTI-2")
        self.pair = magic[:3] == b"ni2"
        self.datatype, self.bitpix = take(raw, "2h", 12)
        self.dim = take(raw, "8q", 16)
        self.pixdim = take(raw, "8d", 104)
        self.offset = float(take(raw, "q", 168))
        self.slope, self.inter = take(raw, "2d", 176)
        self.qform, self.sform = take(raw, "2i", 344)
        self.quatern = take(raw, "6d", 352)
        self.srow = take(raw, "12d", 400)
        self.units = take(raw, "i", 500)
        self.intent = take(raw, "i", 504)

    def dtype(self) -> Any:
        code = _NIFTI_TYPES.get(self.datatype)
        if code is None:
            known = self.datatype in _NIFTI_OTHERS
            raise _refuse("datatype", f"{self.datatype} is not supported" if known else "is none of NIfTI's")
        dtype = np.dtype(self.order + code)
        if self.bitpix != 8 * dtype.itemsize:
            raise _refuse("bitpix", f"is {self.bitpix}, must be {8 * dtype.itemsize} for this datatype")
        return dtype

    def sizes(self) -> List[int]:
        if not 1 <= self.dim[0] <= 7:
            raise _refuse("size", "dim[0] must be 1 to 7")
        sizes = list(self.dim[1 : 1 + self.dim[0]])
        if any(each < 1 for each in sizes):
            raise _refuse("size", "every length must be above 0")
        if any(each > 1 for each in sizes[3:]):
            raise _refuse("size", "must be one volume of one time point and one value a voxel")
        sizes = (sizes + [1, 1])[:3]
        if any(each > MAX_AXIS for each in sizes):
            raise _refuse("size", f"must be at most {MAX_AXIS} voxels an axis")
        return [int(each) for each in sizes]

    def geometry(self, sizes: List[int]) -> Geometry:
        unit = _NIFTI_UNITS.get(self.units & 7)
        if unit is None:
            raise _refuse("units", f"{self.units & 7} is not a unit of length")
        spacing = []
        for axis in range(3):
            given = math.isfinite(self.pixdim[axis + 1]) and self.pixdim[axis + 1] > 0
            if not given and sizes[axis] > 1:
                raise _refuse("spacing", "must be finite and above 0")
            spacing.append(self.pixdim[axis + 1] * unit if given else 1.0)
        if self.sform > 0:
            rows = np.array(self.srow, dtype=np.float64).reshape(3, 4)
            if not np.isfinite(rows).all():
                raise _refuse("direction", "the sform is not finite")
            flip = np.array([-unit, -unit, unit])
            return _grid(sizes, flip[:, None] * rows[:, :3], list(flip * rows[:, 3]))
        if self.qform > 0:
            return self._from_quaternion(sizes, spacing, unit)
        return _grid(sizes, np.diag(spacing), (0.0, 0.0, 0.0))

    def _from_quaternion(self, sizes: List[int], spacing: List[float], unit: float) -> Geometry:
        b, c, d, x, y, z = (float(each) for each in self.quatern)
        rest = 1.0 - (b * b + c * c + d * d)
        if not rest > -1e-3 or not all(math.isfinite(each) for each in (x, y, z)):
            raise _refuse("direction", "the quaternion of the qform is not of unit length")
        a = math.sqrt(rest) if rest > 0 else 0.0
        if rest <= 0:
            scale = 1.0 / math.sqrt(1.0 - rest)
            b, c, d = b * scale, c * scale, d * scale
        rotation = np.array(
            [
                [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
                [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
                [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
            ]
        )
        if self.pixdim[0] < 0:
            rotation[:, 2] *= -1
        flip = np.array([-1.0, -1.0, 1.0])
        return _grid(sizes, flip[:, None] * rotation * np.array(spacing), list(unit * flip * np.array([x, y, z])))

    def rescale(self) -> Optional[Tuple[float, float]]:
        if self.slope == 0 or math.isnan(self.slope):
            return None
        if not (math.isfinite(self.slope) and math.isfinite(self.inter)):
            raise _refuse("rescale", "is not finite")
        return float(self.slope), float(self.inter)

    def data_offset(self) -> int:
        least = 0 if self.pair else self.bytes + 4
        if not (least <= self.offset <= _MAX_SKIP) or self.offset != math.floor(self.offset):
            raise _refuse("vox_offset", f"must be a whole number from {least} to {_MAX_SKIP}")
        return int(self.offset)


def _sibling(path: str, old: str, new: str) -> Optional[str]:
    for zipped in ("", ".gz"):
        if path.lower().endswith(old + zipped):
            return path[: len(path) - len(old) - len(zipped)] + new + path[len(path) - len(zipped) :]
    return None


def _nifti_bytes(path: str, offset: int, size: int) -> bytes:
    with _open(path) as (file, file_bytes):
        if file.read(2) != b"\x1f\x8b":
            return _plain(file, offset, size, file_bytes)
        file.seek(0)
        return _inflate(file, offset + size, zlib.MAX_WBITS | 16, file_bytes)[offset:]


def _read_nifti(path: str, max_bytes: int) -> Image:
    header_path = _sibling(path, ".img", ".hdr") or path
    with _open(header_path) as (file, _):
        head = file.read(2)
        file.seek(0)
        if head == b"\x1f\x8b":
            try:
                raw = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(file.read(4096), 544)
            except zlib.error:
                raise _refuse("header", "the compressed stream is corrupt") from None
        else:
            raw = file.read(544)
    header = _Nifti(raw)
    sizes, dtype = header.sizes(), header.dtype()
    geometry, rescale, offset = header.geometry(sizes), header.rescale(), header.data_offset()
    size = _count(sizes, dtype, max_bytes)
    data_path = header_path
    if header.pair:
        sibling = _sibling(header_path, ".hdr", ".img")
        if sibling is None:
            raise _refuse("header", "its magic says that it belongs to a .hdr and .img pair")
        data_path = sibling
    return _image(_nifti_bytes(data_path, offset, size), dtype, sizes, geometry, rescale)


def _nifti_header(geometry: Geometry, dtype: str, rescale: Optional[Tuple[float, float]], components: int) -> bytes:
    header = bytearray(352)
    nx, ny, nz = geometry.size_xyz
    matrix = geometry.affine("RAS")
    struct.pack_into("<i", header, 0, 348)
    dim = (5, nx, ny, nz, 1, components, 1, 1) if components > 1 else (3, nx, ny, nz, 1, 1, 1, 1)
    struct.pack_into("<8h", header, 40, *dim)
    struct.pack_into("<h", header, 68, 1007 if components > 1 else 0)
    struct.pack_into("<2h", header, 70, _NIFTI_CODES[dtype], 8 * np.dtype(dtype).itemsize)
    qfac, quaternion = _quaternion(matrix[:3, :3] / np.array(geometry.spacing_xyz))
    struct.pack_into("<8f", header, 76, qfac, *geometry.spacing_xyz, 1, 1, 1, 1)
    struct.pack_into("<3f", header, 108, 352, *(rescale or (1.0, 0.0)))
    header[123] = 2
    # ITK and Slicer read the sform where its code says scanner; the two state the same.
    struct.pack_into("<2h", header, 252, 1, 1)
    struct.pack_into("<6f", header, 256, *quaternion, *matrix[:3, 3])
    struct.pack_into("<12f", header, 280, *matrix[:3].reshape(-1))
    header[344:348] = b"n+1\0"
    return bytes(header)


def _quaternion(rotation: Any) -> Tuple[float, Tuple[float, float, float]]:
    """qfac, and b, c, d of the unit quaternion (a >= 0) of a direction of either hand."""
    qfac = 1.0 if np.linalg.det(rotation) > 0 else -1.0
    r = rotation * np.array([1.0, 1.0, qfac])
    # The largest of the four squares is safe to divide by.
    squares = [
        1 + r[0, 0] + r[1, 1] + r[2, 2],
        1 + r[0, 0] - r[1, 1] - r[2, 2],
        1 - r[0, 0] + r[1, 1] - r[2, 2],
        1 - r[0, 0] - r[1, 1] + r[2, 2],
    ]
    best = int(np.argmax(squares))
    s = 2.0 * math.sqrt(squares[best])
    q = [
        [s / 4, (r[2, 1] - r[1, 2]) / s, (r[0, 2] - r[2, 0]) / s, (r[1, 0] - r[0, 1]) / s],
        [(r[2, 1] - r[1, 2]) / s, s / 4, (r[0, 1] + r[1, 0]) / s, (r[0, 2] + r[2, 0]) / s],
        [(r[0, 2] - r[2, 0]) / s, (r[0, 1] + r[1, 0]) / s, s / 4, (r[1, 2] + r[2, 1]) / s],
        [(r[1, 0] - r[0, 1]) / s, (r[0, 2] + r[2, 0]) / s, (r[1, 2] + r[2, 1]) / s, s / 4],
    ][best]
    sign = -1.0 if q[0] < 0 else 1.0
    return qfac, (sign * q[1], sign * q[2], sign * q[3])


# ---- headers of text ------------------------------------------------------------------------------------------------


def _finite(text: str, field: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _refuse(field, "must be numbers") from None
    if not math.isfinite(value) or not re.fullmatch(r"[-+0-9.eE]+", text.strip()):
        raise _refuse(field, "must be finite numbers")
    return value


def _whole(text: str, field: str, low: int, high: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()) or not low <= int(text) <= high:
        raise _refuse(field, f"must be whole numbers from {low} to {high}")
    return int(text)


def _beside(path: str, name: str, field: str) -> str:
    """The path of a data file that a header names: in its own folder, by a plain name."""
    if not name or name in (".", "..") or any(each in name for each in ("/", "\\", "\0")):
        raise _refuse(field, "must be the name of a file in the same folder")
    return os.path.join(os.path.dirname(path), name)


def _head(path: str, most: int) -> Tuple[str, bool]:
    with _open(path) as (file, size):
        return file.read(most).decode("latin-1"), size <= most


# ---- NRRD -----------------------------------------------------------------------------------------------------------

_NRRD_TYPES: Dict[str, str] = {
    **dict.fromkeys(("signed char", "int8", "int8_t"), "i1"),
    **dict.fromkeys(("uchar", "unsigned char", "uint8", "uint8_t"), "u1"),
    **dict.fromkeys(("short", "short int", "signed short", "signed short int", "int16", "int16_t"), "i2"),
    **dict.fromkeys(("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"), "u2"),
    **dict.fromkeys(("int", "signed int", "int32", "int32_t"), "i4"),
    **dict.fromkeys(("uint", "unsigned int", "uint32", "uint32_t"), "u4"),
    "float": "f4",
    "double": "f8",
}
_NRRD_NAMES = {
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "float32": "float",
    "float64": "double",
}
_NRRD_SPACES = {
    "left-posterior-superior": (1, 1, 1),
    "lps": (1, 1, 1),
    "right-anterior-superior": (-1, -1, 1),
    "ras": (-1, -1, 1),
    "left-anterior-superior": (1, -1, 1),
    "las": (1, -1, 1),
}
_NRRD_UNITS = {
    "mm": 1.0,
    "millimeter": 1.0,
    "millimeters": 1.0,
    "millimetre": 1.0,
    "cm": 10.0,
    "m": 1e3,
    "um": 1e-3,
    "micron": 1e-3,
    "microns": 1e-3,
    "\xc2\xb5m": 1e-3,
    "nm": 1e-6,
}
_NRRD_ALIASES = {
    "datafile": "data file",
    "lineskip": "line skip",
    "byteskip": "byte skip",
    "axismins": "axis mins",
    "axismaxs": "axis maxs",
    "centers": "centerings",
}
_MAX_NRRD_HEADER = 1 << 20


def _nrrd_header(path: str) -> Tuple[Dict[str, str], int]:
    """The fields, and where the header ends."""
    text, whole = _head(path, _MAX_NRRD_HEADER)
    if not re.match(r"NRRD000[1-5]\r?\n", text):
        raise _refuse("header", "the magic is not one of NRRD0001 to NRRD0005")
    fields: Dict[str, str] = {}
    at = text.index("\n") + 1
    while at < len(text):
        end = text.find("\n", at)
        line = text[at : len(text) if end < 0 else end].rstrip()
        at = len(text) if end < 0 else end + 1
        if not line:
            return fields, at
        if line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise _refuse("header", "has a line without a field")
        if value.startswith("="):
            continue
        name = key.strip().lower()
        name = _NRRD_ALIASES.get(name, name)
        if name in fields:
            raise _refuse("header", "states a field twice")
        fields[name] = value.strip()
    if not whole:
        raise _refuse("header", "is longer than 1 MiB")
    return fields, at


def _nrrd_vectors(text: str, field: str, count: int, length: int) -> List[Optional[List[float]]]:
    vectors: List[Optional[List[float]]] = []
    rest = text.strip()
    while rest:
        if len(vectors) == count:
            raise _refuse(field, f"must have {count} vectors")
        if rest.lower().startswith("none"):
            vectors.append(None)
            rest = rest[4:].lstrip()
            continue
        close = rest.find(")")
        if not rest.startswith("(") or close < 0:
            raise _refuse(field, "must be vectors like (1,0,0)")
        vector = [_finite(each, field) for each in rest[1:close].split(",")]
        if len(vector) != length:
            raise _refuse(field, f"every vector must have {length} numbers")
        vectors.append(vector)
        rest = rest[close + 1 :].lstrip()
    if len(vectors) != count:
        raise _refuse(field, f"must have {count} vectors")
    return vectors


def _nrrd_unit(fields: Dict[str, str]) -> float:
    found = {word.strip('"') for word in fields.get("space units", "").split()} - {""}
    units = {_NRRD_UNITS.get(word, 0.0) for word in found}
    if not units:
        return 1.0
    if len(units) > 1 or 0.0 in units:
        raise _refuse("space units", "must be one unit of length from nm to m on all axes")
    return units.pop()


def _nrrd_grid(fields: Dict[str, str], sizes: List[int]) -> Tuple[List[int], Geometry]:
    """The lengths of the spatial axes, and their grid."""
    unit = _nrrd_unit(fields)
    signs, dimension = (1, 1, 1), 0
    if "space dimension" in fields:
        if "space" in fields:
            raise _refuse("space dimension", "must not be given beside space")
        dimension = _whole(fields["space dimension"], "space dimension", 2, 3)
    elif "space" in fields:
        known = _NRRD_SPACES.get(fields["space"].lower())
        if known is None:
            raise _refuse("space", "only left-posterior-superior, right-anterior-superior and left-anterior-superior")
        signs, dimension = known, 3
    if "axis mins" in fields or "axis maxs" in fields:
        raise _refuse("axis mins", "is not supported")
    if "measurement frame" in fields:
        frame = _nrrd_vectors(fields["measurement frame"], "measurement frame", dimension, dimension)
        if dimension == 0 or any(each is None for each in frame) or not np.allclose(np.array(frame), np.eye(dimension)):
            raise _refuse("measurement frame", "must be the identity")
    kinds = fields.get("kinds", "").lower().split()
    if kinds and len(kinds) != len(sizes):
        raise _refuse("kinds", f"must have {len(sizes)} words")
    directions: List[Optional[List[float]]] = []
    if "space directions" in fields:
        if not dimension:
            raise _refuse("space directions", "need space or space dimension")
        directions = _nrrd_vectors(fields["space directions"], "space directions", len(sizes), dimension)
    spacings = fields.get("spacings", "").split() if not directions else []
    if spacings and len(spacings) != len(sizes):
        raise _refuse("spacings", f"must have {len(sizes)} numbers")
    columns: List[List[float]] = []
    kept: List[int] = []
    for axis, length in enumerate(sizes):
        is_spatial = directions[axis] is not None if directions else not kinds or kinds[axis] in ("domain", "space")
        if not is_spatial:
            if length != 1:
                raise _refuse("sizes", "an axis without a direction has several samples: choose one of them")
            continue
        column = [0.0, 0.0, 0.0]
        if len(columns) == 3:
            raise _refuse("dimension", "must have 2 or 3 spatial axes")
        if directions:
            for row, value in enumerate(directions[axis] or []):
                column[row] = unit * signs[row] * value
        else:
            step = 1.0
            if spacings and spacings[axis].lower() != "nan":
                step = _finite(spacings[axis], "spacings")
            elif spacings and length > 1:
                raise _refuse("spacings", "nan on an axis of several samples")
            column[len(columns)] = signs[len(columns)] * step
        columns.append(column)
        kept.append(length)
    if len(columns) < 2:
        raise _refuse("dimension", "must have 2 or 3 spatial axes")
    origin = [0.0, 0.0, 0.0]
    if "space origin" in fields:
        vector = _nrrd_vectors(fields["space origin"], "space origin", 1, dimension)[0] if dimension else None
        if vector is None:
            raise _refuse("space origin", "must be a vector, and needs space or space dimension")
        for row, value in enumerate(vector):
            origin[row] = unit * signs[row] * value
    while len(columns) < 3:
        columns.append([0.0, 0.0, 0.0])
        kept.append(1)
    return kept, _grid(kept, np.array(columns).T, origin)


def _read_nrrd(path: str, max_bytes: int) -> Image:
    fields, end = _nrrd_header(path)
    code = _NRRD_TYPES.get(fields.get("type", "").lower())
    if code is None:
        raise _refuse("type", "is missing, or not supported")
    dimension = _whole(fields.get("dimension", ""), "dimension", 1, 16)
    sizes = [_whole(each, "sizes", 1, MAX_AXIS) for each in fields.get("sizes", "").split()]
    if len(sizes) != dimension:
        raise _refuse("sizes", f"must have {dimension} numbers")
    kept, geometry = _nrrd_grid(fields, sizes)
    dtype = np.dtype(code)
    if dtype.itemsize > 1:
        endian = fields.get("endian", "").lower()
        if endian not in ("little", "big"):
            raise _refuse("endian", "must be little or big")
        dtype = dtype.newbyteorder("<" if endian == "little" else ">")
    size = _count(kept, dtype, max_bytes)
    if _whole(fields.get("line skip", "0"), "line skip", 0, 1 << 30):
        raise _refuse("line skip", "is not supported")
    skip = _whole(fields.get("byte skip", "0"), "byte skip", -1, _MAX_SKIP)
    encoding = fields.get("encoding", "").lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise _refuse("encoding", "must be raw or gzip")
    data_path, offset = path, end
    if "data file" in fields:
        if "%" in fields["data file"] or fields["data file"].upper().startswith("LIST"):
            raise _refuse("data file", "samples in several files are not supported")
        data_path, offset = _beside(path, fields["data file"], "data file"), 0
    with _open(data_path) as (file, file_bytes):
        if encoding == "raw":
            offset = file_bytes - size if skip == -1 else offset + skip
            data = _plain(file, max(0, offset), size, file_bytes)
        else:
            if skip:
                raise _refuse("byte skip", "beside compressed samples is not supported")
            file.seek(offset)
            data = _inflate(file, size, zlib.MAX_WBITS | 16, file_bytes)
    return _image(data, dtype, kept, geometry, None)


# ---- MetaImage ------------------------------------------------------------------------------------------------------

_META_TYPES = {
    "MET_UCHAR": "u1",
    "MET_CHAR": "i1",
    "MET_USHORT": "u2",
    "MET_SHORT": "i2",
    "MET_UINT": "u4",
    "MET_INT": "i4",
    "MET_ULONG": "u4",
    "MET_LONG": "i4",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
_META_NAMES = {
    "uint8": "MET_UCHAR",
    "int8": "MET_CHAR",
    "uint16": "MET_USHORT",
    "int16": "MET_SHORT",
    "uint32": "MET_UINT",
    "int32": "MET_INT",
    "float32": "MET_FLOAT",
    "float64": "MET_DOUBLE",
}
_META_UNITS = {"": 1.0, "mm": 1.0, "?": 1.0, "cm": 10.0, "um": 1e-3}
_MAX_META_HEADER = 1 << 16


class _Meta:
    def __init__(self, path: str) -> None:
        text, whole = _head(path, _MAX_META_HEADER)
        self.values: Dict[str, str] = {}
        at = 0
        while at < len(text):
            end = text.find("\n", at)
            line = text[at : len(text) if end < 0 else end].strip()
            at = len(text) if end < 0 else end + 1
            if not line:
                continue
            key, equals, value = line.partition("=")
            if not equals:
                raise _refuse("header", "has a line without a key")
            key = key.strip()
            if key in self.values:
                raise _refuse("header", "states a key twice")
            self.values[key] = value.strip()
            if key == "ElementDataFile":
                self.end = at
                return
        raise _refuse("ElementDataFile", "is missing" if whole else "is not within the first 64 KiB")

    def one_of(self, *keys: str) -> str:
        return next((key for key in keys if key in self.values), keys[-1])

    def flag(self, key: str, otherwise: bool) -> bool:
        value = self.values.get(key, str(otherwise)).lower()
        if value not in ("true", "1", "t", "false", "0", "f"):
            raise _refuse(key, "must be True or False")
        return value in ("true", "1", "t")

    def numbers(self, key: str, count: int, otherwise: Sequence[float]) -> List[float]:
        if key not in self.values:
            return list(otherwise)
        numbers = [_finite(each, key) for each in self.values[key].split()]
        if len(numbers) != count:
            raise _refuse(key, f"must have {count} numbers")
        return numbers


def _read_meta(path: str, max_bytes: int) -> Image:
    header = _Meta(path)
    values = header.values
    if values.get("ObjectType", "Image") != "Image":
        raise _refuse("ObjectType", "must be Image")
    dimension = _whole(values.get("NDims", ""), "NDims", 2, 3)
    if _whole(values.get("ElementNumberOfChannels", "1"), "ElementNumberOfChannels", 1, 1 << 20) != 1:
        raise _refuse("ElementNumberOfChannels", "must be 1")
    code = _META_TYPES.get(values.get("ElementType", ""))
    if code is None:
        raise _refuse("ElementType", "is missing, or not supported")
    sizes = [_whole(each, "DimSize", 1, MAX_AXIS) for each in values.get("DimSize", "").split()]
    if len(sizes) != dimension:
        raise _refuse("DimSize", f"must have {dimension} numbers")
    unit = _META_UNITS.get(values.get("DistanceUnits", ""))
    if unit is None:
        raise _refuse("DistanceUnits", "must be um, mm or cm")
    matrix = header.numbers(
        header.one_of("TransformMatrix", "Rotation", "Orientation"),
        dimension * dimension,
        np.eye(dimension).reshape(-1).tolist(),
    )
    offset = header.numbers(header.one_of("Offset", "Position", "Origin"), dimension, [0.0] * dimension)
    spacing_key = header.one_of("ElementSpacing", "ElementSize")
    spacing = header.numbers(spacing_key, dimension, [1.0] * dimension)
    if not all(each > 0 for each in spacing):
        raise _refuse(spacing_key, "must be above 0")
    # The matrix states one axis after the other.
    columns = np.zeros((3, 3))
    columns[:dimension, :dimension] = (
        unit * (np.array(matrix).reshape(dimension, dimension) * np.array(spacing)[:, None]).T
    )
    sizes += [1] * (3 - dimension)
    geometry = _grid(sizes, columns, [unit * each for each in offset] + [0.0] * (3 - dimension))
    dtype = np.dtype(code)
    if header.flag(header.one_of("ElementByteOrderMSB", "BinaryDataByteOrderMSB"), False):
        dtype = dtype.newbyteorder(">")
    size = _count(sizes, dtype, max_bytes)
    slope = header.numbers("ElementToIntensityFunctionSlope", 1, [1.0])[0]
    inter = header.numbers("ElementToIntensityFunctionOffset", 1, [0.0])[0]
    if slope == 0:
        raise _refuse("ElementToIntensityFunctionSlope", "must not be 0")
    data = _meta_samples(path, header, size)
    return _image(data, dtype, sizes, geometry, (slope, inter))


def _meta_samples(path: str, header: _Meta, size: int) -> bytes:
    if not header.flag("BinaryData", True):
        raise _refuse("BinaryData", "samples as text are not supported")
    compressed = header.flag("CompressedData", False)
    skip = _whole(header.values.get("HeaderSize", "0"), "HeaderSize", -1, _MAX_SKIP)
    name = header.values["ElementDataFile"]
    data_path, offset = path, header.end
    if name.lower() != "local":
        if "%" in name or name.upper().startswith("LIST") or " " in name.strip():
            raise _refuse("ElementDataFile", "samples in several files are not supported")
        data_path, offset = _beside(path, name, "ElementDataFile"), 0
        if compressed and skip:
            raise _refuse("HeaderSize", "beside compressed samples is not supported")
        offset = max(0, skip)
    with _open(data_path) as (file, file_bytes):
        if not compressed:
            if skip == -1 and data_path != path:
                offset = max(0, file_bytes - size)
            return _plain(file, offset, size, file_bytes)
        file.seek(offset)
        return _inflate(file, size, zlib.MAX_WBITS | 32, file_bytes)


# ---- out ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is whole."""
    folder = os.path.dirname(path) or "."
    descriptor, temporary = tempfile.mkstemp(prefix=".intrawarp-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp's mode is for its owner alone.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _little(array: Any) -> Any:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _write_nifti(path: str, header: bytes, data: Any) -> None:
    with _replacing(path) as file:
        if not path.lower().endswith(".gz"):
            file.write(header)
            file.write(data.data)
            return
        # Without a time, the same input gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0) as zipped:
            zipped.write(header)
            zipped.write(data.data)


def _vector(values: Sequence[float]) -> str:
    return "(" + ",".join(repr(float(each)) for each in values) + ")"


def _write_nrrd(path: str, geometry: Geometry, name: str, data: Any, vectors: bool) -> None:
    columns = geometry.affine("LPS")[:3, :3].T
    directions = " ".join(_vector(each) for each in columns)
    sizes = " ".join(str(each) for each in geometry.size_xyz)
    lines = [
        "NRRD0004",
        f"type: {name}",
        f"dimension: {4 if vectors else 3}",
        "space: left-posterior-superior",
        f"sizes: {'3 ' if vectors else ''}{sizes}",
        f"space directions: {'none ' if vectors else ''}{directions}",
        f"kinds: {'vector ' if vectors else ''}domain domain domain",
        "endian: little",
        "encoding: gzip",
        f"space origin: {_vector(geometry.origin_xyz)}",
    ]
    if vectors:
        lines.append("displacement field type:=resampling")
    with _replacing(path) as file:
        file.write(("\n".join(lines) + "\n\n").encode("ascii"))
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0) as zipped:
            zipped.write(data.data)


def _write_meta(path: str, geometry: Geometry, name: str, data: Any, channels: int) -> None:
    def numbers(values: Any) -> str:
        return " ".join(repr(float(each)) for each in values)

    lines = [
        "ObjectType = Image",
        "NDims = 3",
        "BinaryData = True",
        "BinaryDataByteOrderMSB = False",
        "CompressedData = False",
        f"TransformMatrix = {numbers(geometry.direction_xyz.T.reshape(-1))}",
        f"Offset = {numbers(geometry.origin_xyz)}",
        "CenterOfRotation = 0 0 0",
        f"ElementSpacing = {numbers(geometry.spacing_xyz)}",
        f"DimSize = {' '.join(str(each) for each in geometry.size_xyz)}",
    ]
    if channels > 1:
        lines.append(f"ElementNumberOfChannels = {channels}")
    lines += [f"ElementType = {name}", "ElementDataFile = LOCAL"]
    with _replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode("ascii"))
        file.write(data.data)


def _values(image: Image) -> Any:
    """Formats that know no rescaling get the values, as float32."""
    return image.array if image.rescale is None else image.values.astype(np.float32)


def write_image(path: str, image: Image) -> None:
    name = path.lower()
    if name.endswith((".nii", ".nii.gz")):
        data = _little(image.array)
        return _write_nifti(path, _nifti_header(image.geometry, image.dtype.name, image.rescale, 1), data)
    data = _little(_values(image))
    kind = data.dtype.newbyteorder("=").name
    if name.endswith(".nrrd"):
        return _write_nrrd(path, image.geometry, _NRRD_NAMES[kind], data, False)
    if name.endswith(".mha"):
        return _write_meta(path, image.geometry, _META_NAMES[kind], data, 1)
    raise _refuse("file", "the suffix is none of .nii, .nii.gz, .nrrd, .mha")


def write_field(path: str, field: Any) -> None:
    """A dense displacement, LPS mm, as float32."""
    name = path.lower()
    array = np.asarray(field.array, dtype="<f4")
    if name.endswith((".nii", ".nii.gz")):
        # The components lie in planes.
        planes = np.ascontiguousarray(np.moveaxis(array, -1, 0))
        return _write_nifti(path, _nifti_header(field.geometry, "float32", None, 3), planes)
    data = np.ascontiguousarray(array)
    if name.endswith(".nrrd"):
        return _write_nrrd(path, field.geometry, "float", data, True)
    if name.endswith(".mha"):
        return _write_meta(path, field.geometry, "MET_FLOAT", data, 3)
    raise _refuse("file", "the suffix is none of .nii, .nii.gz, .nrrd, .mha")


_READERS: List[Tuple[Tuple[str, ...], Callable[[str, int], Image]]] = [
    ((".nii", ".nii.gz", ".hdr", ".hdr.gz", ".img", ".img.gz"), _read_nifti),
    ((".nrrd", ".nhdr"), _read_nrrd),
    ((".mha", ".mhd"), _read_meta),
]
