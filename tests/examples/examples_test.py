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


@pytest.mark.parametrize("program, frames", [("register_pair", 1), ("live_stream", 2)])
def test_the_twins_in_cpp(environment, address, pair, program, frames):
    fixed, moving, _ = pair
    done = run(environment, pathlib.Path(os.environ["EXAMPLES_CPP"]) / f"example_{program}", address, fixed,
               *[moving] * frames)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK") == frames and "expected error" in done.stdout
