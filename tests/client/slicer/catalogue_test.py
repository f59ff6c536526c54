# SPDX-License-Identifier: Apache-2.0
"""What the scripts of Slicer's extension index check, as far as it can be checked without its network (schema 1.0.1)."""
import json
import pathlib
import re
import xml.etree.ElementTree

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "client" / "slicer"
RAW = "https://raw.githubusercontent.com/intrawarp/SlicerIntrawarp/main/"
TYPES = {"$schema": str, "category": str, "scm_url": str, "scm_revision": str, "scm_type": str, "build_dependencies": list,
         "build_subdirectory": str, "enabled": bool, "tier": int}


def cmake():
    return (FOLDER / "CMakeLists.txt").read_text()


def test_the_entry_follows_the_schema():
    entry = json.loads((FOLDER / "SlicerIntrawarp.json").read_text())
    assert entry["$schema"].endswith("slicer-extension-catalog-entry-schema-v1.0.1.json#")
    assert {"$schema", "category", "scm_url"} <= set(entry) <= set(TYPES)
    assert all(isinstance(value, TYPES[key]) for key, value in entry.items())
    assert entry["tier"] in (1, 3, 5) and entry["category"] == "Registration"
    assert re.fullmatch(r"https://[^ ]+/Slicer[^/]+\.git", entry["scm_url"])
    assert re.search(r"project\((\w+)\)", cmake())[1] == "SlicerIntrawarp", "the name of the entry's file"


def test_icon_screenshots_and_licence_are_there():
    for name, least in (("ICONURL", 1), ("SCREENSHOTURLS", 1)):
        urls = re.search(rf'set\(EXTENSION_{name} "([^"]+)"\)', cmake())[1].split()
        assert len(urls) >= least
        for url in urls:
            assert url.startswith(RAW) and (FOLDER / url[len(RAW):]).read_bytes().startswith(b"\x89PNG")
    assert "Apache License" in (FOLDER / "LICENSE.txt").read_text()
    for name in ("HOMEPAGE", "CONTRIBUTORS", "DESCRIPTION"):
        assert re.search(rf'set\(EXTENSION_{name} "[^"]+"\)', cmake()), name


def test_the_page_has_what_reviewers_ask_for():
    page = (FOLDER / "README.md").read_text()
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page):
        assert (FOLDER / picture).exists()
    for wanted in ("![", "## Module", "## Tutorial", "ample data", "## Publication", "Apache License 2.0", "nowhere else"):
        assert wanted in page, wanted


def test_every_file_is_installed():
    module = FOLDER / "Intrawarp"
    listed = (module / "CMakeLists.txt").read_text().replace("${MODULE_NAME}", "Intrawarp")
    for path in [*module.glob("*.py"), *module.glob("IntrawarpLib/*.py"), *module.glob("Resources/*/*.*")]:
        assert str(path.relative_to(module)) in listed, path


def test_the_widgets_that_the_module_uses_are_in_the_form():
    form = xml.etree.ElementTree.parse(FOLDER / "Intrawarp" / "Resources" / "UI" / "Intrawarp.ui")
    names = {each.get("name") for each in form.iter("widget")}
    used = set(re.findall(r"self\.ui\.(\w+)", (FOLDER / "Intrawarp" / "Intrawarp.py").read_text()))
    assert used and used <= names


def test_nothing_but_slicers_own_modules_is_imported_when_the_module_loads():
    """The index asks for this, and for no code at file scope."""
    allowed = {"__future__", "ctk", "importlib", "numpy", "os", "qt", "slicer", "time", "typing", "vtk", "IntrawarpLib", ""}
    for path in (FOLDER / "Intrawarp").rglob("*.py"):
        for found in re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(), re.M):
            assert found.split(".")[0] in allowed, (path, found)
