// SPDX-License-Identifier: Apache-2.0
// AdmissionMetrics: what was refused for lack of room, and how much of each bounded resource is in use.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_JOB_ADMISSION_METRICS_H_
#define INTRAWARP_SERVER_JOB_ADMISSION_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "intrawarp/v1/error.pb.h"
#include "server/monitor/registry.h"

namespace intrawarp::server {

class Ledger;

class AdmissionMetrics {
 public:
  // `devices`: their names.
  AdmissionMetrics(Registry& registry, const std::vector<std::string>& devices);

  // Only reasons that are a lack of room are counted.
  void CountRejection(v1::ErrorReason reason) const;
  // A connection beyond the limit was closed.
  void CountRefusedConnection() const { refused_connections_.Add(); }

  // For a scrape: memory and places of the ledger. `evictable`: for each device, the resident bytes that give way to
  // work that needs them.
  void Set(const Ledger& ledger, const std::vector<int64_t>& evictable) const;
  // Another bounded table than the ledger's.
  void SetTable(absl::string_view table, int64_t used, int64_t capacity) const;
  // Pinned host memory that is pooled for reuse.
  void SetPinnedPooled(int64_t bytes) const { pinned_pooled_.Set(static_cast<double>(bytes)); }

 private:
  const std::vector<std::string> devices_;  // values of the label
  std::map<v1::ErrorReason, Counter> rejections_;
  Counter refused_connections_;
  const GaugeFamily memory_used_;
  const GaugeFamily memory_evictable_;
  const GaugeFamily memory_capacity_;
  const GaugeFamily table_used_;
  const GaugeFamily table_capacity_;
  const Gauge pinned_pooled_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_JOB_ADMISSION_METRICS_H_
