// SPDX-License-Identifier: Apache-2.0
// OperationMetrics: the operations that a server remembers.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_OPERATION_OPERATION_METRICS_H_
#define INTRAWARP_SERVER_OPERATION_OPERATION_METRICS_H_

#include "server/monitor/registry.h"
#include "server/operation/operation_table.h"

namespace intrawarp::server {

class OperationMetrics {
 public:
  explicit OperationMetrics(Registry& registry);
  // For a scrape.
  void Set(const OperationCounts& counts) const;

 private:
  const GaugeFamily operations_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OPERATION_OPERATION_METRICS_H_
