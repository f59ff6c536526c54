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
// The cost of small jobs is mostly what any job takes, whatever its size, and says nothing of large ones. So only a
// prediction for a size that is at most kReach times a learnt size away is sure. Nothing is refused by another one.
//
// A job beside others on the same multiprocessors takes longer than alone, so a cell keeps both costs apart.
//
// A prediction that is too long keeps the jobs away that would correct it. So a sample counts as three times the mean
// at most. A cell starts anew from the second job when that takes less than half of the first (which loads kernels),
// and later from the third job in a row that takes less than half of the mean; MayProbe lets a job through now and
// then.
//
// Memory is bounded: the cell that was used least recently makes room for a new one.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_SCHEDULE_COST_MODEL_H_
#define INTRAWARP_ENGINE_SCHEDULE_COST_MODEL_H_

#include <array>
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
  // Jobs of a cell, alone or beside others, before it predicts that cost.
  static constexpr int kMinSamples = 3;
  // How far a size may be from the nearest learnt one, above or below, as a factor.
  static constexpr int kReach = 4;
  // The cost that is not known equals the other one.
  struct Prediction {
    // More than nearly all jobs take.
    Duration alone{0};
    Duration crowded{0};
    // The mean, alone or crowded, whichever is less.
    Duration expected{0};
    // Jobs of such a size have been seen.
    bool sure = false;
  };

  explicit CostModel(size_t max_cells = 1024) : max_cells_(max_cells) {}

  // A job computed for `busy`, beside others for most of that time if `crowded`. Sizes below 1 count as 1.
  void Observe(absl::string_view kind, int64_t size, Duration busy, bool crowded = false);
  // nullopt while no cell of the kind has had enough jobs.
  std::optional<Prediction> Predict(absl::string_view kind, int64_t size);
  // Whether a job may run that its prediction forbids, to find out whether that still holds. For a cell this is so once
  // in `interval` from the first question after its last job, and at once when that job took less than half of the
  // mean. False without a prediction.
  bool MayProbe(absl::string_view kind, int64_t size, SchedulerClock::Time now, Duration interval);

  size_t cells() const;

 private:
  // The cost of jobs that ran alone, or of those beside others.
  struct Cost {
    int samples = 0;
    int quick = 0;         // jobs in a row that took less than half of the mean
    double mean = 0;       // nanoseconds per unit of size
    double deviation = 0;  // likewise

    void Add(double sample);
  };
  struct Cell {
    std::array<Cost, 2> costs;  // alone, crowded
    // Unset: nobody has asked since the last job.
    std::optional<SchedulerClock::Time> next_probe;
    int64_t last_use = 0;
  };
  using Key = std::pair<std::string, int>;  // kind and quarter of an octave
  using Cells = std::map<Key, Cell, std::less<>>;
  // Nanoseconds of a job of some size.
  struct Estimate {
    double most, mean;
    bool sure;
  };

  static int CellOf(int64_t size);
  static double SizeOf(int cell);
  // All with the mutex held.
  void MakeRoom();
  // The nearest cells of the kind that predict, at or below and at or above; end() where there is none.
  std::pair<Cells::iterator, Cells::iterator> Neighbours(const std::string& kind, int cell, bool crowded);
  std::optional<Estimate> EstimateCost(const std::string& kind, int64_t size, bool crowded);
  Estimate At(Cell& cell, bool crowded, double units, bool sure);

  const size_t max_cells_;
  mutable std::mutex mutex_;
  Cells cells_;
  int64_t uses_ = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_COST_MODEL_H_
