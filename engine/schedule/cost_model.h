// SPDX-License-Identifier: Apache-2.0
// CostModel: how long jobs of a kind and a size compute on one device, learnt from those that have.
//
// A kind names all that the cost depends on besides the size ("register/affine,ffd"); the size is a number that the
// cost grows with in proportion (voxels, multiplications). Sizes are kept in cells of a quarter of an octave. A cell
// holds the exponentially weighted mean of the time per unit of size and of its absolute deviation, and predicts the
// mean and four deviations, as TCP does for its time-out (Jacobson, "Congestion avoidance and control", 1988): more
// than nearly all jobs take, and a step in the costs is followed within some ten jobs. A size without a cell of its own
// lies on the line between the nearest cells below and above; beyond the outermost cell the cost is in proportion to
// the size.
//
// Memory is bounded: the cell that was used least recently makes room for a new one.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_SCHEDULE_COST_MODEL_H_
#define INTRAWARP_ENGINE_SCHEDULE_COST_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/schedule/clock.h"

namespace intrawarp {

class CostModel {
 public:
  using Duration = SchedulerClock::Duration;
  // Jobs of a cell before it predicts.
  static constexpr int kMinSamples = 5;

  explicit CostModel(size_t max_cells = 1024) : max_cells_(max_cells) {}

  // A job computed for `busy`. Sizes below 1 count as 1.
  void Observe(absl::string_view kind, int64_t size, Duration busy);
  // nullopt while no cell of the kind has had enough jobs.
  std::optional<Duration> Predict(absl::string_view kind, int64_t size);

  size_t cells() const;

 private:
  struct Cell {
    int samples = 0;
    double mean = 0;       // nanoseconds per unit of size
    double deviation = 0;  // likewise
    int64_t last_use = 0;
  };
  using Key = std::pair<std::string, int>;  // kind and quarter of an octave
  using Cells = std::map<Key, Cell, std::less<>>;

  static int CellOf(int64_t size);
  static double SizeOf(int cell);
  // With the mutex held.
  void MakeRoom();
  // The nearest cells of the kind that predict, at or below and at or above; end() where there is none.
  std::pair<Cells::iterator, Cells::iterator> Neighbours(const std::string& kind, int cell);
  double PerUnit(Cell& cell);

  const size_t max_cells_;
  mutable std::mutex mutex_;
  Cells cells_;
  int64_t uses_ = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_COST_MODEL_H_
