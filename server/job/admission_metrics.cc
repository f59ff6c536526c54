// SPDX-License-Identifier: Apache-2.0
#include "server/job/admission_metrics.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {
namespace {

// The values of the label reason are their names in lower case.
constexpr v1::ErrorReason kRejections[] = {
    v1::QUEUE_FULL,          v1::RESIDENT_MEMORY,     v1::PINNED_MEMORY,     v1::TOO_MANY_STREAMS,
    v1::TOO_MANY_UPLOADS,    v1::TOO_MANY_TRANSFORMS, v1::EXCEEDS_CAPACITY,  v1::MULTIPLY_MEMORY,
    v1::DEVICE_HUNG,         v1::WORKSPACE_MEMORY,    v1::TOO_MANY_SESSIONS, v1::DEADLINE_UNREACHABLE,
    v1::TOO_MANY_OPERATIONS, v1::MESSAGE_RATE,        v1::STATE_FULL,        v1::STATE_UNAVAILABLE,
    v1::TOO_MANY_CALLS,      v1::AUDIT_UNAVAILABLE,   v1::CALL_RATE,         v1::OWNER_QUOTA};

std::vector<std::string> DeviceLabels(const std::vector<std::string>& devices) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < devices.size(); ++i) labels.push_back(DeviceLabel(devices, i));
  return labels;
}

}  // namespace

AdmissionMetrics::AdmissionMetrics(Registry& registry, const std::vector<std::string>& devices)
    : devices_(DeviceLabels(devices)),
      memory_used_(
          registry.Gauges("intrawarp_memory_used_bytes", "Memory that is accounted for, by kind.", {"kind", "device"})),
      memory_evictable_(registry.Gauges(
          "intrawarp_memory_evictable_bytes",
          "Used memory that gives way to work: resident volumes and plans of products that nobody uses, by kind.",
          {"kind", "device"})),
      memory_capacity_(
          registry.Gauges("intrawarp_memory_capacity_bytes", "Memory that may be used, by kind.", {"kind", "device"})),
      table_used_(registry.Gauges("intrawarp_table_used", "Places taken in a bounded table.", {"table"})),
      table_capacity_(registry.Gauges("intrawarp_table_capacity", "Places of a bounded table.", {"table"})),
      pinned_pooled_(registry.NewGauge("intrawarp_pinned_kept_bytes", "Pinned host memory that is pooled for reuse.")) {
  const CounterFamily refused =
      registry.Counters("intrawarp_admission_rejections_total",
                        "Requests and connections refused for lack of room, by what of.", {"reason"});
  for (const v1::ErrorReason reason : kRejections) {
    rejections_[reason] = refused.With({absl::AsciiStrToLower(v1::ErrorReason_Name(reason))});
  }
  refused_connections_ = refused.With({"too_many_connections"});
}

void AdmissionMetrics::CountRejection(v1::ErrorReason reason) const {
  const auto it = rejections_.find(reason);
  if (it != rejections_.end()) it->second.Add();
}

void AdmissionMetrics::Set(const Ledger& ledger, const std::vector<int64_t>& evictable) const {
  const auto set = [this](Resource resource, const std::string& device, const ResourceUse& use, int64_t evictable) {
    const absl::string_view name = kResourceNames[static_cast<size_t>(resource)];
    const std::vector<std::string> values = {std::string(absl::StripSuffix(name, "_memory")), device};
    memory_used_.With(values).Set(static_cast<double>(use.in_use));
    memory_evictable_.With(values).Set(static_cast<double>(evictable));
    memory_capacity_.With(values).Set(static_cast<double>(use.capacity));
  };
  for (size_t i = 0; i < devices_.size(); ++i) {
    const int device = static_cast<int>(i);
    set(Resource::kResident, devices_[i], ledger.use(Resource::kResident, device), evictable[i]);
    set(Resource::kWorkspace, devices_[i], ledger.use(Resource::kWorkspace, device), 0);
  }
  set(Resource::kPinned, "", ledger.use(Resource::kPinned), 0);
  for (const Resource resource :
       {Resource::kTransforms, Resource::kUploads, Resource::kSessions, Resource::kStreams, Resource::kOperations}) {
    const ResourceUse use = ledger.use(resource);
    SetTable(kResourceNames[static_cast<size_t>(resource)], use.in_use, use.capacity);
  }
}

void AdmissionMetrics::SetTable(absl::string_view table, int64_t used, int64_t capacity) const {
  table_used_.With({std::string(table)}).Set(static_cast<double>(used));
  table_capacity_.With({std::string(table)}).Set(static_cast<double>(capacity));
}

}  // namespace intrawarp::server
