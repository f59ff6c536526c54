# SPDX-License-Identifier: Apache-2.0
"""The Python packages that processing needs: grpcio and protobuf, in any version, and nothing else.

They are asked for when processing starts and never when the module is imported; SimpleITK, ITK and torch are never among
them, since another version of these would replace the one that Slicer itself uses.
"""
import importlib
import importlib.util
from typing import Any, Callable, List, Sequence, Tuple

# The module, and the package that brings it.
REQUIRED: Tuple[Tuple[str, str], ...] = (("grpc", "grpcio"), ("google.protobuf", "protobuf"))


def missing_packages(required: Sequence[Tuple[str, str]] = REQUIRED) -> List[str]:
    """The packages whose modules cannot be found. Nothing is imported."""
    missing = []
    for module, package in required:
        try:
            found = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            missing.append(package)
    return missing


def require_client(confirm: Callable[[List[str]], bool], install: Callable[[str], Any],
                   required: Sequence[Tuple[str, str]] = REQUIRED) -> Any:
    """The module intrawarp, with what it needs.

    Args:
        confirm: is asked, with the packages, before anything is installed.
        install: installs one package (slicer.packaging.pip_ensure or slicer.util.pip_install).

    Raises:
        RuntimeError: the user declined, or a package is still missing after its installation.
    """
    missing = missing_packages(required)
    if missing:
        if not confirm(missing):
            raise RuntimeError(f"intrawarp needs the Python packages {', '.join(missing)}")
        for package in missing:
            install(package)
        importlib.invalidate_caches()
        still = missing_packages(required)
        if still:
            raise RuntimeError(f"the Python packages {', '.join(still)} could not be installed")
    return importlib.import_module("intrawarp")
