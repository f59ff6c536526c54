// SPDX-License-Identifier: Apache-2.0
// Sparse matrices of the caller's, on their way to and from a server. Plain values.
#ifndef INTRAWARP_CLIENT_CPP_SPARSE_MATRIX_H_
#define INTRAWARP_CLIENT_CPP_SPARSE_MATRIX_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "absl/types/span.h"
#include "engine/base/csr.h"
#include "intrawarp/v1/sparse_matrix.pb.h"

namespace intrawarp::client {

// A valid CSR of either type.
using SparseMatrix = std::variant<HostCsr<float>, HostCsr<double>>;

// One matrix to be uploaded. It is not copied; it stays valid during the call.
struct SparseMatrixUpload {
  // The wanted id; empty: the server chooses one.
  std::string id;
  const SparseMatrix* matrix = nullptr;
  // Called from the calling thread after each chunk; after a broken stream `sent` may go back.
  std::function<void(int64_t sent, int64_t total)> on_progress;
};

// New values for the pattern of a resident matrix. They are not copied; they stay valid during the call.
struct SparseMatrixValuesUpload {
  // The same as SparseMatrixUpload::id.
  std::string id;
  // "sparseMatrices/ID".
  std::string pattern;
  // One for each entry, in the order of the resident matrix's CSR.
  std::variant<absl::Span<const float>, absl::Span<const double>> values;
  std::function<void(int64_t sent, int64_t total)> on_progress;
};

using MultiplyProgressCallback = std::function<void(const v1::MultiplyProgress& progress)>;

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_SPARSE_MATRIX_H_
