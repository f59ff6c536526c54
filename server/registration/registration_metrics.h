// SPDX-License-Identifier: Apache-2.0
// RegistrationMetrics: registrations, of frames and single ones: how they ended, where their time went, how good they
// are.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_REGISTRATION_REGISTRATION_METRICS_H_
#define INTRAWARP_SERVER_REGISTRATION_REGISTRATION_METRICS_H_

#include <array>

#include "engine/schedule/latency.h"
#include "server/monitor/registry.h"

namespace intrawarp::server {

// Values of the label class: frames of a Navigate stream, and single registrations.
enum class WorkClass { kFrame, kRegister };
// Values of the label outcome; late: a result after its deadline that was wanted all the same.
enum class FrameOutcome { kOk, kLate, kRejected, kSuperseded, kCancelled, kDeadlineMissed, kFailed };
// Values of the label reason of registration_nonconverged.
enum class Nonconvergence { kIterationLimit, kBudget, kNoProgress };

class RegistrationMetrics {
 public:
  explicit RegistrationMetrics(Registry& registry);

  // One registration. Phases are recorded for the outcomes kOk and kLate only.
  void FrameDone(WorkClass work, FrameOutcome outcome, const LatencyBreakdown& latency) const;
  // Normalised cross-correlation of the fixed and the warped moving image after a registration.
  void ObserveSimilarity(double ncc) const { similarity_.Observe(ncc); }
  void CountNonconverged(Nonconvergence reason) const { nonconverged_[reason].Add(); }

 private:
  struct Series {
    EnumCounters<FrameOutcome> outcomes;
    Histogram seconds;
    std::array<Histogram, kPhases> phases;
  };

  std::array<Series, 2> classes_;  // in the order of WorkClass
  const Histogram similarity_;
  const EnumCounters<Nonconvergence> nonconverged_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_REGISTRATION_METRICS_H_
