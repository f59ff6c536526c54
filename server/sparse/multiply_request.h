// SPDX-License-Identifier: Apache-2.0
// MultiplyRequest and MultiplyTripleRequest, validated and with the matrices that they name. No gRPC here. Thread-safe
// functions.
#ifndef INTRAWARP_SERVER_SPARSE_MULTIPLY_REQUEST_H_
#define INTRAWARP_SERVER_SPARSE_MULTIPLY_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/sparse/multiply.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "server/store/matrix_store.h"

namespace intrawarp::server {

struct ProductTask {
  // C = R (op(A) B) instead of C = op(A) B.
  bool is_triple = false;
  // Null unless the request names one: a triple product then takes B transposed.
  std::shared_ptr<const StoredMatrix> r;
  std::shared_ptr<const StoredMatrix> a;
  // P of a triple product.
  std::shared_ptr<const StoredMatrix> b;
  // May be null. `options` refers to their memory.
  std::shared_ptr<const StoredMatrix> mask;
  std::shared_ptr<const StoredMatrix> addend;
  MultiplyOptions options;
  // Whether a plan that stays may serve this product, or this one's plan later ones.
  bool reuse_plan = false;
  // `options` as the report has them: resolved.
  v1::MultiplyOptions resolved;
  // The product becomes resident; the id may be empty.
  std::optional<std::string> resident_id;
  std::optional<std::chrono::nanoseconds> ttl;
};

// INVALID_ARGUMENT with the path of the field at fault in the request, NOT_FOUND, ALREADY_EXISTS. The shapes of two
// factors are left to EstimateMultiply; those of a triple product are checked here, before its first product is made.
absl::StatusOr<ProductTask> ResolveProduct(const v1::MultiplyRequest& request, const MatrixStore& matrices,
                                           const Identity& caller);
absl::StatusOr<ProductTask> ResolveProduct(const v1::MultiplyTripleRequest& request, const MatrixStore& matrices,
                                           const Identity& caller);

// The names of the matrices in a request, empty ones included, and the matrices in the same order: a request is told
// from others by them.
std::vector<std::string> InputNames(const v1::MultiplyRequest& request);
std::vector<std::string> InputNames(const v1::MultiplyTripleRequest& request);
std::vector<std::shared_ptr<const StoredMatrix>> InputsOf(const ProductTask& task);

// The options of the two products of a triple product, op(A) B and C.
MultiplyOptions FirstOptions(const ProductTask& task);
MultiplyOptions SecondOptions(const ProductTask& task);

// An error of the engine, which names an operand or an option, with that one's path in the request.
absl::Status InMultiplyRequest(const absl::Status& status);

// Device memory that turning A over may take, beyond what EstimateMultiply says: its columns, which become rows, may be
// many more than its entries.
int64_t TranspositionBytes(const ConstPatternView& a, const MultiplyOptions& options);

v1::MultiplyEstimate EstimateToProto(const MultiplyEstimate& estimate);
// At most, in all; saturates.
int64_t EstimatedBytes(const MultiplyEstimate& estimate);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_MULTIPLY_REQUEST_H_
