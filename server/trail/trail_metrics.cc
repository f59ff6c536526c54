// SPDX-License-Identifier: Apache-2.0
#include "server/trail/trail_metrics.h"

#include "server/trail/audit_trail.h"

namespace intrawarp::server {

TrailMetrics::TrailMetrics(Registry& registry)
    : available_(registry.NewGauge("intrawarp_audit_available", "0 while the audit log cannot be written.")),
      records_(registry.NewGauge("intrawarp_audit_records", "Records of the audit log that are on the disk.")),
      lost_(registry.NewCounter("intrawarp_audit_records_lost_total", "Audit records that found no room.")) {}

void TrailMetrics::Set(const AuditTrail& trail) const {
  available_.Set(trail.Available().ok() ? 1 : 0);
  records_.Set(static_cast<double>(trail.head().seq));
  lost_.RaiseTo(static_cast<double>(trail.lost()));
}

}  // namespace intrawarp::server
