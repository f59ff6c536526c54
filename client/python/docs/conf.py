# SPDX-License-Identifier: Apache-2.0
"""Sphinx makes the API reference of the docstrings: client/python/docs/build."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "src"))

import intrawarp  # noqa: E402

project = "intrawarp"
author = "the intrawarp project"
copyright = author  # noqa: A001
version = release = intrawarp.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "alabaster"
html_theme_options = {"nosidebar": False, "page_width": "75em", "show_powered_by": False}
html_copy_source = False
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_ivar = True
napoleon_custom_sections = [("Arguments that many methods share", "params_style")]


def _code_blocks(app, what, name, thing, options, lines):
    """An indented paragraph of a module's docstring is code."""
    if what != "module":
        return
    for place in range(len(lines) - 1, 0, -1):
        if lines[place].startswith("    ") and not lines[place - 1]:
            before = next((line for line in reversed(lines[:place]) if line), "")
            if not before.startswith("    "):
                lines[place:place] = ["::", ""]


def setup(app):
    app.connect("autodoc-process-docstring", _code_blocks)
