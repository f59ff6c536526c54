// SPDX-License-Identifier: Apache-2.0
// A ServerContext with only the parts that a unit needs, so that its test links no room above it. The other parts lie
// in memory that nobody may touch: a unit that reaches for one of them crashes its test.
//
//   PartialContext parts;
//   parts.matrices = &matrices;
//   ServerContext context = parts.Make();
//
// Thread-compatible.
#ifndef INTRAWARP_TESTS_SERVER_PARTIAL_CONTEXT_H_
#define INTRAWARP_TESTS_SERVER_PARTIAL_CONTEXT_H_

#include <sys/mman.h>

#include <cstddef>

#include "server/context/server_context.h"

namespace intrawarp::server {

// Where a part would be that is not there.
template <typename Part>
Part* NoPart() {
  static void* const page =
      mmap(nullptr, size_t{1} << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return static_cast<Part*>(page);
}

// Parts that are set outlive the context.
struct PartialContext {
  DeviceSet* devices = NoPart<DeviceSet>();
  PinnedPool* pinned = NoPart<PinnedPool>();
  Ledger* ledger = NoPart<Ledger>();
  ResidentStore<StoredVolume>* volumes = NoPart<ResidentStore<StoredVolume>>();
  ResidentStore<StoredMatrix>* matrices = NoPart<ResidentStore<StoredMatrix>>();
  ResidentStore<StoredTransform>* transforms = NoPart<ResidentStore<StoredTransform>>();
  SessionStore* sessions = NoPart<SessionStore>();
  const AdmissionMetrics* admission = NoPart<const AdmissionMetrics>();
  const RegistrationMetrics* registration = NoPart<const RegistrationMetrics>();
  const ServerLimits* limits = NoPart<const ServerLimits>();
  const Seams* seams = NoPart<const Seams>();
  DurableObjects* durable = NoPart<DurableObjects>();
  OperationTable* operations = NoPart<OperationTable>();
  MessageLimits* message_limits = NoPart<MessageLimits>();

  ServerContext Make() const {
    return {.devices = *devices,
            .workers = *NoPart<WorkerPool>(),
            .receivers = *NoPart<WorkerPool>(),
            .pinned = *pinned,
            .ledger = *ledger,
            .volumes = *volumes,
            .matrices = *matrices,
            .transforms = *transforms,
            .uploads = *NoPart<UploadStore>(),
            .sessions = *sessions,
            .metrics = {.registry = *NoPart<Registry>(),
                        .admission = *admission,
                        .device = *NoPart<const DeviceMetrics>(),
                        .registration = *registration,
                        .rpc = *NoPart<const RpcMetrics>(),
                        .sparse = *NoPart<const SparseMetrics>(),
                        .store = *NoPart<const StoreMetrics>()},
            .stream_watch = *NoPart<StreamWatch>(),
            .limits = *limits,
            .seams = *seams,
            .register_requests = *NoPart<RequestTable>(),
            .multiply_requests = *NoPart<RequestTable>(),
            .product_plans = *NoPart<ProductPlans>(),
            .durable = *durable,
            .operations = *operations,
            .message_limits = *message_limits};
  }
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PARTIAL_CONTEXT_H_
