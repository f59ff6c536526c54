# SPDX-License-Identifier: Apache-2.0
"""The API reference (client/python/docs): Sphinx makes it without a warning, every public name is in it, and each one
says what it is."""
import inspect
import pathlib
import re
import subprocess
import zlib

import pytest

import intrawarp
from intrawarp import aio, errors, testing

BUILD = pathlib.Path(__file__).resolve().parents[3] / "client" / "python" / "docs" / "build"


def members(cls):
    """The public methods, properties and class methods of the package's own classes above `cls`, too."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "intrawarp":
            for name, value in vars(base).items():
                if not name.startswith("_") and (callable(value) or hasattr(value, "__get__")):
                    if not inspect.ismemberdescriptor(value):  # a slot, which its class describes
                        yield name, getattr(value, "__func__", value)


def public_names():
    """Each name, and what it names."""
    for module in (intrawarp, aio, errors, testing):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing) or name == "__version__":
                continue
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                for member, value in members(thing):
                    yield f"{module.__name__}.{name}.{member}", value


def test_every_public_name_says_what_it_is():
    names = list(public_names())
    assert len(names) > 400
    assert [name for name, thing in names if not inspect.getdoc(thing)] == []


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("reference")
    done = subprocess.run([str(BUILD), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def in_inventory(reference):
    """The names that the pages have, from Sphinx's objects.inv: four lines, then compressed ones."""
    packed = (reference / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" py:")[0] for line in lines if " py:" in line}


def test_every_public_name_is_in_the_reference(reference):
    found = in_inventory(reference)
    missing = []
    for name, thing in public_names():
        module, _, rest = name.partition(".")
        # An error is described once, below intrawarp.errors, and its base's attributes there.
        if inspect.isclass(thing) and issubclass(thing, errors.IntrawarpError) and rest in errors.__all__:
            name = f"{module}.errors.{rest}"
        parts = name.split(".")
        owner = getattr(intrawarp, parts[1], None) if len(parts) == 3 else None
        if len(parts) == 3 and inspect.isclass(owner) and issubclass(owner, errors.IntrawarpError):
            name = f"intrawarp.errors.IntrawarpError.{parts[2]}"
        if len(parts) == 4 and parts[1] == "errors":
            name = f"intrawarp.errors.IntrawarpError.{parts[3]}"
        if rest == "phantom":
            name = "intrawarp.testing.phantom"
        if name not in found:
            missing.append(name)
    assert missing == []


def test_no_page_refers_to_the_network(reference):
    for page in reference.glob("*.html"):
        found = re.findall(r'(?:src|href)="(?:https?:)?//[^"]*"', page.read_text())
        assert found == [], page


def test_a_warning_fails_the_build(tmp_path):
    """The script's exit status, for a page that names what is not there."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for source in (*BUILD.parent.glob("*.rst"), BUILD):
        (docs / source.name).write_bytes(source.read_bytes())
    (docs / "build").chmod(0o755)
    conf = (BUILD.parent / "conf.py").read_text()
    sources = str(BUILD.parent.parent / "src")
    conf = conf.replace('str(pathlib.Path(__file__).resolve().parent.parent / "src")', repr(sources))
    (docs / "conf.py").write_text(conf)
    with open(docs / "handles.rst", "a") as page:
        page.write("\n.. autoclass:: intrawarp.Nothing\n")
    done = subprocess.run([str(docs / "build"), str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode != 0 and "Nothing" in done.stderr
