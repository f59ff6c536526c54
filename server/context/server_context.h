// SPDX-License-Identifier: Apache-2.0
// ServerContext: what the RPC services share. DeviceContext: the same with one of the server's devices, for whoever
// computes or copies. Owned by the Server; references stay valid while any RPC runs.
#ifndef INTRAWARP_SERVER_CONTEXT_SERVER_CONTEXT_H_
#define INTRAWARP_SERVER_CONTEXT_SERVER_CONTEXT_H_

#include <chrono>
#include <cstdint>

#include "engine/device/device.h"
#include "engine/device/pinned_pool.h"
#include "engine/schedule/copy_lane.h"
#include "engine/schedule/scheduler.h"
#include "server/base/names.h"
#include "server/device/device_set.h"
#include "server/ledger/ledger.h"
#include "server/monitor/device_probe.h"
#include "server/monitor/metrics.h"
#include "server/monitor/stream_watch.h"
#include "server/monitor/watchdog.h"
#include "server/store/matrix_store.h"
#include "server/store/request_table.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

class DurableObjects;
class MessageLimits;
class OperationTable;
class SessionStore;
class UploadStore;
class WorkerPool;

struct ServerLimits {
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_volume_bytes = int64_t{4} << 30;  // as uploaded
  int64_t max_matrix_bytes = int64_t{4} << 30;  // as uploaded
  int64_t resident_capacity_bytes = 0;          // of each device
  int64_t workspace_capacity_bytes = 0;         // of jobs, of each device
  int64_t pinned_capacity_bytes = 0;
  int64_t uploading_capacity_bytes = 0;  // of unfinished uploads
  int64_t max_transforms = 4096;         // beside those of sessions
  int max_sessions = 8;
  int max_operations = 64;  // that have not ended
  int max_uploads = 64;     // unfinished uploads
  int max_streams = 64;     // bulk streams, registrations and products under way, beside those of sessions
  int max_connections = 256;
  int max_calls = 1024;      // of all kinds under way; as many again that only ask (health, server info)
  int max_queued_jobs = 64;  // that wait, of each class
  std::chrono::nanoseconds upload_ttl = std::chrono::minutes(5);
  // The life of a registration's result that asks for none; 0: until it is deleted.
  std::chrono::nanoseconds result_ttl = std::chrono::hours(24);
  // How long an operation that has ended is remembered.
  std::chrono::nanoseconds operation_ttl = std::chrono::hours(24);
  // A stream whose client owes something for longer is ended; 0: never.
  std::chrono::nanoseconds stream_idle_timeout = std::chrono::seconds(30);
  int max_points = 32768;  // of one MapPoints call, so that no message passes a chunk
  int max_pending_frames = 4;
  // Without a budget work ends after it has computed for so long; 0: never.
  std::chrono::nanoseconds max_run_time = std::chrono::minutes(10);
  // The longest time without a frame that a session may ask for.
  std::chrono::nanoseconds max_session_idle = std::chrono::hours(1);
  // For one owner; 0: half of what there is, where callers have identities.
  int64_t owner_resident_bytes = 0;
  int64_t owner_workspace_bytes = 0;
  int64_t owner_pinned_bytes = 0;
  int64_t owner_uploading_bytes = 0;
  int owner_transforms = 0;
  int owner_streams = 0;
  int owner_uploads = 0;
  int owner_sessions = 0;
  int owner_operations = 0;
  int owner_jobs = 0;  // that wait, of each class
};

struct ServerContext {
  DeviceSet& devices;
  // At most one task of a call waits for it.
  WorkerPool& workers;
  // The like for frames alone, which take their chunks there.
  WorkerPool& receivers;
  PinnedPool& pinned;
  Ledger& ledger;
  VolumeStore& volumes;
  MatrixStore& matrices;
  TransformStore& transforms;
  UploadStore& uploads;
  SessionStore& sessions;
  Metrics& metrics;
  StreamWatch& stream_watch;
  const ServerLimits& limits;
  const Seams& seams;
  // Requests with an id that are under way.
  RequestTable& register_requests;
  RequestTable& multiply_requests;
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
