// SPDX-License-Identifier: Apache-2.0
// Which device a piece of work gets, and how the objects that it reads come to be there: they lie there, a replica of
// them does, they are copied over through pinned memory by the copy lanes of both devices, or loaded from the state
// directory. No gRPC here.
//
// A server with one device places nothing and copies nothing.
#ifndef INTRAWARP_SERVER_PLACEMENT_REPLICATION_H_
#define INTRAWARP_SERVER_PLACEMENT_REPLICATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/schedule/job_class.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"
#include "server/placement/placement.h"
#include "server/store/matrix_store.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// The objects that a piece of work reads, as the pointers that it holds of them; null ones do not count. BringTo
// exchanges the pointers.
struct Inputs {
  std::vector<std::shared_ptr<const StoredVolume>*> volumes;
  std::vector<std::shared_ptr<const StoredMatrix>*> matrices;
  std::vector<std::shared_ptr<const StoredTransform>*> transforms;
};

// The device on which an object lies.
int DeviceOf(const StoredVolume& volume);
int DeviceOf(const StoredMatrix& matrix);
int DeviceOf(const StoredTransform& transform);

// The form of the volume in the memory of `to`, which counts as a use of it; null when there is none, so that it has to
// be brought. Waits for nothing.
std::shared_ptr<const StoredVolume> FindOn(const DeviceContext& to, const std::shared_ptr<const StoredVolume>& volume);

// What placement knows of each device for a job of a class that reads `inputs` and claims `claim` beside them.
std::vector<PlacementState> PlacementStates(ServerContext& context, const Inputs& inputs, JobClass job_class,
                                            const Claim& claim, Share share);

// The device for such a job (placement.h). UNAVAILABLE (DEVICE_LOST, DEVICE_HUNG) names the device in the way when no
// device can have the inputs.
absl::StatusOr<DeviceContext*> PlaceJob(ServerContext& context, const Inputs& inputs, JobClass job_class,
                                        const Claim& claim);
// Why no device can have the inputs.
absl::Status NoUsableDevice(const ServerContext& context, const Inputs& inputs);
// The usable device with the most free room for objects, the first among equals; a device in the list of those that are
// not usable when none is.
DeviceContext& PlaceObject(ServerContext& context);

// Makes every input point to memory of `to`, then calls `done`: at once on this thread when nothing has to be copied,
// otherwise later, on a thread of a copy lane's or of loads (residency.h). The inputs' pointers must live until then.
// Copies are claimed from `share`. Errors: those of Admit and of the devices, UNAVAILABLE as for PlaceJob. Not on
// gRPC's threads' end of a call that holds a lock which `done` takes.
void BringTo(DeviceContext& to, const Inputs& inputs, Share share, std::function<void(const absl::Status&)> done);

// For Ledger::set_reclaim: drops replicas on a device that nobody uses, those used longest ago first, until `bytes` are
// freed.
void DropReplicas(const ServerContext& context, int device, int64_t bytes);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PLACEMENT_REPLICATION_H_
