// SPDX-License-Identifier: Apache-2.0
// ServerMetrics: the registry of a server, with the metrics of its rooms. Shared memory and the DICOM side declare
// theirs when they start to serve (SessionMetrics, PacsMetrics).
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_SERVER_METRICS_H_
#define INTRAWARP_SERVER_SERVER_METRICS_H_

#include <chrono>
#include <string>
#include <vector>

#include "server/base/version.h"
#include "server/context/server_context.h"
#include "server/device/device_metrics.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_metrics.h"
#include "server/monitor/monitor_metrics.h"
#include "server/monitor/registry.h"
#include "server/operation/operation_metrics.h"
#include "server/registration/registration_metrics.h"
#include "server/rpc/rpc_metrics.h"
#include "server/sparse/sparse_metrics.h"
#include "server/store/store_metrics.h"
#include "server/trail/trail_metrics.h"

namespace intrawarp::server {

struct ServerMetrics {
  // `devices`: their names, at least one.
  ServerMetrics(const BuildInfo& build, const std::vector<std::string>& devices, const std::vector<RpcMethod>& methods,
                std::chrono::system_clock::time_point start_time)
      : monitor(registry, build, start_time),
        trail(registry),
        store(registry),
        device(registry, devices),
        admission(registry, devices),
        job(registry, devices),
        rpc(registry, methods),
        sparse(registry),
        operation(registry),
        registration(registry) {}

  // For the context that the rooms share.
  RoomMetrics rooms() { return {registry, admission, device, registration, rpc, sparse, store}; }

  Registry registry;
  const MonitorMetrics monitor;
  const TrailMetrics trail;
  const StoreMetrics store;
  const DeviceMetrics device;
  const AdmissionMetrics admission;
  const JobMetrics job;
  const RpcMetrics rpc;
  const SparseMetrics sparse;
  const OperationMetrics operation;
  const RegistrationMetrics registration;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVER_METRICS_H_
