#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of cmake/deal_units.py.    deal_units_test.py PROGRAM"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""


def units(*texts, headers=None, target="t"):
    """The indices of the sources with these texts in the units that they share, sorted."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in (headers or {}).items():
            (root / name).write_text(text)
        sources = [root / f"source{index}.cc" for index in range(len(texts))]
        for source, text in zip(sources, texts):
            source.write_text(text)
        lines = "".join(f"{target} {source}\n" for source in sources)
        output = subprocess.run([sys.executable, "-B", PROGRAM, folder], input=lines, capture_output=True, text=True,
                                check=True).stdout
        shared = {}
        for line in output.splitlines():
            name, unit, source = line.split(" ")
            assert name == target
            shared.setdefault(unit, []).append(sources.index(pathlib.Path(source)))
        return sorted(shared.values())


def unnamed(text):
    return f"namespace a {{\nnamespace {{\n{text}\n}}  // namespace\n}}  // namespace a\n"


class DealUnitsTest(unittest.TestCase):
    def test_sources_without_a_name_in_common_share_a_unit(self):
        self.assertEqual(units(unnamed("int F() { return 1; }"), unnamed("int G() { return F2(); }")), [[0, 1]])

    def test_a_single_source_has_no_unit(self):
        self.assertEqual(units("int f;\n"), [])

    def test_the_same_file_local_name_of_every_kind_separates(self):
        for text in ("int F(int x) {\n  return x;\n}", "constexpr int kF = 1;", "struct F {\n  int x;\n};", "class F : G {\n};",
                     "enum class F { kA };", "using F = int;", "template <typename T>\nT F(T x) {\n  return x;\n}",
                     "template <typename T> struct F {};", "enum { kA, F };", "constexpr double kA = G(1), F = 2;",
                     "std::map<int, G<long>> F(int x) {\n  return {};\n}", "const std::pair<int, int> F(", "MATCHER_P(F, x, \"\") { return true; }", "F g;\nint F[3];"):
            self.assertEqual(units(unnamed(text), unnamed(text), unnamed("int Other();")), [[0, 2]], text)

    def test_static_functions_and_macros_are_file_local(self):
        for text in ("static int F() { return 1; }\n", "#define F 1\n"):
            self.assertEqual(units(text, text), [], text)

    def test_a_name_that_the_other_declares_for_others_separates(self):
        for text in ("namespace a {\nint F(long x) {\n  return x;\n}\n}\n", "struct F {\n};\n", "constexpr int kG = 1, F = 2;\n"):
            self.assertEqual(units(unnamed("int F() { return 1; }"), text), [], text)
            self.assertEqual(units(text, unnamed("int F() { return 1; }")), [], text)

    def test_a_name_that_the_other_only_uses_does_not_count(self):
        for text in ("int y = F();\n", "int A::F() {\n  return F;\n}\n", "int y = x.F();\n", "// F()\n", 'auto y = "F";\n',
                     'auto y = R"(\nint F();)";\n', "struct A {\n  int F();\n};\n"):
            self.assertEqual(units(unnamed("int F() { return 1; }"), text), [[0, 1]], text)

    def test_a_name_in_a_header_that_the_other_includes_separates(self):
        headers = {"h.h": '#include "deep.h"\n', "deep.h": "struct F {};\n"}
        text = unnamed("int F() { return 1; }")
        self.assertEqual(units(text, '#include "h.h"\n', headers=headers), [])
        self.assertEqual(units('#include "deep.h"\n' + text, '#include "h.h"\n', headers=headers), [])
        self.assertEqual(units('#include "deep.h"\n' + text, "int y;\n", headers=headers), [[0, 1]])

    def test_what_is_not_at_the_margin_is_not_file_local(self):
        self.assertEqual(units(unnamed("struct G {\n  int F;\n};"), "int y = F();\n"), [[0, 1]])

    def test_sources_of_highway_stay_by_themselves(self):
        self.assertEqual(units('#include "hwy/foreach_target.h"\n', "int y;\n", "int z;\n"), [[1, 2]])

    def test_a_unit_has_a_limit_of_lines(self):
        long = "// a line\n" * 1500
        self.assertEqual(units(long, long, "int x;\n"), [[0, 2]])

    def test_the_same_sources_give_the_same_units(self):
        texts = [unnamed(f"int F{index % 3}() {{ return 1; }}") for index in range(9)]
        self.assertEqual(units(*texts), [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
        self.assertEqual(units(*texts), units(*texts))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
