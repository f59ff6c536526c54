// SPDX-License-Identifier: Apache-2.0
// Sparse matrices between the wire and the stores.
#ifndef INTRAWARP_SERVER_SPARSE_MATRIX_MESSAGES_H_
#define INTRAWARP_SERVER_SPARSE_MATRIX_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/sparse/csr.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "server/bulk/device_bytes.h"
#include "server/context/server_context.h"
#include "server/store/matrix_store.h"

namespace intrawarp::server {

v1::SparseMatrixShape ShapeToProto(const ConstPatternView& pattern, ValueType type);
v1::SparseMatrix SparseMatrixToProto(const StoredMatrix& matrix);

// Device memory that a matrix is accounted for. Of a valid shape.
int64_t MatrixResidentBytes(int64_t rows, int64_t entries, ValueType type);

// The three arrays of a matrix in the order of the wire.
DeviceBytes WireBytes(const ConstCsrView& matrix);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_MATRIX_MESSAGES_H_
