// SPDX-License-Identifier: Apache-2.0
// The sparse matrices that are resident on the device.
#ifndef INTRAWARP_SERVER_STORE_MATRIX_STORE_H_
#define INTRAWARP_SERVER_STORE_MATRIX_STORE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/sparse/csr.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "server/base/names.h"
#include "server/state/catalogue.h"
#include "server/store/replicas.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

// Member order matters: the matrix is freed before its reservation is given back.
struct StoredMatrix {
  static std::string Name(absl::string_view id) { return SparseMatrixName(id); }
  static constexpr state::ObjectKind kKind = state::ObjectKind::kSparseMatrix;

  std::string id;
  std::string owner;
  // By the server. Under an id that a client wanted, a matrix is that client's, to delete when it likes.
  bool id_was_chosen = false;
  std::string digest;          // SHA-256 over content_digest, shape and type; empty for a product
  std::string content_digest;  // SHA-256 of the uploaded bytes alone; empty for a product
  std::chrono::system_clock::time_point create_time;
  std::optional<Expiry> expiry;
  // For a product that was asked for with a request_id: the request, and the report that its repetition gets.
  std::optional<RequestKey> request;
  v1::MultiplyReport report;
  Grant reservation;
  CsrMatrix matrix;
  const std::shared_ptr<Replicas<StoredMatrix>> replicas = std::make_shared<Replicas<StoredMatrix>>();
};

using MatrixStore = ResidentStore<StoredMatrix>;

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_MATRIX_STORE_H_
