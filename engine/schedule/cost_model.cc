// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/cost_model.h"

#include <algorithm>
#include <cmath>

namespace intrawarp {
namespace {

constexpr double kMeanWeight = 1.0 / 8, kDeviationWeight = 1.0 / 4, kDeviations = 4;
constexpr double kCellsPerOctave = 4;
constexpr int kReachCells = static_cast<int>(kCellsPerOctave) * 2;
static_assert(CostModel::kReach == 1 << 2);
// One job that takes ten times as long must not keep all others away; in a row they count.
constexpr double kMostError = 2;
// Jobs in a row that took less than half of the mean and show that costs have changed.
constexpr int kQuickJobs = 3;
// This bound keeps sums of predictions from overflowing.
constexpr double kMostNanoseconds = 1e14;

}  // namespace

int CostModel::CellOf(int64_t size) {
  return static_cast<int>(std::lround(kCellsPerOctave * std::log2(static_cast<double>(std::max<int64_t>(size, 1)))));
}

double CostModel::SizeOf(int cell) { return std::exp2(cell / kCellsPerOctave); }

void CostModel::Cost::Add(double sample) {
  quick = sample < mean / 2 ? quick + 1 : 0;
  const bool starts_anew = samples == 0 || mean == 0 || (quick > 0 && samples == 1) || quick == kQuickJobs;
  samples = std::min(samples + 1, kMinSamples);
  if (starts_anew) {
    quick = 0;
    mean = sample;
    deviation = sample / 2;
    return;
  }
  const double error = std::min(sample - mean, kMostError * mean);
  deviation += kDeviationWeight * (std::abs(error) - deviation);
  mean += kMeanWeight * error;
}

void CostModel::Observe(absl::string_view kind, int64_t size, Duration busy, bool crowded) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, is_new] = cells_.try_emplace({std::string(kind), CellOf(size)});
  Cell& cell = at->second;
  cell.last_use = ++uses_;
  const double units = static_cast<double>(std::max<int64_t>(size, 1));
  Cost& cost = cell.costs[crowded ? 1 : 0];
  cost.Add(std::clamp(static_cast<double>(busy.count()), 0.0, kMostNanoseconds) / units);
  cell.next_probe = cost.quick > 0 ? std::make_optional(SchedulerClock::Time::min()) : std::nullopt;
  if (is_new) MakeRoom();
}

std::optional<CostModel::Prediction> CostModel::Predict(absl::string_view kind, int64_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string name(kind);
  std::optional<Estimate> alone = EstimateCost(name, size, false), crowded = EstimateCost(name, size, true);
  if (!alone && !crowded) return std::nullopt;
  if (!alone) alone = crowded;
  if (!crowded) crowded = alone;
  const auto duration = [](double ns) { return Duration(static_cast<int64_t>(std::min(ns, kMostNanoseconds))); };
  return Prediction{duration(alone->most), duration(crowded->most), duration(std::min(alone->mean, crowded->mean)),
                    alone->sure && crowded->sure};
}

std::optional<CostModel::Estimate> CostModel::EstimateCost(const std::string& kind, int64_t size, bool crowded) {
  const int cell = CellOf(size);
  const auto [below, above] = Neighbours(kind, cell, crowded);
  if (below == cells_.end() && above == cells_.end()) return std::nullopt;
  const double units = static_cast<double>(std::max<int64_t>(size, 1));
  const auto is_near = [this, cell](Cells::iterator at) {
    return at != cells_.end() && std::abs(at->first.second - cell) <= kReachCells;
  };
  const bool sure = is_near(below) || is_near(above);
  if (below == above || above == cells_.end()) return At(below->second, crowded, units, sure);
  if (below == cells_.end()) return At(above->second, crowded, units, sure);
  const double low = SizeOf(below->first.second), high = SizeOf(above->first.second);
  const Estimate at_low = At(below->second, crowded, low, sure), at_high = At(above->second, crowded, high, sure);
  const double part = (units - low) / (high - low);
  return Estimate{at_low.most + (at_high.most - at_low.most) * part, at_low.mean + (at_high.mean - at_low.mean) * part,
                  sure};
}

CostModel::Estimate CostModel::At(Cell& cell, bool crowded, double units, bool sure) {
  cell.last_use = ++uses_;
  const Cost& cost = cell.costs[crowded ? 1 : 0];
  return {units * (cost.mean + kDeviations * cost.deviation), units * cost.mean, sure};
}

bool CostModel::MayProbe(absl::string_view kind, int64_t size, SchedulerClock::Time now, Duration interval) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const bool crowded : {false, true}) {
    const auto [below, above] = Neighbours(std::string(kind), CellOf(size), crowded);
    const auto nearest = below != cells_.end() ? below : above;
    if (nearest == cells_.end()) continue;
    std::optional<SchedulerClock::Time>& next = nearest->second.next_probe;
    const bool may = next && now >= *next;
    if (may || !next) next = now + interval;
    return may;
  }
  return false;
}

size_t CostModel::cells() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cells_.size();
}

void CostModel::MakeRoom() {
  if (cells_.size() <= max_cells_) return;
  cells_.erase(std::min_element(cells_.begin(), cells_.end(),
                                [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
}

std::pair<CostModel::Cells::iterator, CostModel::Cells::iterator> CostModel::Neighbours(const std::string& kind,
                                                                                        int cell, bool crowded) {
  auto below = cells_.end(), above = cells_.end();
  for (auto at = cells_.lower_bound(Key(kind, 0)); at != cells_.end() && at->first.first == kind; ++at) {
    if (at->second.costs[crowded ? 1 : 0].samples < kMinSamples) continue;
    if (at->first.second <= cell) below = at;
    if (at->first.second >= cell && above == cells_.end()) above = at;
  }
  return {below, above};
}

}  // namespace intrawarp
