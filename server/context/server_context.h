// SPDX-License-Identifier: Apache-2.0
// ServerContext: what the RPC services share. DeviceContext: the same with one of the server's devices, for whoever
// computes or copies. Owned by the Server; references stay valid while any RPC runs.
//
// The header only declares what the references are to; whoever uses one includes its header. So every room can be given
// the context, and sees no more of it than the rooms below.
#ifndef INTRAWARP_SERVER_CONTEXT_SERVER_CONTEXT_H_
#define INTRAWARP_SERVER_CONTEXT_SERVER_CONTEXT_H_

namespace intrawarp {

class CopyLane;
class Device;
class JobQueue;
class PinnedPool;

}  // namespace intrawarp

namespace intrawarp::server {

class AdmissionMetrics;
class DeviceMetrics;
class DeviceProbe;
class DeviceSet;
class DurableObjects;
class Ledger;
class MessageLimits;
class OperationTable;
class ProductPlans;
class RegistrationMetrics;
class Registry;
class RequestTable;
class RpcMetrics;
class SessionStore;
class SparseMetrics;
class StoreMetrics;
class StreamWatch;
class UploadStore;
class Watchdog;
class WorkerPool;
struct Seams;
struct ServerLimits;
struct StoredMatrix;
struct StoredTransform;
struct StoredVolume;
template <typename Stored>
class ResidentStore;

// The metrics that the rooms count with; each class is declared by its room, in ROOM_metrics.h.
struct RoomMetrics {
  // For rooms that declare theirs only when they serve.
  Registry& registry;
  const AdmissionMetrics& admission;  // server/job
  const DeviceMetrics& device;
  const RegistrationMetrics& registration;
  const RpcMetrics& rpc;
  const SparseMetrics& sparse;
  const StoreMetrics& store;
};

struct ServerContext {
  DeviceSet& devices;
  // At most one task of a call waits for it.
  WorkerPool& workers;
  // The like for frames alone, which take their chunks there.
  WorkerPool& receivers;
  PinnedPool& pinned;
  Ledger& ledger;
  ResidentStore<StoredVolume>& volumes;
  ResidentStore<StoredMatrix>& matrices;
  ResidentStore<StoredTransform>& transforms;
  UploadStore& uploads;
  SessionStore& sessions;
  RoomMetrics metrics;
  StreamWatch& stream_watch;
  const ServerLimits& limits;
  const Seams& seams;
  // Requests with an id that are under way.
  RequestTable& register_requests;
  RequestTable& multiply_requests;
  // Plans of sparse products that later products may take.
  ProductPlans& product_plans;
  // The way of objects into the stores and out of them.
  DurableObjects& durable;
  // The work that goes on without a call.
  OperationTable& operations;
  // The rate of messages on streams.
  MessageLimits& message_limits;
};

struct DeviceContext : ServerContext {
  // Its place in ServerContext::devices, and Claim::device.
  int index;
  Device& device;
  // What the device answered last, for calls that must not wait for it.
  const DeviceProbe& probe;
  const Watchdog& watchdog;
  JobQueue& jobs;
  // At most one copy of a bulk stream waits for it.
  CopyLane& copies;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_CONTEXT_SERVER_CONTEXT_H_
