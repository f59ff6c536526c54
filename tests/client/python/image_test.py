# SPDX-License-Identifier: Apache-2.0
"""Images: no layout, orientation or kind of object moves a voxel, and nothing is guessed."""
import itertools

import numpy as np
import pytest

import intrawarp as iw
from intrawarp import Geometry, Image

nibabel = pytest.importorskip("nibabel", reason="python3-nibabel is not installed")

SIZE = (5, 4, 3)  # x, y, z
SPACING = (0.7, 1.5, 2.25)
ORIGIN = (-11.0, 23.5, -307.25)
KEYS = {"spacing_xyz": SPACING, "origin_xyz": ORIGIN, "space": "LPS"}


def voxels(dtype=np.int16):
    """(z, y, x); every voxel has another value."""
    return np.arange(60).reshape(3, 4, 5).astype(dtype)


def rotation(seed):
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return q * np.sign(np.diag(r))


def signed_permutations():
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            matrix = np.zeros((3, 3))
            for column, (row, sign) in enumerate(zip(order, signs)):
                matrix[row, column] = sign
            yield matrix


def layouts():
    """The same voxels in every memory layout that numpy has."""
    plain = voxels()
    padded = np.zeros((6, 8, 10), np.int16)
    padded[::2, ::2, ::2] = plain
    yield "C", plain
    yield "Fortran", np.asfortranarray(plain)
    for axes in itertools.chain(*(itertools.combinations(range(3), n) for n in (1, 2, 3))):
        yield f"negative strides on {axes}", np.flip(np.flip(plain, axes).copy(), axes)
    yield "every other voxel of a larger array", padded[::2, ::2, ::2]
    yield "a transposed view", plain.transpose(2, 1, 0).copy().transpose(2, 1, 0)
    yield "big-endian", plain.astype(">i2")
    yield "read-only", np.frombuffer(plain.tobytes(), np.int16).reshape(plain.shape)


@pytest.mark.parametrize("name,array", list(layouts()), ids=[name for name, _ in layouts()])
@pytest.mark.parametrize("axes", ["".join(each) for each in itertools.permutations("xyz")])
def test_strides_never_count(name, array, axes):
    order = ["zyx".index(axis) for axis in axes]
    image = Image(array.transpose(order), axes=axes, **KEYS)
    assert image.geometry.size_xyz == SIZE
    assert (image.array == voxels()).all() and image.array.flags.c_contiguous
    assert bytes(image.buffer()) == voxels().astype("<i2").tobytes()
    assert image.array_xyz[4, 2, 1] == voxels()[1, 2, 4]


def test_no_voxel_is_copied_that_need_not_be():
    """In and out (SimpleITK's pull request 2447 and ITK's 6018 ask for this)."""
    plain = voxels()
    image = Image(plain, axes="zyx", **KEYS)
    for view in (image.array, image.array_xyz, image.values, np.asarray(image), np.frombuffer(image.buffer(), np.int16)):
        assert np.shares_memory(view, plain)
    assert np.shares_memory(Image(plain.transpose(2, 1, 0), axes="xyz", **KEYS).array, plain)
    assert not np.shares_memory(Image(np.asfortranarray(plain), axes="zyx", **KEYS).array, plain)


def test_numpys_copy_argument():
    """numpy 2 trusts what __array__ gives: a view for copy=True would let a caller write into an image."""
    image = Image(voxels(), axes="zyx", **KEYS)
    assert image.__array__(copy=False) is image.array and image.__array__() is image.array
    assert image.__array__(np.int16, copy=False) is image.array
    taken = image.__array__(copy=True)
    assert (taken == image.array).all() and not np.shares_memory(taken, image.array)
    assert not np.shares_memory(np.array(image), image.array)
    rescaled = Image(voxels(), axes="zyx", rescale=(2.0, 1.0), **KEYS)
    assert (np.asarray(rescaled) == voxels() * 2.0 + 1.0).all()
    for source, dtype in ((image, np.float32), (rescaled, None)):
        with pytest.raises(ValueError, match="without a copy"):
            source.__array__(dtype, copy=False)
        assert not np.shares_memory(source.__array__(dtype, copy=True), source.array)


@pytest.mark.parametrize(
    "missing,sentence",
    [
        ("axes", "give axes='zyx'"),
        ("space", "give space='LPS'"),
        ("spacing_xyz", "give spacing_xyz"),
        ("origin_xyz", "give origin_xyz"),
    ],
)
def test_an_array_without_geometry_or_space_is_refused(missing, sentence):
    arguments = {"axes": "zyx", **KEYS}
    del arguments[missing]
    with pytest.raises(iw.GeometryError, match=sentence) as caught:
        Image(voxels(), **arguments)
    assert caught.value.field == missing
    assert isinstance(caught.value, ValueError)


def test_a_bare_array_is_refused_wherever_it_is_given():
    for source in (voxels(), [[1, 2], [3, 4]], 5, None):
        with pytest.raises((iw.GeometryError, iw.FileError)):
            Image.of(source)


@pytest.mark.parametrize(
    "change,field",
    [
        ({"spacing_xyz": (1, 0, 1)}, "spacing"),
        ({"spacing_xyz": (1, -1, 1)}, "spacing"),
        ({"spacing_xyz": (1, np.nan, 1)}, "spacing"),
        ({"spacing_xyz": 1.0}, "spacing"),
        ({"origin_xyz": (0, 0, np.inf)}, "origin"),
        ({"origin_xyz": (1e9, 0, 0)}, "origin"),
        ({"direction_xyz": np.eye(3) * 2}, "direction"),
        ({"direction_xyz": [[1, 0.1, 0], [0, 1, 0], [0, 0, 1]]}, "direction"),
        ({"direction_xyz": np.zeros((3, 3))}, "direction"),
        ({"size_xyz": (3, 4, 5)}, "size"),
        ({"axes": "zzx"}, "axes"),
        ({"axes": "yx"}, "axes"),
        ({"axes": "tzyx"}, "axes"),
        ({"space": "RAS+"}, "space"),
        ({"space": "scanner"}, "space"),
        ({"spacing": (1, 1, 1)}, "spacing"),
        ({"affine": np.eye(4)}, "affine"),
        ({"rescale": (0, 1)}, "rescale"),
        ({"rescale": (np.nan, 1)}, "rescale"),
        ({"spacing_zyx": (1, 1, 1)}, "spacing"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(change, field):
    with pytest.raises(iw.GeometryError) as caught:
        Image(voxels(), **{"axes": "zyx", **KEYS, **change})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3, 4, 3), np.uint8),
        np.zeros(5),
        np.zeros((2, 2, 2), complex),
        np.zeros((2, 2, 2), object),
        np.array([[["a"]]]),
        np.full((2, 2, 2), 2**40),
        np.full((2, 2, 2), -(2**31) - 1),
        np.ma.masked_array(np.zeros((2, 2, 2)), True),
    ],
)
def test_arrays_that_are_no_scalar_volume_are_refused(array):
    with pytest.raises(iw.GeometryError):
        Image(array, axes="zyx", **KEYS)


@pytest.mark.parametrize(
    "given,stored",
    [
        (bool, "uint8"),
        (np.float16, "float32"),
        (np.int64, "int32"),
        (np.uint64, "int32"),
        (">f8", "float64"),
        ("<u2", "uint16"),
        (np.int8, "int8"),
    ],
)
def test_types_that_do_not_travel_become_ones_that_hold_every_value(given, stored):
    array = (voxels() % 2).astype(given)
    image = Image(array, axes="zyx", **KEYS)
    assert image.dtype.name == stored and (image.array == array).all()


def test_the_ten_keys_are_itks_and_simpleitks():
    direction = rotation(3)
    image = Image(voxels(), axes="zyx", direction_xyz=direction, **KEYS)
    assert sorted(image.keys()) == sorted(
        f"{name}_{order}" for name in ("origin", "spacing", "direction", "index", "size") for order in ("xyz", "zyx")
    )
    for name in ("origin", "spacing", "size", "index"):
        assert (image[f"{name}_xyz"] == image[f"{name}_zyx"][::-1]).all()
    assert np.allclose(image["direction_xyz"], direction)
    assert np.allclose(image["direction_zyx"], np.flip(image["direction_xyz"]))
    assert tuple(image["size_zyx"]) == image.array.shape
    for ambiguous in ("spacing", "origin", "direction", "shape"):
        with pytest.raises(KeyError, match="order of the axes"):
            image[ambiguous]


def test_keys_of_either_order_make_the_same_image():
    image = Image(voxels(), axes="zyx", direction_xyz=rotation(4), **KEYS)
    for order in ("xyz", "zyx"):
        keys = {
            f"{name}_{order}": image[f"{name}_{order}"] for name in ("origin", "spacing", "direction", "size", "index")
        }
        assert Image(voxels(), axes="zyx", space="LPS", **keys).geometry == image.geometry


def test_a_start_index_moves_the_origin():
    """26 mm were lost where it was dropped (ITK issue 6706)."""
    direction = rotation(5)
    image = Image(voxels(), axes="zyx", direction_xyz=direction, index_xyz=(10, -4, 3), **KEYS)
    expected = np.array(ORIGIN) + direction @ (np.array(SPACING) * (10, -4, 3))
    assert np.allclose(image.origin_xyz, expected)
    assert (image["index_xyz"] == 0).all()


@pytest.mark.parametrize("direction", [*signed_permutations(), rotation(1), -rotation(2)])
def test_lps_and_ras_name_the_same_place(direction):
    lps = Image(voxels(), axes="zyx", direction_xyz=direction, **KEYS)
    flip = np.diag([-1.0, -1.0, 1.0])
    ras = Image(
        voxels(),
        axes="zyx",
        space="RAS",
        spacing_xyz=SPACING,
        origin_xyz=flip @ np.array(ORIGIN),
        direction_xyz=flip @ direction,
    )
    assert ras.geometry.same_grid(lps.geometry, 1e-9)
    again = Image(voxels(), axes="zyx", affine=lps.affine("RAS"), space="RAS")
    assert again.geometry.same_grid(lps.geometry, 1e-9)
    index = np.array([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]])
    points = lps.geometry.index_to_physical(index)
    assert np.allclose(points, np.array(ORIGIN) + (index * SPACING) @ direction.T)
    assert np.allclose(lps.geometry.physical_to_index(points), index)
    assert np.allclose(lps.affine("RAS") @ [1, 2, 0.5, 1], [*(points[0] * (-1, -1, 1)), 1])


@pytest.mark.parametrize("direction", [*signed_permutations(), rotation(1), -rotation(2)])
def test_nibabel_round_trip(direction):
    image = Image(voxels(), axes="zyx", direction_xyz=direction, **KEYS)
    there = image.to_nibabel()
    assert there.shape == SIZE and there.get_fdata()[4, 2, 1] == voxels()[1, 2, 4]
    # The world of nibabel is RAS: the same voxel lies at the same place.
    world = there.affine @ [4, 2, 1, 1]
    assert np.allclose(world[:3] * (-1, -1, 1), image.geometry.index_to_physical([4, 2, 1]))
    back = Image.of(there)
    assert (back.array == image.array).all() and back.geometry.same_grid(image.geometry, 1e-6)


def test_nibabel_in_any_order_and_with_rescaling(tmp_path):
    image = Image(voxels(np.int16), axes="zyx", direction_xyz=rotation(1), rescale=(0.5, -3.0), **KEYS)
    image.write(tmp_path / "a.nii.gz")
    loaded = nibabel.load(tmp_path / "a.nii.gz")
    back = Image.of(loaded)
    assert back.dtype == np.int16 and back.rescale == (0.5, -3.0) and np.allclose(back.values, image.values)
    for code in ("RAS", "LPI", "PSR", "SAL"):
        turned = loaded.as_reoriented(
            nibabel.orientations.ornt_transform(
                nibabel.orientations.io_orientation(loaded.affine), nibabel.orientations.axcodes2ornt(code)
            )
        )
        other = Image.of(turned)
        index = np.array([[1.0, 1.0, 1.0]])
        place = other.geometry.physical_to_index(image.geometry.index_to_physical(index))[0]
        at = np.rint(place).astype(int)
        assert np.allclose(place, at, atol=1e-4)
        assert np.isclose(other.values[at[2], at[1], at[0]], image.values[1, 1, 1])


def test_nibabel_with_time_points_is_refused_and_units_count():
    data = np.zeros((4, 4, 4, 2))
    with pytest.raises(iw.GeometryError, match="time point"):
        Image.of(nibabel.Nifti1Image(data, np.eye(4)))
    metres = nibabel.Nifti1Image(voxels().T, np.diag([1e-3, 1e-3, 1e-3, 1]))
    metres.header.set_xyzt_units("meter")
    assert Image.of(metres).spacing_xyz == pytest.approx((1.0, 1.0, 1.0))
    single = nibabel.Nifti1Image(voxels().T[..., np.newaxis], np.eye(4))
    assert Image.of(single).geometry.size_xyz == SIZE


def test_a_shear_is_refused_and_rounding_is_mended():
    sheared = np.eye(4)
    sheared[0, 1] = 0.2
    with pytest.raises(iw.GeometryError, match="shear"):
        Image.of((voxels().T, sheared), axes="xyz", space="RAS")
    rounded = np.round(rotation(6), 4)
    image = Image(voxels(), axes="zyx", direction_xyz=rounded, **KEYS)
    exact = image.geometry.direction_xyz
    assert np.allclose(exact.T @ exact, np.eye(3), atol=1e-12) and np.allclose(exact, rounded, atol=1e-3)


def test_slices_have_one_voxel_in_z():
    image = Image(np.arange(12).reshape(3, 4), axes="yx", space="LPS", spacing_xyz=(0.5, 0.6), origin_xyz=(1, 2))
    assert image.geometry.size_xyz == (4, 3, 1) and image.spacing_xyz == (0.5, 0.6, 1.0)
    turned = Image(np.arange(12).reshape(3, 4).T, axes="xy", space="LPS", spacing_zyx=(0.6, 0.5), origin_xyz=(1, 2))
    assert (turned.array == image.array).all() and turned.geometry == image.geometry


class SitkImage:
    """What SimpleITK's Image can do, as far as it is asked."""

    def __init__(self, image):
        self.array = image.array
        self.geometry = image.geometry

    def GetPixelIDValue(self):
        return 2

    def GetNumberOfComponentsPerPixel(self):
        return 1

    def GetDimension(self):
        return 3

    def GetSpacing(self):
        return self.geometry.spacing_xyz

    def GetOrigin(self):
        return self.geometry.origin_xyz

    def GetDirection(self):
        return tuple(self.geometry.direction_xyz.reshape(-1))


class StandInSimpleITK:
    @staticmethod
    def GetArrayFromImage(image):
        return image.array.copy()

    @staticmethod
    def GetImageFromArray(array, isVector=False):
        made = StandInSimpleITK.Made()
        made.array = array
        return made

    class Made:
        def SetSpacing(self, value):
            self.spacing = value

        def SetOrigin(self, value):
            self.origin = value

        def SetDirection(self, value):
            self.direction = value


@pytest.mark.parametrize("direction", [rotation(1), -rotation(2), np.diag([-1.0, 1.0, -1.0])])
def test_simpleitk_both_ways(direction, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "SimpleITK", StandInSimpleITK)
    image = Image(voxels(), axes="zyx", direction_xyz=direction, **KEYS)
    back = Image.of(SitkImage(image))
    assert (back.array == image.array).all() and back.geometry.same_grid(image.geometry, 1e-9)
    made = image.to_sitk()
    assert made.spacing == image.spacing_xyz and made.origin == image.origin_xyz
    # SimpleITK takes the direction row by row.
    assert np.allclose(np.reshape(made.direction, (3, 3)), image.geometry.direction_xyz)
    assert (made.array == image.array).all()


class ItkImage(SitkImage):
    """ITK's: a region that begins elsewhere, a matrix of VNL, vectors."""

    start = (2, 3, -1)

    def __init__(self, image):
        super().__init__(image)
        self.GetPixelIDValue = None

    def __getattribute__(self, name):
        if name in ("GetPixelIDValue", "GetPixelIDTypeAsString"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __array__(self, dtype=None):
        return self.array

    def GetBufferedRegion(self):
        return self

    def GetIndex(self):
        return self.start

    def GetDirection(self):
        return self

    def GetVnlMatrix(self):
        return self

    def get(self, row, column):
        return self.geometry.direction_xyz[row, column]


def test_itk_images_begin_where_their_region_begins():
    image = Image(voxels(), axes="zyx", direction_xyz=rotation(1), **KEYS)
    taken = Image.of(ItkImage(image))
    assert np.allclose(taken.origin_xyz, image.geometry.index_to_physical(ItkImage.start))
    assert (taken.array == image.array).all()


def test_objects_bring_their_own_geometry():
    image = Image(voxels(), axes="zyx", **KEYS)
    for source in (image, image.to_nibabel()):
        with pytest.raises(iw.GeometryError, match="its own geometry"):
            Image.of(source, axes="zyx")


def dicom_series(image, **changes):
    pydicom = pytest.importorskip("pydicom", reason="python3-pydicom is not installed")
    slices = []
    for k in range(image.geometry.size_xyz[2]):
        each = pydicom.Dataset()
        each.file_meta = pydicom.dataset.FileMetaDataset()
        each.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        each.SeriesInstanceUID = "1.2.3"
        each.Rows, each.Columns = image.geometry.size_xyz[1], image.geometry.size_xyz[0]
        each.PixelSpacing = [image.spacing_xyz[1], image.spacing_xyz[0]]
        each.ImageOrientationPatient = [*image.geometry.direction_xyz[:, 0], *image.geometry.direction_xyz[:, 1]]
        each.ImagePositionPatient = list(image.geometry.index_to_physical([0, 0, k]))
        each.SamplesPerPixel, each.PhotometricInterpretation = 1, "MONOCHROME2"
        each.BitsAllocated = each.BitsStored = 16
        each.HighBit, each.PixelRepresentation = 15, 1
        each.RescaleSlope, each.RescaleIntercept = "2", "-1024"
        each.PixelData = np.ascontiguousarray(image.array[k], dtype="<i2").tobytes()
        each.is_little_endian, each.is_implicit_VR = True, False
        for name, value in changes.items():
            setattr(each, name, value(k) if callable(value) else value)
        slices.append(each)
    return slices


@pytest.mark.parametrize("direction", [np.eye(3), rotation(1), np.diag([-1.0, -1.0, 1.0])])
def test_pydicom_slices_in_any_order(direction):
    image = Image(voxels(), axes="zyx", direction_xyz=direction, **KEYS)
    slices = dicom_series(image)
    back = Image.of([slices[2], slices[0], slices[1]])
    assert back.geometry.same_grid(image.geometry, 1e-6)
    assert (back.array == image.array).all() and back.rescale == (2.0, -1024.0)


def test_pydicom_series_that_are_no_even_stack_are_refused():
    image = Image(voxels(), axes="zyx", **KEYS)
    uneven = dicom_series(image, ImagePositionPatient=lambda k: [0.0, 0.0, float(k * k)])
    doubled = dicom_series(image, ImagePositionPatient=lambda k: [0.0, 0.0, 0.0])
    tilted = dicom_series(image, ImagePositionPatient=lambda k: [0.0, 0.5 * k, 2.25 * k])
    mixed = dicom_series(image, SeriesInstanceUID=lambda k: f"1.2.{k}")
    nowhere = dicom_series(image, ImagePositionPatient=lambda k: None)
    frames = dicom_series(image, NumberOfFrames=7)
    for series in (uneven, doubled, tilted, mixed, nowhere, frames):
        with pytest.raises(iw.GeometryError):
            Image.of(series)


def test_geometry_does_not_change():
    geometry = Geometry(SIZE, SPACING, ORIGIN, rotation(1))
    with pytest.raises(AttributeError):
        geometry.spacing_xyz = (1, 1, 1)
    with pytest.raises(ValueError):
        geometry.direction_xyz[0, 0] = 2
    assert Geometry.from_proto(geometry.to_proto()) == geometry
    import pickle

    assert pickle.loads(pickle.dumps(geometry)).same_grid(geometry, 1e-12)


def test_a_grid_of_the_servers_is_checked():
    message = Geometry(SIZE, SPACING, ORIGIN).to_proto()
    del message.spacing[2]
    with pytest.raises(iw.GeometryError):
        Geometry.from_proto(message)
