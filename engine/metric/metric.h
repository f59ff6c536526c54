// SPDX-License-Identifier: Apache-2.0
// The metrics by which two images are compared, found by name. Each has a header of its name with its definition and
// source (ssd.h, ngf.h, nmi.h, lncc.h, mind.h); affine_objective.h and ffd_objective.h are composed of them. Mind is a
// metric of ffd and of the discrete search only. All are minimised.
#ifndef INTRAWARP_ENGINE_METRIC_METRIC_H_
#define INTRAWARP_ENGINE_METRIC_METRIC_H_

#include <optional>
#include <string_view>

namespace intrawarp {

// Sum of squared differences; normalised gradient fields; normalised mutual information; local normalised
// cross-correlation; squared distances of MIND-SSC descriptors.
enum class MetricKind { kSsd, kNgf, kNmi, kLncc, kMind };

struct MetricTraits {
  MetricKind kind;
  // The word of the command line and of reports.
  const char* name;
  // A sample's term needs the warped moving image around it. Such a metric is evaluated on a stored warped image, and
  // its derivative by each of that image's voxels, the voxel gradient, is stored, too.
  bool needs_neighborhood;
};

inline constexpr MetricTraits kMetricTable[] = {
    {MetricKind::kSsd, "ssd", false},  {MetricKind::kNgf, "ngf", true},    {MetricKind::kNmi, "nmi", false},
    {MetricKind::kLncc, "lncc", true}, {MetricKind::kMind, "mind", false},
};

constexpr const MetricTraits& TraitsOf(MetricKind kind) { return kMetricTable[static_cast<int>(kind)]; }
constexpr const char* MetricName(MetricKind kind) { return TraitsOf(kind).name; }
// Nothing for a word that does not name a metric.
constexpr std::optional<MetricKind> MetricNamed(std::string_view name) {
  for (const MetricTraits& traits : kMetricTable) {
    if (traits.name == name) return traits.kind;
  }
  return std::nullopt;
}

// A metric's value and the number of its samples, as an evaluation writes them to device memory.
struct MetricValue {
  // NaN when there is no sample.
  double metric = 0;
  double samples = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_METRIC_H_
