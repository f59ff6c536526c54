// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_metrics.h"

#include "absl/types/span.h"

namespace intrawarp::server {
namespace {

constexpr const char* kWorkClasses[] = {"frame", "register"};
constexpr const char* kFrameOutcomes[] = {"ok",    "late", "rejected", "superseded", "cancelled", "deadline_missed",
                                          "failed"};
constexpr const char* kNonconvergences[] = {"iteration_limit", "budget", "no_progress"};
constexpr double kSimilarityBuckets[] = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99};

absl::Span<const double> BucketsOf(WorkClass work) {
  if (work == WorkClass::kFrame) return kShortBuckets;
  return kLongBuckets;
}

}  // namespace

RegistrationMetrics::RegistrationMetrics(Registry& registry)
    : similarity_(registry.NewHistogram("intrawarp_registration_similarity",
                                        "Normalised cross-correlation after a registration.", kSimilarityBuckets)),
      nonconverged_(registry.Counters("intrawarp_registration_nonconverged_total",
                                      "Registrations that ended for another reason than convergence.", {"reason"}),
                    kNonconvergences) {
  const CounterFamily total =
      registry.Counters("intrawarp_registrations_total", "Registrations, by how they ended.", {"class", "outcome"});
  const HistogramFamily seconds =
      registry.Histograms("intrawarp_registration_seconds",
                          "From the request's first byte to the last byte handed to the transport.", {"class"});
  const HistogramFamily phase = registry.Histograms("intrawarp_registration_phase_seconds",
                                                    "Where a registration's time went.", {"class", "phase"});
  for (size_t c = 0; c < classes_.size(); ++c) {
    const char* const name = kWorkClasses[c];
    const absl::Span<const double> buckets = BucketsOf(static_cast<WorkClass>(c));
    classes_[c].outcomes = EnumCounters<FrameOutcome>(total, kFrameOutcomes, {name});
    classes_[c].seconds = seconds.With({name}, buckets);
    for (size_t i = 0; i < kPhases; ++i) classes_[c].phases[i] = phase.With({name, kPhaseNames[i]}, buckets);
  }
}

void RegistrationMetrics::FrameDone(WorkClass work, FrameOutcome outcome, const LatencyBreakdown& latency) const {
  const Series& series = classes_[static_cast<size_t>(work)];
  series.outcomes[outcome].Add();
  if (outcome != FrameOutcome::kOk && outcome != FrameOutcome::kLate) return;
  series.seconds.Observe(Seconds(latency.total()));
  for (size_t i = 0; i < kPhases; ++i) series.phases[i].Observe(Seconds(latency.phase(static_cast<Phase>(i))));
}

}  // namespace intrawarp::server
