// SPDX-License-Identifier: Apache-2.0
// The one way by which bytes become an object of a store, whoever brings them: a client's upload, images that were sent
// or fetched, the state directory at a start, and a volume that had to leave its device. Each admits by ObjectClaim,
// makes by MakeObject and stores by StoreObject, or, for what was durable, by NewObject::Restore.
#ifndef INTRAWARP_SERVER_OBJECT_MAKE_OBJECT_H_
#define INTRAWARP_SERVER_OBJECT_MAKE_OBJECT_H_

#include <functional>
#include <future>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"
#include "server/object/new_object.h"
#include "server/object/upload_slabs.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {

// The bytes of an object, asked for once, on the device's thread, also when the device refuses; nullopt when nobody
// wants the object any more; then `made` is not called. Owns what the bytes lie in.
using BytesFn = std::function<std::optional<StagedUpload>()>;
// Called once on the device's thread, after the bytes have gone. The errors of NewObject::Make, and of JobQueue and
// CopyLane for work that they do not run.
using MadeFn = std::function<void(const absl::Status& made)>;

// For an object whose making is a job.
struct MakingJob {
  // Whom JobQueue::Cancel names; may be null.
  const void* owner = nullptr;
  // Asked at checkpoints; may be empty.
  CheckpointFn checkpoint = {};
};

// Makes the object on a thread of the device's: by a job of its owner's where that computes, on the copy lane
// otherwise. The caller holds its claims. `object` lives until `made` is called or `bytes` has said nullopt. Does not
// wait. The errors of JobQueue::Submit and CopyLane::Submit, after which neither function is called; WhyRefused
// (job_support.h) says them to clients.
absl::Status MakeObject(DeviceContext& device, NewObject& object, BytesFn bytes, MadeFn made, MakingJob job = {});

// The same for callers that wait: the future has what `made` would be told. A caller may go before it is ready, as long
// as `bytes` owns the object and its bytes and never says nullopt.
absl::StatusOr<std::future<absl::Status>> MakeObject(DeviceContext& device, NewObject& object, BytesFn bytes,
                                                     MakingJob job = {});

// Stores an object that was made, and tells its name, unless the same one has come meanwhile: then the answer is
// already_resident, and `reserve`, which gives what TakeReservation does, is not asked. Waits for the disk. The errors
// of NewObject::FindResident, `reserve` and NewObject::Store.
absl::StatusOr<v1::UploadResponse> StoreObject(ServerContext& context, NewObject& object,
                                               const std::function<absl::StatusOr<Grant>()>& reserve,
                                               const ObjectOrigin& origin);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OBJECT_MAKE_OBJECT_H_
