# SPDX-License-Identifier: Apache-2.0
"""A real server (INTRAWARPD names the program), and a pair of files whose deformation is known."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python" / "src"
sys.path.insert(0, str(CLIENT))

import intrawarp  # noqa: E402


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    log = open(tmp_path_factory.mktemp("server") / "log", "wb")
    server = subprocess.Popen([os.environ["INTRAWARPD"], "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"],
                              stdout=subprocess.PIPE, stderr=log)
    line = server.stdout.readline().decode()
    assert line.startswith("ready "), "the server did not start"
    yield line.split("grpc=")[1].split()[0]
    server.terminate()
    server.wait(30)
    server.stdout.close()
    log.close()


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The paths of a fixed and a moving image, and their Phantom."""
    folder = tmp_path_factory.mktemp("pair")
    phantom = intrawarp.phantom((40, 40, 32), (3.5, 3.5, 3.5))
    paths = folder / "fixed.nii.gz", folder / "moving.nii.gz"
    for path, image in zip(paths, (phantom.fixed, phantom.moving)):
        image.write(path)
    return paths[0], paths[1], phantom


@pytest.fixture()
def environment(address):
    return dict(os.environ, INTRAWARP_SERVER=address, PYTHONPATH=str(CLIENT), MPLBACKEND="Agg",
                PYTHONDONTWRITEBYTECODE="1")
