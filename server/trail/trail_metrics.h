// SPDX-License-Identifier: Apache-2.0
// TrailMetrics: the state of the audit log.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_TRAIL_TRAIL_METRICS_H_
#define INTRAWARP_SERVER_TRAIL_TRAIL_METRICS_H_

#include "server/monitor/registry.h"

namespace intrawarp::server {

class AuditTrail;

class TrailMetrics {
 public:
  explicit TrailMetrics(Registry& registry);
  // For a scrape.
  void Set(const AuditTrail& trail) const;

 private:
  const Gauge available_;
  const Gauge records_;
  const Counter lost_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_TRAIL_TRAIL_METRICS_H_
