// SPDX-License-Identifier: Apache-2.0
// The report that goes to the client with a registration's result, and what it means for the metrics.
#ifndef INTRAWARP_SERVER_REGISTRATION_REGISTRATION_REPORT_H_
#define INTRAWARP_SERVER_REGISTRATION_REGISTRATION_REPORT_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/schedule/latency.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/context/server_context.h"
#include "server/registration/registration_job.h"
#include "server/registration/registration_metrics.h"
#include "server/registration/registration_options.h"
#include "server/store/durable_objects.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {

v1::Report MakeReport(const std::string& device, const RegistrationPlan& plan, const RegistrationOutcome& outcome,
                      const LatencyBreakdown& latency);

// The answer took `total`, which is more than its deadline or budget `limit`: the verdict is REVIEW, with the cause
// LATE.
void AddLateness(std::chrono::nanoseconds limit, std::chrono::nanoseconds total, v1::Report& report);

// The place of a result in the store.
struct ResultIdentity {
  std::string id;
  std::optional<Expiry> expiry;
  std::optional<RequestKey> request;
  std::string owner = {};
};
// ALREADY_EXISTS when the id is taken. The place is that of outcome.reservation. With an origin that has a payload, the
// result becomes durable (DurableObjects::Insert), which waits for the disk.
absl::StatusOr<std::shared_ptr<const StoredTransform>> StoreResult(ServerContext& context, ResultIdentity identity,
                                                                   const RegistrationOutcome& outcome,
                                                                   const v1::Report& report, ObjectOrigin origin = {});

v1::Progress ProgressToProto(const Progress& progress);

// Records one registration in the metrics, exactly once: what nobody recorded when it is destroyed was cancelled.
// Thread-compatible.
class FrameRecord {
 public:
  FrameRecord(const RegistrationMetrics& metrics, WorkClass work) : metrics_(metrics), work_(work) {}
  FrameRecord(const FrameRecord&) = delete;
  ~FrameRecord();
  // `status` is not OK. Of several calls the first counts.
  void Failed(const absl::Status& status);
  // The call repeated a request that was recorded before.
  void Repeated() { recorded_ = true; }
  // `late`: after its deadline.
  void Succeeded(const RegistrationOutcome& outcome, const LatencyBreakdown& latency, bool late = false);

 private:
  const RegistrationMetrics& metrics_;
  const WorkClass work_;
  bool recorded_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_REGISTRATION_REPORT_H_
