// SPDX-License-Identifier: Apache-2.0
// SessionMetrics: frames and fields that go through shared memory, and its segments. Declared only where memory is
// shared; the frames of sessions count as registrations (server/registration/registration_metrics.h).
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_SESSION_SESSION_METRICS_H_
#define INTRAWARP_SERVER_SESSION_SESSION_METRICS_H_

#include <cstdint>

#include "server/monitor/registry.h"

namespace intrawarp::server {

// Values of the label outcome of fetches: given, a token that nobody has, a user that may not.
enum class Fetch { kGiven, kUnknownToken, kUserRefused };

// The segments that are shared with clients, read for a scrape.
struct SegmentSample {
  int64_t segments = 0;
  int64_t bytes = 0;
  int64_t field_slots = 0;
  int64_t field_slots_in_use = 0;
};

class SessionMetrics {
 public:
  explicit SessionMetrics(Registry& registry);

  void CountFetch(Fetch outcome) const { fetches_[outcome].Add(); }
  void CountFrame(int64_t bytes) const { Count(Transfer::kFrame, bytes); }
  void CountField(int64_t bytes) const { Count(Transfer::kField, bytes); }
  // A field of a stream with field slots that went in chunks, since no slot was free or large enough.
  void CountFieldInChunks() const { fields_in_chunks_.Add(); }
  void Set(const SegmentSample& sample) const;

 private:
  // Values of the label what.
  enum class Transfer { kFrame, kField };
  void Count(Transfer what, int64_t bytes) const;

  const EnumCounters<Fetch> fetches_;
  const EnumCounters<Transfer> transfers_;
  const EnumCounters<Transfer> transferred_bytes_;
  const Counter fields_in_chunks_;
  const Gauge segments_;
  const Gauge segment_bytes_;
  const Gauge field_slots_;
  const Gauge field_slots_used_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SESSION_METRICS_H_
