// SPDX-License-Identifier: Apache-2.0
// Requests with an id that a client chose, so that a repetition finds the first result instead of making a second one.
//
// While a request is under way its id is in a RequestTable; from then on its result knows it (RequestKey of a stored
// object) for as long as the result exists. A result is stored before its request leaves the table, so a repetition
// that enters the table sees it.
//
// A request names its inputs, and a name may be given to other content later. The fingerprint therefore holds what the
// inputs were, and a repetition whose names mean something else by now is another request. Where an input is gone, its
// name cannot be mistaken: such a repetition gets the first result.
#ifndef INTRAWARP_SERVER_STORE_REQUEST_TABLE_H_
#define INTRAWARP_SERVER_STORE_REQUEST_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

// INVALID_ARGUMENT naming `field` unless the id has at most 64 printable ASCII characters. Empty: the request has none.
absl::Status ValidateRequestId(absl::string_view id, absl::string_view field);

// SHA-256 over the method's name and the deterministic serialization of the request, in which the caller has cleared
// the request id.
std::string Fingerprint(absl::string_view method, const google::protobuf::Message& request);

// What an input of a request is: a print of its content, no input, or one that is not there.
class InputPrint {
 public:
  // The request names none.
  static InputPrint None() { return InputPrint(std::string(kBytes, '\0')); }
  // The name belongs to no object.
  static InputPrint Gone() { return InputPrint(std::string(kBytes, '\xff')); }
  // The print of something outside of the server.
  static InputPrint OfText(absl::string_view text);

  // An upload is told by its digest. What was computed here has none, and is told by its name and when it was made.
  template <typename Stored>
  static InputPrint Of(const Stored& object) {
    if (!object.digest.empty()) return OfText(absl::StrCat("digest:", object.digest));
    const int64_t made = object.create_time.time_since_epoch().count();
    return OfText(absl::StrCat("made:", OwnedKey(Stored::Name(object.id), object.owner), ":", made));
  }
  // Null: none.
  template <typename Stored>
  static InputPrint Of(const std::shared_ptr<const Stored>& object) {
    return object == nullptr ? None() : Of(*object);
  }
  // The outcome of looking for the object with this name; an empty name is none.
  template <typename Stored>
  static InputPrint Of(absl::string_view name, const absl::StatusOr<std::shared_ptr<const Stored>>& found) {
    if (name.empty()) return None();
    return found.ok() ? Of(**found) : Gone();
  }

  const std::string& bytes() const { return bytes_; }
  static constexpr size_t kBytes = 32;

 private:
  explicit InputPrint(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

// The fingerprint of a request with its inputs, always the same ones in the same order.
std::string WithInputs(std::string fingerprint, const std::vector<InputPrint>& inputs);
// Whether a request with the second fingerprint repeats the one with the first.
bool IsRepetition(absl::string_view first, absl::string_view again);

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
  if (result != nullptr && !IsRepetition(result->request->fingerprint, key.fingerprint)) return RequestIdReused();
  return result;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_REQUEST_TABLE_H_
