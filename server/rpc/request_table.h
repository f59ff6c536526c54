// SPDX-License-Identifier: Apache-2.0
// Requests with an id that a client chose, so that a repetition finds the first result instead of making a second one.
//
// While a request is under way its id is in a RequestTable; from then on its result knows it (RequestKey of a stored
// object) for as long as the result exists. A result is stored before its request leaves the table, so a repetition
// that enters the table sees it.
#ifndef INTRAWARP_SERVER_RPC_REQUEST_TABLE_H_
#define INTRAWARP_SERVER_RPC_REQUEST_TABLE_H_

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

// INVALID_ARGUMENT naming `field` unless the id has at most 64 printable ASCII characters. Empty: the request has none.
absl::Status ValidateRequestId(absl::string_view id, absl::string_view field);

// SHA-256 over the method's name and the deterministic serialization of the request, in which the caller has cleared
// the request id.
std::string Fingerprint(absl::string_view method, const google::protobuf::Message& request);

// The place of a request in its table; leaves it when it goes. Movable; empty by default.
class RequestTicket {
 public:
  RequestTicket() = default;
  RequestTicket(class RequestTable* table, std::string id) : table_(table), id_(std::move(id)) {}
  RequestTicket(RequestTicket&& other) noexcept { *this = std::move(other); }
  RequestTicket& operator=(RequestTicket&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~RequestTicket();

 private:
  class RequestTable* table_ = nullptr;
  std::string id_;
};

// The requests of one method that are under way. Each belongs to a live stream, whose number is bounded. Thread-safe.
class RequestTable {
 public:
  // An empty ticket for an empty id. ABORTED (REQUEST_IN_PROGRESS) while a request with this key is under way,
  // ALREADY_EXISTS (REQUEST_ID_REUSED) while one with another fingerprint is.
  absl::StatusOr<RequestTicket> Enter(const RequestKey& key);
  int64_t size() const;

 private:
  friend class RequestTicket;
  void Leave(const std::string& id);

  mutable std::mutex mutex_;
  std::map<std::string, std::string> fingerprints_;  // by OwnedKey
};

absl::Status RequestIdReused();

// The stored result of the request; null when there is none. ALREADY_EXISTS (REQUEST_ID_REUSED) for the result of
// another request with its id.
template <typename Stored>
absl::StatusOr<typename ResidentStore<Stored>::Pointer> FindResult(const ResidentStore<Stored>& store,
                                                                   const RequestKey& key) {
  if (key.id.empty()) return nullptr;
  typename ResidentStore<Stored>::Pointer result = store.FindByRequest(key.id, key.owner);
  if (result != nullptr && result->request->fingerprint != key.fingerprint) return RequestIdReused();
  return result;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_REQUEST_TABLE_H_
