// SPDX-License-Identifier: Apache-2.0
// MultiplyRequest, validated and with the matrices that it names. No gRPC here. Thread-safe functions.
#ifndef INTRAWARP_SERVER_SPARSE_MULTIPLY_REQUEST_H_
#define INTRAWARP_SERVER_SPARSE_MULTIPLY_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/sparse/multiply.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "server/store/matrix_store.h"

namespace intrawarp::server {

struct ProductTask {
  std::shared_ptr<const StoredMatrix> a;
  std::shared_ptr<const StoredMatrix> b;
  // May be null. `options` refers to their memory.
  std::shared_ptr<const StoredMatrix> mask;
  std::shared_ptr<const StoredMatrix> addend;
  MultiplyOptions options;
  // `options` as the report has them: resolved.
  v1::MultiplyOptions resolved;
  // The product becomes resident; the id may be empty.
  std::optional<std::string> resident_id;
  std::optional<std::chrono::nanoseconds> ttl;
};

// INVALID_ARGUMENT with the path of the field at fault in the request, NOT_FOUND, ALREADY_EXISTS. Shapes are left to
// EstimateMultiply.
absl::StatusOr<ProductTask> ResolveProduct(const v1::MultiplyRequest& request, const MatrixStore& matrices,
                                           const Identity& caller);

// An error of the engine, which names an operand or an option, with that one's path in the request.
absl::Status InMultiplyRequest(const absl::Status& status);

// Device memory that turning A over may take, beyond what EstimateMultiply says: its columns, which become rows, may be
// many more than its entries.
int64_t TranspositionBytes(const ProductTask& task);

v1::MultiplyEstimate EstimateToProto(const MultiplyEstimate& estimate);
// At most, in all; saturates.
int64_t EstimatedBytes(const MultiplyEstimate& estimate);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_MULTIPLY_REQUEST_H_
