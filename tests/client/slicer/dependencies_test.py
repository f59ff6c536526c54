# SPDX-License-Identifier: Apache-2.0
"""Packages are asked for when processing starts, and never the ones that Slicer brings itself."""
import pathlib
import re
import subprocess
import sys

import pytest

from IntrawarpLib import dependencies

LOGIC = pathlib.Path(dependencies.__file__).parent
ABSENT = (("package_that_is_not_there", "wanted"),)


def test_nothing_is_asked_where_all_is_there():
    module = dependencies.require_client(lambda packages: pytest.fail(f"asked for {packages}"), lambda package: None)
    assert module.__name__ == "intrawarp"


def test_a_refusal_installs_nothing():
    with pytest.raises(RuntimeError, match="wanted"):
        dependencies.require_client(lambda packages: False, lambda package: pytest.fail("installed"), ABSENT)


def test_an_installation_that_fails_is_said():
    installed = []
    with pytest.raises(RuntimeError, match="could not be installed"):
        dependencies.require_client(lambda packages: True, installed.append, ABSENT)
    assert installed == ["wanted"]


def test_importing_the_logic_imports_neither_grpc_nor_the_client():
    code = ("import sys; sys.path[:0] = sys.argv[1:]\n"
            "from IntrawarpLib import dependencies, grid_transform, live, registration, volumes\n"
            "print([name for name in ('grpc', 'google.protobuf', 'intrawarp') if name in sys.modules])")
    seen = subprocess.run([sys.executable, "-c", code, str(LOGIC.parent)], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


def test_no_file_needs_simpleitk_itk_or_torch():
    for path in LOGIC.parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (SimpleITK|itk|torch)\b", path.read_text(), re.M), path
    packages = {package for _, package in dependencies.REQUIRED}
    assert packages == {"grpcio", "protobuf"}
