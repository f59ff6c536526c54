// SPDX-License-Identifier: Apache-2.0
// The stored transforms: results of registrations with their reports, and transforms that clients brought. Each has a
// place in the ledger, since an affine transform takes no device memory.
#ifndef INTRAWARP_SERVER_STORE_TRANSFORM_STORE_H_
#define INTRAWARP_SERVER_STORE_TRANSFORM_STORE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/transform/transform.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/base/names.h"
#include "server/state/catalogue.h"
#include "server/store/replicas.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

struct StoredTransform {
  static std::string Name(absl::string_view id) { return TransformName(id); }
  static constexpr state::ObjectKind kKind = state::ObjectKind::kTransform;

  std::string id;
  std::chrono::system_clock::time_point create_time;
  // The report of the registration that made it.
  std::optional<v1::Report> report;
  // Its memory and its place. Shared by all who hold the transform's memory and may outlive it in the store.
  std::shared_ptr<Grant> reservation;
  Transform transform;
  std::optional<Expiry> expiry = std::nullopt;
  std::optional<RequestKey> request = std::nullopt;
  // The SHA-256 of everything that tells an upload from others; empty for the result of a registration.
  std::string digest{};
  // Whether the server chose the id of an upload. A transform under an id that a client wanted is that client's, which
  // may delete it at any time.
  bool id_was_chosen = false;
  std::string owner = {};
  std::shared_ptr<Replicas<StoredTransform>> replicas = std::make_shared<Replicas<StoredTransform>>();
};

using TransformStore = ResidentStore<StoredTransform>;

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_TRANSFORM_STORE_H_
