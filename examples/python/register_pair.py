# SPDX-License-Identifier: Apache-2.0
"""Registers two image files and says whether the result may be used.   register_pair.py FIXED MOVING [OUT_DIR]"""
import pathlib
import sys

import intrawarp

fixed_path, moving_path = sys.argv[1:3] if len(sys.argv) > 2 else sys.exit(__doc__)
out = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else ".")

with intrawarp.connect() as server:  # INTRAWARP_SERVER names it; at the end everything made here is deleted from it
    fixed, moving = server.put(fixed_path), server.put(moving_path)
    result = server.register(fixed, moving, progress=sys.stderr.isatty() or None)
    print(result.verdict, "; ".join(map(str, result.reasons)))
    print(f"expected error {result.expected_error_mm} mm")
    result.warped().write(out / "warped.nii.gz")
    result.field().write(out / "field.nii.gz")
    result.plot().savefig(out / "montage.png")
sys.exit(0 if result.ok else 3)
