// SPDX-License-Identifier: Apache-2.0
// CSR matrices as bytes of the wire: the arrays of one that is sent, and MatrixReceiver, which checks a shape and the
// chunks after it and puts them into the arrays of a new one. Internal to the client library. Thread-compatible.
#ifndef INTRAWARP_CLIENT_CPP_MATRIX_RECEIVER_H_
#define INTRAWARP_CLIENT_CPP_MATRIX_RECEIVER_H_

#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/sparse_matrix.h"
#include "intrawarp/v1/common.pb.h"
#include "intrawarp/v1/matrix.pb.h"

namespace intrawarp::client {

// The arrays of a matrix in the order of the wire; they refer to it.
std::array<absl::string_view, 3> WireArrays(const SparseMatrix& matrix);
v1::SparseMatrixShape ShapeOf(const SparseMatrix& matrix);

class MatrixReceiver {
 public:
  // A matrix of more than `max_bytes` is refused before memory is asked for it. `to` outlives the receiver.
  MatrixReceiver(SparseMatrix* to, int64_t max_bytes) : to_(to), max_bytes_(max_bytes) {}

  // INTERNAL when the server contradicts itself, RESOURCE_EXHAUSTED beyond max_bytes.
  absl::Status Begin(const v1::SparseMatrixShape& shape, int64_t total_bytes);
  // DATA_LOSS for a chunk before the header, out of order, or past the end.
  absl::Status Append(const v1::Chunk& chunk);
  // Appends the chunk of a message that is plainly the next one, and within one array, and answers whether it was; if
  // not, nothing has changed.
  bool AppendPlain(const grpc::ByteBuffer& message, int chunk_field_number);
  // DATA_LOSS unless everything that was announced is there and makes a matrix.
  absl::Status Finish() const;

 private:
  // What is left of the array that the next byte belongs to.
  absl::Span<char> Rest() const;

  SparseMatrix* const to_;
  const int64_t max_bytes_;
  bool begun_ = false;
  std::array<absl::Span<char>, 3> arrays_;
  int64_t total_bytes_ = 0;
  int64_t received_bytes_ = 0;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_MATRIX_RECEIVER_H_
