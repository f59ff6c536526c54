// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/predicted_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace intrawarp {
namespace {

// Nodes a unit of each feature.
struct ErrorModel {
  double constant;
  double own_offset, smoothed_offset;
  double own_vagueness, smoothed_vagueness;
};
constexpr ErrorModel kExpected{0.05, 0.10, 1.09, 0.33, 1.79};
constexpr ErrorModel kBound{1.00, 0.23, 0.40, 1.51, 24.4};

double Length(const float offset[3]) {
  return std::sqrt(static_cast<double>(offset[0]) * offset[0] + static_cast<double>(offset[1]) * offset[1] +
                   static_cast<double>(offset[2]) * offset[2]);
}

double Vagueness(const CostMinimum& minimum) {
  const double distinctness = minimum.rival > 0 ? 1 - minimum.best / minimum.rival : 0;
  return std::max(0.0, 0.5 - distinctness);
}

double Apply(const ErrorModel& model, const BlockMatch& match) {
  return model.constant + model.own_offset * Length(match.own.offset) +
         model.smoothed_offset * Length(match.smoothed.offset) + model.own_vagueness * Vagueness(match.own) +
         model.smoothed_vagueness * Vagueness(match.smoothed);
}

// The value of which `fraction` of the values are no larger; `values` are not empty and are reordered.
double Quantile(std::vector<double>& values, double fraction) {
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  const auto nth = values.begin() + static_cast<int64_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

// A displacement of at most one node on each axis among all: 3 of 2 kSearchRadius + 1 on each axis that is searched.
double Chance(bool is_2d) { return std::pow(3.0 / (2 * kSearchRadius + 1), is_2d ? 2 : 3); }

bool IsNear(const BlockMatch& match) { return match.smoothed.reach <= 1; }

// How many blocks share what one independent block would say. Costs smoothed with the weights w of an axis vary as much
// as those of (sum w)^2 / sum w^2 blocks in the mean.
double SharedBlocks(Int3 blocks) {
  constexpr double kAlongAnAxis = 16.0 / 6;
  double shared = 1;
  for (int a = 0; a < 3; ++a) shared *= std::min(kAlongAnAxis, static_cast<double>(blocks[a]));
  return shared;
}

// Along the axes that are searched.
double SmallestNode(const ResidualProbe& probe) {
  return probe.blocks.is_2d() ? std::min(probe.node_mm.x, probe.node_mm.y)
                              : std::min({probe.node_mm.x, probe.node_mm.y, probe.node_mm.z});
}

struct Region {
  std::vector<double> expected;
  int near = 0;
};

std::array<Region, 8> RegionsOf(const ResidualProbe& probe) {
  const Int3 n = probe.blocks.size;
  const auto place = [n](int i) { return Vec3d{double(i % n.x), double(i / n.x % n.y), double(i / n.x / n.y)}; };
  const int count = static_cast<int>(probe.matches.size());
  Vec3d sum{};
  int matched = 0;
  for (int i = 0; i < count; ++i) {
    if (probe.matches[i].matched == 0) continue;
    sum = sum + place(i);
    ++matched;
  }
  const Vec3d middle = (1.0 / std::max(matched, 1)) * sum;
  std::array<Region, 8> regions;
  for (int i = 0; i < count; ++i) {
    const BlockMatch& match = probe.matches[i];
    if (match.matched == 0) continue;
    const Vec3d p = place(i);
    Region& region = regions[(p.x > middle.x) + 2 * (p.y > middle.y) + 4 * (p.z > middle.z)];
    region.expected.push_back(PredictBlockError(match, probe.node_mm).expected_mm);
    region.near += IsNear(match);
  }
  return regions;
}

void AddWorstRegion(const ResidualProbe& probe, ErrorEstimate& estimate) {
  for (Region& region : RegionsOf(probe)) {
    if (region.expected.size() < kLeastBlocks) continue;
    const double agreement = static_cast<double>(region.near) / static_cast<double>(region.expected.size());
    const double expected_mm = Quantile(region.expected, 0.5);
    estimate.worst_region_expected_mm = std::max(estimate.worst_region_expected_mm.value_or(0), expected_mm);
    estimate.worst_region_agreement = std::min(estimate.worst_region_agreement.value_or(1), agreement);
  }
}

}  // namespace

BlockError PredictBlockError(const BlockMatch& match, Vec3d node_mm) {
  const double expected = Apply(kExpected, match), bound = std::max(expected, Apply(kBound, match));
  return {expected * node_mm.x, bound * node_mm.x};
}

std::optional<ErrorEstimate> PredictError(const ResidualProbe& probe) {
  std::vector<double> expected, bounds;
  int64_t covered = 0, near = 0, both = 0, either = 0;
  double clear = 0;
  for (const BlockMatch& match : probe.matches) {
    covered += match.covered;
    both += match.matched != 0 && match.shown != 0;
    either += match.matched != 0 || match.shown != 0;
    if (match.matched == 0) continue;
    const BlockError error = PredictBlockError(match, probe.node_mm);
    expected.push_back(error.expected_mm);
    bounds.push_back(error.bound_mm);
    near += IsNear(match);
    if (IsNear(match)) clear += 1 - 2 * Vagueness(match.smoothed);
  }
  if (expected.size() < kLeastBlocks) return std::nullopt;
  const auto count = static_cast<double>(expected.size());
  ErrorEstimate estimate;
  estimate.expected_mm = Quantile(expected, 0.5);
  estimate.bound_mm = Quantile(bounds, 0.5);
  estimate.bound_p95_mm = Quantile(bounds, 0.95);
  estimate.bound_max_mm = *std::max_element(bounds.begin(), bounds.end());
  estimate.judged_fraction = count / static_cast<double>(covered);
  estimate.agreement = static_cast<double>(near) / count;
  estimate.chance = Chance(probe.blocks.is_2d());
  const double shared = SharedBlocks(probe.blocks.size);
  estimate.independent_blocks = count / shared;
  estimate.clear_matches = clear / shared;
  estimate.fixing_points = probe.blocks.is_2d() ? 3 : 4;
  estimate.reach_mm = kSearchRadius * SmallestNode(probe);
  estimate.visible_fraction = static_cast<double>(both) / static_cast<double>(either);
  AddWorstRegion(probe, estimate);
  return estimate;
}

void HoldAgainstAffine(const ErrorEstimate& affine, double deformation_mm, ErrorEstimate& error) {
  error.affine_expected_mm = affine.expected_mm;
  error.affine_agreement = affine.agreement;
  error.affine_bound_mm = affine.bound_mm;
  error.deformation_mm = deformation_mm;
  error.visible_fraction = affine.visible_fraction;
}

double LeastAgreement(const ErrorEstimate& error) {
  const double deviation = std::sqrt(error.chance * (1 - error.chance) / error.independent_blocks);
  return std::max(kUnrelatedChances * error.chance, error.chance + kUnrelatedDeviations * deviation);
}

ErrorMap MapErrors(const ResidualProbe& probe) {
  ErrorMap map{probe.blocks, {}, {}};
  for (const BlockMatch& match : probe.matches) {
    const BlockError error = match.matched != 0 ? PredictBlockError(match, probe.node_mm) : BlockError{NAN, NAN};
    map.expected_mm.push_back(static_cast<float>(error.expected_mm));
    map.bound_mm.push_back(static_cast<float>(error.bound_mm));
  }
  return map;
}

std::vector<PointError> PredictErrorsAt(const ResidualProbe& probe, const std::vector<Vec3d>& points) {
  const std::vector<MatchedBlock> blocks = MatchedBlocks(probe);
  std::vector<PointError> errors;
  if (blocks.empty()) return errors;
  for (const Vec3d& point : points) {
    const MatchedBlock* nearest = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const MatchedBlock& block : blocks) {
      const double square = Dot(block.centre - point, block.centre - point);
      if (nearest != nullptr && !(square < least)) continue;
      nearest = &block;
      least = square;
    }
    errors.push_back({PredictBlockError(*nearest->match, probe.node_mm), std::sqrt(least)});
  }
  return errors;
}

}  // namespace intrawarp
