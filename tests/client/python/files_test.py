# SPDX-License-Identifier: Apache-2.0
"""NIfTI, NRRD and MetaImage: what is written is read, by us and by nibabel; a hostile file is refused."""
import gzip
import os
import struct
import zlib

import numpy as np
import pytest

import intrawarp as iw
from intrawarp import Image

SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha")
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")


def some_image(dtype="int16", *, left_handed=False, rescale=None, seed=1):
    random = np.random.default_rng(seed)
    direction, _ = np.linalg.qr(random.normal(size=(3, 3)))
    if (np.linalg.det(direction) < 0) != left_handed:
        direction[:, 2] *= -1
    voxels = (random.normal(size=(4, 5, 6)) * 50 + 100).astype(dtype)
    return Image(
        voxels,
        axes="zyx",
        space="LPS",
        spacing_xyz=(0.5, 1.25, 3.0),
        origin_xyz=(-10.5, 20.25, -300.0),
        direction_xyz=direction,
        rescale=rescale,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left_handed", [False, True])
def test_round_trip(tmp_path, suffix, dtype, left_handed):
    image = some_image(dtype, left_handed=left_handed)
    image.write(tmp_path / f"a{suffix}")
    back = Image.read(tmp_path / f"a{suffix}")
    assert back.dtype == image.dtype and (back.array == image.array).all()
    assert back.geometry.same_grid(image.geometry, 1e-5)
    assert os.listdir(tmp_path) == [f"a{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rescaling_is_in_the_values(tmp_path, suffix):
    image = some_image("int16", rescale=(0.5, -1024.0))
    image.write(tmp_path / f"a{suffix}")
    assert np.allclose(Image.read(tmp_path / f"a{suffix}").values, image.values, atol=1e-4)


def test_equal_images_make_equal_files(tmp_path):
    for suffix in SUFFIXES:
        some_image().write(tmp_path / f"a{suffix}")
        some_image().write(tmp_path / f"b{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_nibabel_reads_what_is_written(tmp_path):
    nibabel = pytest.importorskip("nibabel", reason="python3-nibabel is not installed")
    for left_handed in (False, True):
        image = some_image("float32", left_handed=left_handed)
        image.write(tmp_path / "a.nii.gz")
        loaded = nibabel.load(tmp_path / "a.nii.gz")
        assert np.allclose(loaded.get_sform(), image.affine("RAS"), atol=1e-4)
        assert np.allclose(loaded.get_qform(), image.affine("RAS"), atol=1e-4)
        assert (loaded.get_fdata().astype(np.float32) == image.array_xyz).all()


@pytest.mark.parametrize("form", ["sform", "qform", "neither", "both"])
def test_forms_of_nifti(tmp_path, form):
    nibabel = pytest.importorskip("nibabel", reason="python3-nibabel is not installed")
    image = some_image("int16", left_handed=True)
    made = nibabel.Nifti1Image(image.array_xyz, image.affine("RAS"))
    made.set_sform(image.affine("RAS"), code=1 if form in ("sform", "both") else 0)
    made.set_qform(image.affine("RAS"), code=1 if form in ("qform", "both") else 0)
    nibabel.save(made, tmp_path / "a.nii")
    back = Image.read(tmp_path / "a.nii")
    if form == "neither":  # the spacing alone is known
        assert back.geometry.origin_xyz == (0, 0, 0) and np.allclose(back.spacing_xyz, image.spacing_xyz)
        assert (back.geometry.direction_xyz == np.eye(3)).all()
    else:
        assert back.geometry.same_grid(image.geometry, 1e-4)


def test_nifti_2_and_pairs_and_big_endian(tmp_path):
    nibabel = pytest.importorskip("nibabel", reason="python3-nibabel is not installed")
    image = some_image("int16")
    made = nibabel.Nifti2Image(image.array_xyz, image.affine("RAS"))
    nibabel.save(made, tmp_path / "two.nii.gz")
    nibabel.save(nibabel.Nifti1Pair(image.array_xyz, image.affine("RAS")), tmp_path / "pair.img")
    swapped = nibabel.Nifti1Image(image.array_xyz, image.affine("RAS"), nibabel.Nifti1Header(endianness=">"))
    nibabel.save(swapped, tmp_path / "big.nii")
    for name in ("two.nii.gz", "pair.img", "pair.hdr", "big.nii"):
        back = Image.read(tmp_path / name)
        assert (back.array == image.array).all() and back.geometry.same_grid(image.geometry, 1e-4), name


NRRD = """NRRD0004
type: short
dimension: 3
{space}
sizes: 2 3 4
{directions}
endian: little
encoding: raw
{origin}

"""


def write_nrrd(
    path,
    *,
    space="space: left-posterior-superior",
    data=None,
    directions="space directions: (1,0,0) (0,2,0) (0,0,3)",
    origin="space origin: (5,6,7)",
    **replace,
):
    text = NRRD.format(space=space, directions=directions, origin=origin)
    for old, new in replace.items():
        old_line = next(line for line in text.splitlines() if line.startswith(old.replace("_", " ") + ":"))
        text = text.replace(old_line, f"{old.replace('_', ' ')}: {new}" if new is not None else "# left out")
    voxels = np.arange(24, dtype="<i2") if data is None else data
    path.write_bytes(text.encode() + (voxels if isinstance(voxels, bytes) else voxels.tobytes()))
    return path


def test_spaces_of_nrrd(tmp_path):
    for space, signs in (("left-posterior-superior", (1, 1)), ("right-anterior-superior", (-1, -1)), ("LAS", (1, -1))):
        image = Image.read(write_nrrd(tmp_path / "a.nrrd", space=f"space: {space}"))
        assert image.origin_xyz == (5 * signs[0], 6 * signs[1], 7)
        assert (image.geometry.direction_xyz == np.diag([*signs, 1])).all() and image.spacing_xyz == (1, 2, 3)
    image = Image.read(
        write_nrrd(tmp_path / "a.nrrd", space="content: x", directions="spacings: 1 2 3", origin="# none")
    )
    assert image.spacing_xyz == (1, 2, 3)


def test_detached_files_lie_in_the_same_folder(tmp_path):
    data = np.arange(24, dtype="<i2").tobytes()
    (tmp_path / "a.raw").write_bytes(data)
    header = NRRD.format(space="space: LPS", directions="spacings: 1 1 1", origin="data file: {}")
    (tmp_path / "folder").mkdir()
    for name, good in (
        ("a.raw", True),
        ("../a.raw", False),
        (str(tmp_path / "a.raw"), False),
        ("..", False),
        ("a%d.raw 1 3 1", False),
        ("LIST", False),
        ("", False),
    ):
        for where in (tmp_path, tmp_path / "folder"):
            path = where / "a.nhdr"
            path.write_text(header.format(name))
            if good and where == tmp_path:
                assert Image.read(path).array.reshape(-1)[23] == 23
            else:
                with pytest.raises((iw.FileError, FileNotFoundError)):
                    Image.read(path)
    meta = "NDims = 3\nDimSize = 2 3 4\nElementType = MET_SHORT\nElementDataFile = {}\n"
    (tmp_path / "a.mhd").write_text(meta.format("a.raw"))
    assert Image.read(tmp_path / "a.mhd").array.reshape(-1)[23] == 23
    for name in ("../secret.raw", "/etc/passwd", "a%d.raw 1 3 1", "LIST"):
        (tmp_path / "a.mhd").write_text(meta.format(name))
        with pytest.raises(iw.FileError):
            Image.read(tmp_path / "a.mhd")


@pytest.mark.parametrize(
    "change,field",
    [
        ({"type": "block"}, "type"),
        ({"type": "long long"}, "type"),
        ({"dimension": "99"}, "dimension"),
        ({"sizes": "2 3"}, "sizes"),
        ({"sizes": "2 3 0"}, "sizes"),
        ({"sizes": "2 3 99999999999"}, "sizes"),
        ({"endian": "middle"}, "endian"),
        ({"encoding": "bzip2"}, "encoding"),
        ({"encoding": "hex"}, "encoding"),
        ({"space": "space: scanner-xyz"}, "space"),
        ({"directions": "space directions: (1,0,0) (0,1,0)"}, "space directions"),
        ({"directions": "space directions: (1,0) (0,1) (1,1)"}, "space directions"),
        ({"directions": "space directions: (1,0,0) (0,nan,0) (0,0,1)"}, "space directions"),
        ({"directions": "space directions: (1,0,0) (1,1,0) (0,0,1)"}, "direction"),
        ({"directions": "space directions: none (0,1,0) (0,0,1)"}, "sizes"),
        ({"directions": "axis mins: 0 0 0"}, "axis mins"),
        ({"origin": "space origin: (1,2)"}, "space origin"),
        ({"origin": "space origin: (1e9,2,3)"}, "origin"),
        ({"origin": "measurement frame: (0,1,0) (1,0,0) (0,0,1)"}, "measurement frame"),
        ({"origin": "byte skip: -5"}, "byte skip"),
        ({"origin": "line skip: 3"}, "line skip"),
        ({"origin": "type: short"}, "header"),
        ({"origin": "nonsense"}, "header"),
        ({"data": b"short"}, "data"),
        ({"data": bytes(49)}, "data"),
    ],
)
def test_nrrd_headers_that_are_refused(tmp_path, change, field):
    with pytest.raises(iw.FileError) as caught:
        Image.read(write_nrrd(tmp_path / "a.nrrd", **change))
    assert caught.value.field == field


META = {
    "ObjectType": "Image",
    "NDims": "3",
    "BinaryData": "True",
    "CompressedData": "False",
    "DimSize": "2 3 4",
    "ElementSpacing": "1 2 3",
    "Offset": "5 6 7",
    "TransformMatrix": "0 1 0 1 0 0 0 0 1",
    "ElementType": "MET_SHORT",
    "ElementDataFile": "LOCAL",
}


def write_meta(path, data=None, **change):
    lines = [
        f"{key} = {value}"
        for key, value in {**META, **change}.items()
        if value is not None and key != "ElementDataFile"
    ]
    lines.append(f"ElementDataFile = {change.get('ElementDataFile', 'LOCAL')}")
    path.write_bytes(
        ("\n".join(lines) + "\n").encode() + (np.arange(24, dtype="<i2").tobytes() if data is None else data)
    )
    return path


def test_metaimages_matrix_states_one_axis_after_the_other(tmp_path):
    image = Image.read(write_meta(tmp_path / "a.mha", TransformMatrix="0 1 0 -1 0 0 0 0 1"))
    assert (image.geometry.direction_xyz[:, 0] == (0, 1, 0)).all()
    assert (image.geometry.direction_xyz[:, 1] == (-1, 0, 0)).all()
    assert np.allclose(image.geometry.index_to_physical([1, 1, 1]), (5 - 2, 6 + 1, 7 + 3))
    packed = zlib.compress(np.arange(24, dtype=">i2").tobytes())
    big = Image.read(write_meta(tmp_path / "b.mha", packed, CompressedData="True", BinaryDataByteOrderMSB="True"))
    assert (big.array.reshape(-1) == np.arange(24)).all()


@pytest.mark.parametrize(
    "change,field",
    [
        ({"ObjectType": "Tube"}, "ObjectType"),
        ({"NDims": "4"}, "NDims"),
        ({"NDims": None}, "NDims"),
        ({"DimSize": "2 3"}, "DimSize"),
        ({"DimSize": "2 3 -4"}, "DimSize"),
        ({"DimSize": "2 3 4.5"}, "DimSize"),
        ({"ElementSpacing": "1 0 1"}, "ElementSpacing"),
        ({"ElementSpacing": "1 inf 1"}, "ElementSpacing"),
        ({"TransformMatrix": "1 0 0 1 0 0 0 0 1"}, "direction"),
        ({"ElementType": "MET_LONG_LONG"}, "ElementType"),
        ({"ElementNumberOfChannels": "3"}, "ElementNumberOfChannels"),
        ({"BinaryData": "False"}, "BinaryData"),
        ({"BinaryData": "perhaps"}, "BinaryData"),
        ({"DistanceUnits": "inch"}, "DistanceUnits"),
        ({"HeaderSize": "-7"}, "HeaderSize"),
        ({"CompressedData": "True"}, "data"),
        ({"ElementToIntensityFunctionSlope": "0"}, "ElementToIntensityFunctionSlope"),
    ],
)
def test_metaimage_headers_that_are_refused(tmp_path, change, field):
    with pytest.raises(iw.FileError) as caught:
        Image.read(write_meta(tmp_path / "a.mha", **change))
    assert caught.value.field == field


def nifti_with(offset, form, *values):
    some = some_image()
    path_bytes = bytearray()
    from intrawarp._files import _nifti_header

    path_bytes += _nifti_header(some.geometry, "int16", None, 1) + some.array.astype("<i2").tobytes()
    struct.pack_into("<" + form, path_bytes, offset, *values)
    return bytes(path_bytes)


@pytest.mark.parametrize(
    "content,field",
    [
        (b"", "header"),
        (b"nonsense" * 100, "header"),
        (nifti_with(344, "4s", b"xxxx"), "header"),
        (nifti_with(40, "h", 9), "size"),
        (nifti_with(42, "h", -3), "size"),
        (nifti_with(42, "3h", 32767, 32767, 32767), "size"),
        (nifti_with(40, "5h", 4, 6, 5, 4, 7), "size"),
        (nifti_with(70, "h", 1792), "datatype"),
        (nifti_with(70, "h", 999), "datatype"),
        (nifti_with(72, "h", 8), "bitpix"),
        (nifti_with(108, "f", 3.5), "vox_offset"),
        (nifti_with(108, "f", -1.0), "vox_offset"),
        (nifti_with(108, "f", float("nan")), "vox_offset"),
        (nifti_with(108, "f", 1e30), "vox_offset"),
        (nifti_with(123, "B", 7), "units"),
        (nifti_with(280, "f", float("nan")), "direction"),
        (nifti_with(280, "4f", 5, 5, 5, 0), "direction"),
        (nifti_with(112, "f", float("inf")), "rescale"),
        (nifti_with(0, "i", 348) + b"x", "data"),
        (nifti_with(0, "i", 348)[:-1], "data"),
    ],
)
def test_nifti_headers_that_are_refused(tmp_path, content, field):
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(iw.FileError) as caught:
        Image.read(tmp_path / "a.nii")
    assert caught.value.field == field


def test_a_bomb_takes_no_memory(tmp_path):
    """4 GiB announced, a few kilobytes there; and a stream that unpacks to more than the header says."""
    announced = nifti_with(42, "3h", 2048, 1024, 1024)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(announced))
    with pytest.raises(iw.FileError, match="too short"):
        Image.read(tmp_path / "a.nii.gz")
    with pytest.raises(iw.FileError, match="max_bytes"):
        Image.read(tmp_path / "a.nii.gz", max_bytes=1 << 20)
    (tmp_path / "b.nii.gz").write_bytes(gzip.compress(nifti_with(0, "i", 348) + bytes(200 << 20)))
    with pytest.raises(iw.FileError, match="more bytes"):
        Image.read(tmp_path / "b.nii.gz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files_are_refused_or_read_as_images(tmp_path, suffix):
    some_image().write(tmp_path / f"a{suffix}")
    good = (tmp_path / f"a{suffix}").read_bytes()
    random = np.random.default_rng(2)
    path = tmp_path / f"b{suffix}"
    refused = 0
    for round in range(400):
        bad = bytearray(good)
        if round % 4 == 0:
            bad = bad[: random.integers(len(bad))]
        else:
            for place in random.integers(0, min(len(bad), 400), random.integers(1, 4)):
                bad[place] = random.integers(256)
        path.write_bytes(bytes(bad))
        try:
            assert Image.read(path, max_bytes=1 << 22).nbytes <= 1 << 22
        except (iw.FileError, iw.GeometryError, FileNotFoundError):
            refused += 1
    assert refused > 150


def test_what_is_no_file_of_ours(tmp_path):
    with pytest.raises(iw.FileError, match="intrawarp volume put"):
        Image.read(tmp_path)
    (tmp_path / "slice").write_bytes(bytes(128) + b"DICM" + bytes(100))
    with pytest.raises(iw.FileError, match="intrawarp volume put"):
        Image.read(tmp_path / "slice")
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(iw.FileError, match="a.txt: file: the suffix") as caught:
        Image.read(tmp_path / "a.txt")
    assert caught.value.field == "file"
    with pytest.raises(FileNotFoundError):
        Image.read(tmp_path / "none.nii")
    os.mkfifo(tmp_path / "pipe.nii")
    with pytest.raises(iw.FileError, match="regular file"):
        Image.read(tmp_path / "pipe.nii")
    with pytest.raises(iw.FileError, match="suffix"):
        some_image().write(tmp_path / "a.jpg")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.nii"
    some_image(seed=1).write(path)
    before = path.read_bytes()

    def fails(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError):
        some_image(seed=2).write(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.nii"]


def test_fields_are_written_as_others_read_them(tmp_path):
    nibabel = pytest.importorskip("nibabel", reason="python3-nibabel is not installed")
    image = some_image("float32", left_handed=True)
    values = np.random.default_rng(3).normal(size=(4, 5, 6, 3)).astype(np.float32)
    field = iw.Field(values, image.geometry, "float32")
    for suffix in SUFFIXES:
        field.write(tmp_path / f"u{suffix}")
    loaded = nibabel.load(tmp_path / "u.nii.gz")
    assert loaded.shape == (6, 5, 4, 1, 3) and loaded.header["intent_code"] == 1007
    assert (np.asarray(loaded.dataobj)[2, 3, 1, 0] == values[1, 3, 2]).all()  # LPS components, as ITK has them
    text = (tmp_path / "u.nrrd").read_bytes().split(b"\n\n")[0].decode()
    assert "kinds: vector domain domain domain" in text and "displacement field type:=resampling" in text
    with pytest.raises(iw.InvalidArgument, match="displacement"):
        iw.Field(values, image.geometry, "control").write(tmp_path / "c.nrrd")
