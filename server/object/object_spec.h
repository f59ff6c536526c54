// SPDX-License-Identifier: Apache-2.0
// ObjectSpec: what is known of an object before it is made, and what its making and its stay take of the ledger. Pure
// functions over plain values.
#ifndef INTRAWARP_SERVER_OBJECT_OBJECT_SPEC_H_
#define INTRAWARP_SERVER_OBJECT_OBJECT_SPEC_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// The announcements of a validated header, or the same of an object that no client uploads, whatever its kind.
struct ObjectSpec {
  std::string id;  // may be empty
  // An upload has one.
  std::string upload_id;
  // The owner, to whom the upload_id belongs.
  std::string owner;
  int64_t total_bytes = 0;
  std::string content_digest;
  // The object's `digest` (resident_store.h): a SHA-256 of all that tells it from others, the content included.
  std::string identity_digest;
  // Device memory that the object is accounted for, and the workspace of the job that makes it.
  int64_t resident_bytes = 0;
  int64_t workspace_bytes = 0;
  // Places of the object among the transforms.
  int64_t transforms = 0;
  // Host memory that the making takes beside total_bytes.
  int64_t content_bytes = 0;
  // Where the object must be made; unset: on any device.
  std::optional<int> device;
  // How long the object stays once it is stored; unset: until it is deleted.
  std::optional<std::chrono::nanoseconds> ttl;

  friend bool operator==(const ObjectSpec&, const ObjectSpec&) = default;
};

// INVALID_ARGUMENT "{field}: ...", with the fields of an upload's header, unless the id is empty or valid, the bytes
// are those that the content makes and at most `max_bytes`, and the content's digest is a SHA-256.
absl::Status CheckObjectSpec(const ObjectSpec& spec, int64_t content_bytes, int64_t max_bytes);

// All that an object on its way claims of a device: memory and place of the object, memory for its bytes until it is
// made, and the workspace of the job that makes it. Without a place among the uploads.
Claim ObjectClaim(const ObjectSpec& spec, int device);

// The part of such a grant that the object keeps once it is made.
Grant TakeReservation(Grant& grant, const ObjectSpec& spec);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OBJECT_OBJECT_SPEC_H_
