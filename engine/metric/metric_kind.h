// SPDX-License-Identifier: Apache-2.0
// What two images are compared by.
#ifndef INTRAWARP_ENGINE_METRIC_METRIC_KIND_H_
#define INTRAWARP_ENGINE_METRIC_METRIC_KIND_H_

namespace intrawarp {

// Sum of squared differences; normalised gradient fields; normalised mutual information; local normalised
// cross-correlation. What each is minimised as stands with the objective of a method.
enum class MetricKind { kSsd, kNgf, kNmi, kLncc };

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_METRIC_KIND_H_
