# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
for folder in (ROOT / "client" / "python" / "src", ROOT / "client" / "slicer" / "Intrawarp", pathlib.Path(__file__).parent):
    sys.path.insert(0, str(folder))
