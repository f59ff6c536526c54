// SPDX-License-Identifier: Apache-2.0
// CSR matrices as bytes of the wire: the arrays of one that is sent, and MatrixReceiver, which checks a shape and the
// chunks after it and puts them into the arrays of a new one. Internal to the client library. Thread-compatible.
#ifndef INTRAWARP_CLIENT_CPP_MATRIX_RECEIVER_H_
#define INTRAWARP_CLIENT_CPP_MATRIX_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/byte_receiver.h"
#include "client/cpp/sparse_matrix.h"
#include "intrawarp/v1/common.pb.h"
#include "intrawarp/v1/sparse_matrix.pb.h"

namespace intrawarp::client {

// The arrays of a matrix in the order of the wire; they refer to it.
std::vector<absl::string_view> WireArrays(const SparseMatrix& matrix);
v1::SparseMatrixShape ShapeOf(const SparseMatrix& matrix);

class MatrixReceiver {
 public:
  // A matrix of more than `max_bytes` is refused before memory is asked for it. `to` outlives the receiver.
  MatrixReceiver(SparseMatrix* to, int64_t max_bytes) : to_(to), max_bytes_(max_bytes) {}

  // INTERNAL when the server contradicts itself, RESOURCE_EXHAUSTED beyond max_bytes.
  absl::Status Begin(const v1::SparseMatrixShape& shape, int64_t total_bytes);
  // DATA_LOSS unless everything that was announced is there and makes a matrix.
  absl::Status Finish() const;
  // As ByteReceiver's.
  absl::Status Append(const wire::ReceivedChunk& chunk) { return bytes_.Append(chunk); }
  int64_t received_bytes() const { return bytes_.received_bytes(); }

 private:
  SparseMatrix* const to_;
  const int64_t max_bytes_;
  ByteReceiver bytes_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_MATRIX_RECEIVER_H_
