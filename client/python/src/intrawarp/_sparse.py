# SPDX-License-Identifier: Apache-2.0
"""Sparse matrices between scipy and the wire: CSR, int64 offsets, int32 columns, float32 or float64 values."""
from typing import Any, Dict, Tuple

import numpy as np

from . import v1
from ._options import refuse
from .errors import InternalError

_DTYPES: Dict[int, Any] = {v1.VALUE_TYPE_FLOAT32: np.dtype("<f4"), v1.VALUE_TYPE_FLOAT64: np.dtype("<f8")}


def encode(matrix: Any) -> Tuple[v1.SparseMatrixShape, memoryview]:
    """The shape and the bytes of a scipy.sparse matrix or array of any format. Duplicates are summed.

    Raises:
        InvalidArgument: not a sparse matrix, complex values, or more than 2^31 - 1 rows or columns.
    """
    if not hasattr(matrix, "tocsr"):
        raise refuse("matrix", "must be a scipy.sparse matrix or array: scipy.sparse.csr_matrix(dense) makes one")
    csr = matrix.tocsr()
    if csr is matrix:
        csr = csr.copy()
    if csr.dtype.kind not in "fiub":
        raise refuse("matrix", f"has values of the type {csr.dtype}, must be real numbers")
    csr.sum_duplicates()
    csr.sort_indices()
    rows, columns = csr.shape
    if max(rows, columns) > 2**31 - 1:
        raise refuse("matrix", "has more than 2^31 - 1 rows or columns")
    value_type = v1.VALUE_TYPE_FLOAT32 if csr.dtype in (np.float32, np.float16) else v1.VALUE_TYPE_FLOAT64
    shape = v1.SparseMatrixShape(rows=rows, columns=columns, entries=int(csr.nnz), value_type=value_type)
    data = b"".join(
        (
            np.ascontiguousarray(csr.indptr, dtype="<i8").tobytes(),
            np.ascontiguousarray(csr.indices[: csr.nnz], dtype="<i4").tobytes(),
            np.ascontiguousarray(csr.data[: csr.nnz], dtype=_DTYPES[value_type]).tobytes(),
        )
    )
    return shape, memoryview(data)


def encode_values(values: Any, entries: int) -> Tuple[int, memoryview]:
    """The value type and the bytes of new values: one for each of `entries`, in the order of a CSR's data.

    Raises:
        InvalidArgument: not one dimension, another number of values, or values that are not real numbers.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise refuse("values", "must be an array of one dimension of real numbers")
    if len(array) != entries:
        raise refuse("values", f"has {len(array)} values for a matrix of {entries} entries")
    value_type = v1.VALUE_TYPE_FLOAT32 if array.dtype in (np.float32, np.float16) else v1.VALUE_TYPE_FLOAT64
    return value_type, memoryview(np.ascontiguousarray(array, dtype=_DTYPES[value_type]).tobytes())


def decode(shape: v1.SparseMatrixShape, data: Any) -> Any:
    """A scipy.sparse.csr_matrix; InternalError for bytes that are not the CSR that the shape announces."""
    from scipy import sparse

    dtype = _DTYPES.get(shape.value_type)
    if dtype is None or min(shape.rows, shape.columns, shape.entries) < 0:
        raise InternalError("the server sent a matrix of a kind that this version does not know")
    offsets_end = 8 * (shape.rows + 1)
    columns_end = offsets_end + 4 * shape.entries
    if len(data) != columns_end + int(dtype.itemsize) * shape.entries:
        raise InternalError(f"the server sent {len(data)} bytes for a matrix of another size")
    offsets = np.frombuffer(data, "<i8", shape.rows + 1)
    columns = np.frombuffer(data, "<i4", shape.entries, offsets_end)
    values = np.frombuffer(data, dtype, shape.entries, columns_end)
    good = (
        offsets[0] == 0
        and offsets[-1] == shape.entries
        and bool((np.diff(offsets) >= 0).all())
        and (shape.entries == 0 or (int(columns.min()) >= 0 and int(columns.max()) < shape.columns))
    )
    if not good:
        raise InternalError("the server sent bytes that are not a matrix in compressed rows")
    index = np.int64 if shape.entries > 2**31 - 1 else np.int32
    return sparse.csr_matrix(
        (values, columns.astype(index, copy=False), offsets.astype(index)), shape=(shape.rows, shape.columns)
    )
