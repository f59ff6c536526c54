// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/cost_model.h"

#include <algorithm>
#include <cmath>

namespace intrawarp {
namespace {

constexpr double kMeanWeight = 1.0 / 8, kDeviationWeight = 1.0 / 4, kDeviations = 4;
constexpr double kCellsPerOctave = 4;
// This bound keeps sums of predictions from overflowing.
constexpr double kMostNanoseconds = 1e14;

}  // namespace

int CostModel::CellOf(int64_t size) {
  return static_cast<int>(std::lround(kCellsPerOctave * std::log2(static_cast<double>(std::max<int64_t>(size, 1)))));
}

double CostModel::SizeOf(int cell) { return std::exp2(cell / kCellsPerOctave); }

void CostModel::Observe(absl::string_view kind, int64_t size, Duration busy) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, is_new] = cells_.try_emplace({std::string(kind), CellOf(size)});
  Cell& cell = at->second;
  cell.last_use = ++uses_;
  const double units = static_cast<double>(std::max<int64_t>(size, 1));
  const double sample = std::clamp(static_cast<double>(busy.count()), 0.0, kMostNanoseconds) / units;
  if (cell.samples == 0) {
    cell.mean = sample;
    cell.deviation = sample / 2;
  } else {
    const double error = sample - cell.mean;
    cell.deviation += kDeviationWeight * (std::abs(error) - cell.deviation);
    cell.mean += kMeanWeight * error;
  }
  cell.samples = std::min(cell.samples + 1, kMinSamples);
  if (is_new) MakeRoom();
}

std::optional<CostModel::Duration> CostModel::Predict(absl::string_view kind, int64_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int cell = CellOf(size);
  const auto [below, above] = Neighbours(std::string(kind), cell);
  if (below == cells_.end() && above == cells_.end()) return std::nullopt;
  const double units = static_cast<double>(std::max<int64_t>(size, 1));
  double ns = 0;
  if (below == above || above == cells_.end()) {
    ns = units * PerUnit(below->second);
  } else if (below == cells_.end()) {
    ns = units * PerUnit(above->second);
  } else {
    const double low = SizeOf(below->first.second), high = SizeOf(above->first.second);
    const double at_low = low * PerUnit(below->second), at_high = high * PerUnit(above->second);
    ns = at_low + (at_high - at_low) * (units - low) / (high - low);
  }
  return Duration(static_cast<int64_t>(std::min(ns, kMostNanoseconds)));
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
                                                                                        int cell) {
  auto below = cells_.end(), above = cells_.end();
  for (auto at = cells_.lower_bound(Key(kind, 0)); at != cells_.end() && at->first.first == kind; ++at) {
    if (at->second.samples < kMinSamples) continue;
    if (at->first.second <= cell) below = at;
    if (at->first.second >= cell && above == cells_.end()) above = at;
  }
  return {below, above};
}

double CostModel::PerUnit(Cell& cell) {
  cell.last_use = ++uses_;
  return cell.mean + kDeviations * cell.deviation;
}

}  // namespace intrawarp
