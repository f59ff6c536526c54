# SPDX-License-Identifier: Apache-2.0
"""The wheel: one pure file, installed in a fresh environment; the self-test; what notebooks show."""
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import intrawarp as iw
from intrawarp import _display, testing

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "client" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by pip from a copy of the sources, without a network."""
    source = tmp_path_factory.mktemp("source") / "python"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            f"--wheel-dir={out}",
            str(source),
        ],
        check=True,
        cwd=out,
    )
    return next(out.glob("*.whl"))


def test_the_wheel_is_pure_and_whole(wheel):
    assert wheel.name == f"intrawarp-{iw.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 300_000
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"intrawarp-{iw.__version__}.dist-info/METADATA").decode()
    wanted = {
        str(path.relative_to(PACKAGE / "src"))
        for path in (PACKAGE / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert wanted <= names
    assert {"intrawarp/py.typed", "intrawarp/wire.binpb", "intrawarp/v1.pyi"} <= names
    assert all(name.startswith("intrawarp") for name in names)
    needs = sorted(
        line.split(": ")[1].split()[0].split(">")[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist")
    )
    assert needs == ["grpcio", "numpy", "protobuf"]
    assert not any("<" in line or "==" in line for line in metadata.splitlines() if line.startswith("Requires-Dist"))


def test_a_fresh_environment_passes_the_self_test(wheel, tmp_path):
    """Debian's numpy, grpcio and protobuf, and nothing of the source tree."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(tmp_path / "venv")], check=True
    )
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            f"--python={python}",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
    ) if pip_knows_python() else install_by_hand(wheel, tmp_path / "venv")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with testing.FakeServer() as fake:
        made = subprocess.run(
            [str(python), "-m", "intrawarp", "selftest", fake.address],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        assert made.stdout.count("ok ") == 6 and fake.names() == []
    where = subprocess.run(
        [str(python), "-c", "import intrawarp; print(intrawarp.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(tmp_path / "venv") in where


def pip_knows_python():
    import pip

    return tuple(int(each) for each in pip.__version__.split(".")[:2]) >= (22, 3)


def install_by_hand(wheel, venv):
    folder = next((venv / "lib").glob("python3*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def run_self_test(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "intrawarp", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE / "src")},
    )


def test_the_self_test_finds_what_is_wrong():
    with testing.FakeServer() as fake:
        fake.transform = np.eye(4)  # not the truth
        made = run_self_test("selftest", fake.address)
        assert made.returncode == 1 and "FAIL  registration: largest error" in made.stdout
        fake.transform = None
        fake.rule("Frame", refuse="DEVICE_LOST")
        made = run_self_test("selftest", fake.address)
        assert made.returncode == 1 and "FAIL  session" in made.stdout and "ok    warp" in made.stdout
        fake.clear_rules()
        fake.rule("Download", corrupt=True)
        assert "FAIL  volumes" in run_self_test("selftest", fake.address).stdout
    assert run_self_test("selftest", "127.0.0.1:1").returncode == 1
    for wrong in ((), ("selftest",), ("sing",)):
        assert run_self_test(*wrong).returncode == 2
    assert iw.__version__ in run_self_test("--version").stdout


def test_html_is_escaped():
    from intrawarp import _display

    assert "<script>" not in _display.rows_html("<script>", [("<b>", "<img onerror=x>")])
    with testing.FakeServer() as fake, iw.connect(fake.address) as server:
        pair = iw.phantom((12, 12, 12))
        fake.rule("Register", review="LATE", message="<script>alert(1)</script>")
        result = server.register(pair.fixed, pair.moving)
        shown = result._repr_html_()
        assert "<script>" not in shown and "&lt;script&gt;" in shown and "REVIEW" in shown
        for thing in (server, result.fixed, pair.fixed):
            assert thing._repr_html_().startswith("<table>") and len(thing._repr_html_()) < 2000
        for link in ("http:", "https:", "src=", "href="):
            assert link not in shown


@pytest.mark.parametrize("voxel_axes", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("signs", list(itertools.product((1.0, -1.0), repeat=3)))
def test_the_montage_has_the_patients_left_on_the_right_and_the_head_up(voxel_axes, signs):
    """Each voxel holds where it lies: whatever the header's axes, the numbers grow towards the same edges."""
    direction = np.zeros((3, 3))
    for voxel, (world, sign) in enumerate(zip(voxel_axes, signs)):
        direction[world, voxel] = sign
    geometry = iw.Geometry((5, 4, 3), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), direction)
    k, j, i = np.meshgrid(np.arange(3), np.arange(4), np.arange(5), indexing="ij")
    at = geometry.index_to_physical(np.stack([i, j, k], axis=-1))
    for axis in range(3):
        view = _display.View(geometry, axis)
        plane = view.turn(_display.plane_of(at, axis, 1))
        left, right, top, bottom = view.letters
        across, down = (left, right, plane[1, 0], plane[1, -1]), (top, bottom, plane[0, 1], plane[-1, 1])
        for low, high, first, last in (across, down):
            world = next(each for each in range(3) if {low, high} == set(_display._ENDS[each]))
            grows = last[world] > first[world]
            assert grows == (high in "LPS")
        assert right in "LPS" and bottom in "LPI"


@pytest.mark.filterwarnings("default")
def test_the_montage_shows_the_planes():
    matplotlib = pytest.importorskip("matplotlib", reason="python3-matplotlib is not installed")
    matplotlib.use("Agg")
    with testing.FakeServer() as fake, iw.connect(fake.address) as server:
        pair = iw.phantom((20, 18, 16))
        result = server.register(pair.fixed, pair.moving)
        for axis, shape in (("x", (16, 18)), ("y", (16, 20)), ("z", (18, 20))):
            figure = result.plot(axis=axis, index=5)
            panels = [axes for axes in figure.axes if axes.get_title()]
            assert (
                len(panels) == 6 and panels[0].get_title() == "fixed" and result.verdict in figure._suptitle.get_text()
            )
            assert panels[0].images[0].get_array().shape == shape
            matplotlib.pyplot.close(figure)
        for bad in ({"axis": "t"}, {"index": 99}, {"index": -1}):
            with pytest.raises(iw.errors.InvalidArgument):
                result.plot(**bad)
