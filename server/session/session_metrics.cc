// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_metrics.h"

namespace intrawarp::server {
namespace {

constexpr const char* kFetches[] = {"given", "unknown_token", "user_refused"};
constexpr const char* kTransfers[] = {"frame", "field"};

}  // namespace

SessionMetrics::SessionMetrics(Registry& registry)
    : fetches_(registry.Counters("intrawarp_shared_memory_fetches_total",
                                 "Segments that clients asked for at the socket, by outcome.", {"outcome"}),
               kFetches),
      transfers_(registry.Counters("intrawarp_shared_memory_transfers_total",
                                   "Frames and fields that went through shared memory.", {"what"}),
                 kTransfers),
      transferred_bytes_(registry.Counters("intrawarp_shared_memory_transferred_bytes_total", "Their bytes.", {"what"}),
                         kTransfers),
      fields_in_chunks_(
          registry.NewCounter("intrawarp_shared_memory_fields_in_chunks_total",
                              "Fields of streams with field slots that went in chunks, for want of a slot.")),
      segments_(registry.NewGauge("intrawarp_shared_memory_segments", "Segments that are shared with clients.")),
      segment_bytes_(registry.NewGauge("intrawarp_shared_memory_segment_bytes",
                                       "Bytes of these segments, a part of the pinned memory in use.")),
      field_slots_(registry.NewGauge("intrawarp_shared_memory_field_slots", "Field slots of these segments.")),
      field_slots_used_(registry.NewGauge("intrawarp_shared_memory_field_slots_used",
                                          "Field slots that are written, or that a client has not let go of.")) {}

void SessionMetrics::Count(Transfer what, int64_t bytes) const {
  transfers_[what].Add();
  transferred_bytes_[what].Add(static_cast<double>(bytes));
}

void SessionMetrics::Set(const SegmentSample& sample) const {
  segments_.Set(static_cast<double>(sample.segments));
  segment_bytes_.Set(static_cast<double>(sample.bytes));
  field_slots_.Set(static_cast<double>(sample.field_slots));
  field_slots_used_.Set(static_cast<double>(sample.field_slots_in_use));
}

}  // namespace intrawarp::server
