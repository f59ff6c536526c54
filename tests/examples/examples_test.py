# SPDX-License-Identifier: Apache-2.0
"""Every example runs as it stands, and its answer is right."""
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import intrawarp

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def run(environment, *command, timeout=300):
    return subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, timeout=timeout)


def python(environment, script, *arguments):
    return run(environment, sys.executable, EXAMPLES / "python" / script, *arguments)


def server_is_empty(address):
    with intrawarp.connect(address) as server:
        return not server.volumes() and not server.transforms() and not server.matrices()


def test_register_pair(environment, address, pair, tmp_path):
    fixed, moving, phantom = pair
    done = python(environment, "register_pair.py", fixed, moving, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OK")
    warped = intrawarp.Image.read(tmp_path / "warped.nii.gz")
    inner = (slice(8, -8),) * 3
    before = np.abs(phantom.moving.array[inner].astype(float) - phantom.fixed.array[inner]).mean()
    after = np.abs(warped.array[inner].astype(float) - phantom.fixed.array[inner]).mean()
    assert after < 0.5 * before
    assert (tmp_path / "montage.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "field.nii.gz").stat().st_size > 1000
    assert server_is_empty(address), "what the example made is deleted"


def test_register_pair_says_review_for_unrelated_images(environment, pair, tmp_path):
    fixed, _, phantom = pair
    noise = np.random.default_rng(1).integers(-1000, 1000, phantom.fixed.array.shape).astype(np.int16)
    intrawarp.Image(noise, axes="zyx", geometry=phantom.fixed.geometry).write(tmp_path / "noise.nii.gz")
    done = python(environment, "register_pair.py", fixed, tmp_path / "noise.nii.gz", tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.startswith("REVIEW")


def test_live_stream(environment, address, pair):
    fixed, moving, _ = pair
    done = python(environment, "live_stream.py", fixed, moving, moving, fixed)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^frame \d+: (OK|REVIEW), expected error", done.stdout, re.M)) == 3, done.stdout
    assert len(re.findall(r"tip at .* from frame \d+", done.stdout)) == 3
    assert server_is_empty(address)


def test_multiply_scipy(environment):
    done = python(environment, "multiply_scipy.py", 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 rows" in done.stdout


def test_notebook(environment, address, tmp_path):
    out = tmp_path / "out.ipynb"
    done = run(environment, sys.executable, EXAMPLES / "notebook" / "execute",
               EXAMPLES / "notebook" / "first_registration.ipynb", out)
    assert done.returncode == 0, done.stderr
    cells = [cell for cell in json.loads(out.read_text())["cells"] if cell["cell_type"] == "code"]
    text = "".join("".join(output.get("text", "")) for cell in cells for output in cell["outputs"])
    assert "verdict: OK" in text
    before, after = (float(number) for number in re.search(r"before: ([\d.]+) mm, after: ([\d.]+) mm", text).groups())
    assert after < 0.3 * before
    assert sum(output["output_type"] == "display_data" for cell in cells for output in cell["outputs"]) == 2
    assert server_is_empty(address)


def test_the_notebook_in_the_tree_keeps_its_pictures():
    cells = json.loads((EXAMPLES / "notebook" / "first_registration.ipynb").read_text())["cells"]
    outputs = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]
    assert sum(output["output_type"] == "display_data" for output in outputs) == 2


def write_series(folder, image, series):
    """A CT series of one file a slice."""
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed")
    from pydicom.dataset import FileDataset, FileMetaDataset
    folder.mkdir()
    root = "2.25.3030"
    geometry = image.geometry
    for k, slice_voxels in enumerate(image.array):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
        meta.MediaStorageSOPInstanceUID = f"{root}.{series}.{k + 1}"
        meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
        file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128, is_little_endian=True, is_implicit_VR=False)
        file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        file.StudyInstanceUID, file.SeriesInstanceUID = f"{root}.1", f"{root}.{series}"
        file.FrameOfReferenceUID = f"{root}.9"
        file.PatientID, file.PatientName, file.Modality = "PHANTOM", "Phantom^One", "CT"
        file.PatientBirthDate = file.PatientSex = file.StudyID = file.AccessionNumber = ""
        file.StudyDate, file.StudyTime, file.ReferringPhysicianName = "20260101", "120000", ""
        file.SeriesNumber, file.InstanceNumber = series, k + 1
        file.Rows, file.Columns = slice_voxels.shape
        file.PixelSpacing = [geometry.spacing_xyz[1], geometry.spacing_xyz[0]]
        file.SliceThickness = geometry.spacing_xyz[2]
        file.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        file.ImagePositionPatient = [float(x) for x in geometry.index_to_physical([0, 0, k])]
        file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
        file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 1
        file.RescaleSlope, file.RescaleIntercept = 1, 0
        file.PixelData = np.ascontiguousarray(slice_voxels, dtype="<i2").tobytes()
        file.save_as(folder / f"{k:03d}.dcm", write_like_original=False)


def test_folder_to_registration_object(environment, pair, tmp_path):
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed")
    _, _, phantom = pair
    write_series(tmp_path / "fixed", phantom.fixed, 1)
    write_series(tmp_path / "moving", phantom.moving, 2)
    programs = pathlib.Path(os.environ["INTRAWARP_CLI"]).parent
    environment = dict(environment, PATH=f"{programs}:{environment['PATH']}")
    done = run(environment, EXAMPLES / "dicom" / "folder_to_registration_object", tmp_path / "fixed",
               tmp_path / "moving", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    made = pydicom.dcmread(tmp_path / "out" / "registration.dcm")
    assert made.SOPClassUID == "1.2.840.10008.5.1.4.1.1.66.3", "a Deformable Spatial Registration"
    assert made.PatientID == "PHANTOM"
    warped = sorted((tmp_path / "out" / "warped").iterdir())
    assert len(warped) == phantom.fixed.array.shape[0]


@pytest.mark.parametrize("program, frames", [("register_pair", 1), ("live_stream", 2)])
def test_the_twins_in_cpp(environment, address, pair, program, frames):
    fixed, moving, _ = pair
    done = run(environment, pathlib.Path(os.environ["EXAMPLES_CPP"]) / f"example_{program}", address, fixed,
               *[moving] * frames)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK") == frames and "expected error" in done.stdout
