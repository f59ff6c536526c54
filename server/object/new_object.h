// SPDX-License-Identifier: Apache-2.0
// NewObject: a volume, a sparse matrix or a transform on its way into a store, from its checked description to the
// answer, whether a client uploads it, the server reads it itself or the state directory has it. NewObjectOf<Stored> is
// what the rooms of the kinds derive from.
#ifndef INTRAWARP_SERVER_OBJECT_NEW_OBJECT_H_
#define INTRAWARP_SERVER_OBJECT_NEW_OBJECT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/exec_context.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/context/server_context.h"
#include "server/object/object_spec.h"
#include "server/object/upload_slabs.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/residency.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

// A durable object has these beside its content.
struct DurableIdentity {
  std::string id;
  bool id_was_chosen = false;
  std::string digest;
  std::chrono::system_clock::time_point create_time;
  std::optional<Expiry> expiry;
  std::optional<RequestKey> request;
  // ObjectOrigin::description.
  std::string description;
  std::string owner = {};
  // For a volume.
  std::shared_ptr<Residency> residency = nullptr;
};

// Thread-compatible: one thread at a time works for an object.
class NewObject {
 public:
  virtual ~NewObject() = default;
  const ObjectSpec& spec() const { return spec_; }
  // The owner of the object to be. Once, before the other functions.
  void set_owner(const std::string& owner) { spec_.owner = owner; }

  // The answer when the object is resident; nullopt when it is not; ALREADY_EXISTS when the wanted id is another's.
  virtual absl::StatusOr<std::optional<v1::UploadResponse>> FindResident(const ServerContext& context) const = 0;
  // Checks the whole content, on the host.
  virtual absl::Status Validate(const void* data) const = 0;
  // Workspace of Make where it computes, which takes a job of the device; nullopt where it only copies.
  virtual std::optional<int64_t> JobWorkspaceBytes() const = 0;
  // Whether the bytes that were brought make the object again. Otherwise KeepMade is called once it is made.
  virtual bool keeps_bytes() const { return true; }
  // On a server that keeps its objects, of an object that is made: writes what makes it again. Waits for the disk. The
  // errors of DurableObjects::Keep.
  virtual absl::StatusOr<ObjectOrigin> KeepMade(DurableObjects& /*durable*/) {
    return absl::InternalError("the bytes that were brought are the content");
  }
  // Makes the object from the bytes, and synchronises the stream. MakeObject (make_object.h) calls it.
  virtual absl::Status Make(const ExecContext& ctx, StagedUpload& upload) = 0;
  // Stores what Make made, which takes the reservation with it. Once. Waits for the disk on a server that keeps its
  // objects.
  virtual absl::StatusOr<v1::UploadResponse> Store(ServerContext& context, Grant reservation,
                                                   const ObjectOrigin& origin) = 0;
  // The same for an object that was durable when the server stopped. ALREADY_EXISTS; DATA_LOSS for a damaged
  // description.
  virtual absl::Status Restore(ServerContext& context, Grant reservation, const DurableIdentity& identity) = 0;

 protected:
  explicit NewObject(ObjectSpec spec) : spec_(std::move(spec)) {}

 private:
  ObjectSpec spec_;
};

// The objects of a store beside those that are on their way: each takes host memory, also one without voxels or entries
// on a device.
inline constexpr int64_t kMostObjects = 65536;

// RESOURCE_EXHAUSTED (RESIDENT_MEMORY) when the store has as many objects as it may.
template <typename Store>
absl::Status CheckCount(const Store& store) {
  const int64_t count = store.size();
  if (count < kMostObjects) return absl::OkStatus();
  ErrorMetadata metadata = InUse(1, count, kMostObjects);
  metadata["resource"] = Store::Pointer::element_type::Name("");
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("the server holds ", count, " objects of this kind")),
                    v1::RESIDENT_MEMORY, metadata);
}

// The owner's resident object that makes a new one needless, null when there is none; ALREADY_EXISTS; OBJECT_DAMAGED
// for the id of a lost object; the error of CheckCount when there is none and no more fits.
template <typename Store>
auto FindSame(const Store& store, const ObjectSpec& spec) -> absl::StatusOr<typename Store::Pointer> {
  using Stored = typename Store::Pointer::element_type;
  if (spec.id.empty()) {
    auto same = store.FindByDigest(spec.identity_digest, spec.owner);
    if (same == nullptr) INTRAWARP_RETURN_IF_ERROR(CheckCount(store));
    return same;
  }
  auto same_id = store.FindOf(spec.owner, spec.id);
  if (absl::IsNotFound(same_id.status())) {
    INTRAWARP_RETURN_IF_ERROR(CheckCount(store));
    return nullptr;
  }
  if (!same_id.ok()) return same_id.status();
  if ((*same_id)->digest == spec.identity_digest) return *std::move(same_id);
  return AlreadyExists(Stored::Name(spec.id));
}

// Stores `stored` under the id that its spec wants, or under a new one.
template <typename Store, typename Stored>
absl::Status InsertNew(ServerContext& context, Store& store, const ObjectSpec& spec, const ObjectOrigin& origin,
                       const std::shared_ptr<Stored>& stored) {
  stored->id = spec.id;
  stored->owner = spec.owner;
  stored->digest = spec.identity_digest;
  stored->create_time = context.seams.system_now();
  stored->expiry = ExpiryAfter(context.seams, spec.ttl);
  if constexpr (requires { stored->residency; }) {
    if (origin.payload != nullptr) {
      stored->residency =
          std::make_shared<Residency>(DurableContent{origin.header, origin.payload->digest(), origin.payload->bytes()});
      stored->residency->SetLoaded(stored);
    }
  }
  if (!spec.id.empty()) return context.durable.Insert(store, stored, origin);
  stored->id_was_chosen = true;
  absl::Status inserted;
  do {
    stored->id = RandomId(context.seams);
    inserted = context.durable.Insert(store, stored, origin);
  } while (absl::IsAlreadyExists(inserted));
  return inserted;
}

// Makes `stored` the object that it was before the stop or the eviction.
template <typename Stored>
void Identify(const DurableIdentity& identity, const std::shared_ptr<Stored>& stored) {
  stored->id = identity.id;
  stored->owner = identity.owner;
  stored->id_was_chosen = identity.id_was_chosen;
  stored->digest = identity.digest;
  stored->create_time = identity.create_time;
  stored->expiry = identity.expiry;
  if constexpr (requires { stored->request; }) stored->request = identity.request;
  if constexpr (requires { stored->content_digest; }) {
    // A product has neither digest.
    if (identity.digest.empty()) stored->content_digest.clear();
  }
  if constexpr (requires { stored->residency; }) {
    stored->residency = identity.residency;
    if (stored->residency != nullptr) stored->residency->SetLoaded(stored);
  }
}

template <typename Stored>
ResidentStore<Stored>& StoreOf(const ServerContext& context) {
  if constexpr (std::is_same_v<Stored, StoredVolume>) {
    return context.volumes;
  } else if constexpr (std::is_same_v<Stored, StoredMatrix>) {
    return context.matrices;
  } else {
    static_assert(std::is_same_v<Stored, StoredTransform>);
    return context.transforms;
  }
}

template <typename Stored>
class NewObjectOf : public NewObject {
 public:
  // What Make made, in no store and without the members that InsertNew or Identify set. It takes the reservation with
  // it. Once. `description` is ObjectOrigin::description; DATA_LOSS when it is damaged.
  virtual absl::StatusOr<std::shared_ptr<Stored>> Take(Grant reservation, const std::string& description) = 0;

  absl::StatusOr<std::optional<v1::UploadResponse>> FindResident(const ServerContext& context) const final {
    INTRAWARP_ASSIGN_OR_RETURN(const auto resident, FindSame(StoreOf<Stored>(context), spec()));
    if (resident == nullptr) return std::nullopt;
    return Answer(*resident, /*already_resident=*/true);
  }
  absl::StatusOr<v1::UploadResponse> Store(ServerContext& context, Grant reservation,
                                           const ObjectOrigin& origin) final {
    INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Stored> stored, Take(std::move(reservation), origin.description));
    INTRAWARP_RETURN_IF_ERROR(InsertNew(context, StoreOf<Stored>(context), spec(), origin, stored));
    return Answer(*stored, /*already_resident=*/false);
  }
  absl::Status Restore(ServerContext& context, Grant reservation, const DurableIdentity& identity) final {
    INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Stored> stored,
                               Take(std::move(reservation), identity.description));
    Identify(identity, stored);
    return StoreOf<Stored>(context).Insert(stored);
  }

 protected:
  explicit NewObjectOf(ObjectSpec spec) : NewObject(std::move(spec)) {}

 private:
  // The object in an answer.
  virtual void Describe(const Stored& stored, v1::UploadResponse& answer) const = 0;

  v1::UploadResponse Answer(const Stored& stored, bool already_resident) const {
    v1::UploadResponse answer;
    Describe(stored, answer);
    answer.set_already_resident(already_resident);
    return answer;
  }
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OBJECT_NEW_OBJECT_H_
