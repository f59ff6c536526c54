# SPDX-License-Identifier: Apache-2.0
"""A stiffness-like matrix squared on the server, and compared with SciPy.   multiply_scipy.py [SIDE]"""
import sys

import intrawarp
import scipy.sparse

side = int(sys.argv[1]) if len(sys.argv) > 1 else 64
line = scipy.sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(side, side))
eye = scipy.sparse.identity(side)
a = (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).tocsr()

with intrawarp.connect() as server:
    c = server.multiply(a, a, precision="fp64")

off = abs(c - a @ a).max()
print(f"{a.shape[0]} rows, {a.nnz} entries, product {c.nnz} entries, largest difference from SciPy {off:.1e}")
sys.exit(0 if off <= 1e-12 else 1)
