// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/device/parallel.h"
#include "engine/registration/methods/demons_step_kernels.h"
#include "engine/transform/vector_field_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/registration/methods/demons_step_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// DemonsDifference; `face`: one of the neighbours does not exist and is the voxel itself.
HWY_INLINE VF Difference(VF low, VF at, VF high, bool face) {
  const DF d;
  const auto no_low = hn::IsNaN(low), no_high = hn::IsNaN(high);
  const VF difference = hn::Sub(hn::IfThenElse(no_high, at, high), hn::IfThenElse(no_low, at, low));
  const VF one = hn::Set(d, 1.0f), half = hn::Set(d, face ? 1.0f : 0.5f);
  return hn::Mul(difference, hn::IfThenElse(hn::Or(no_low, no_high), one, half));
}

// The weights of the voxels from `voxel` on.
HWY_INLINE VF Weights(const DemonsWeights& weights, int64_t voxel) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  if (weights.bytes == nullptr) return hn::Set(d, 1.0f);
  const VF bytes = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, weights.bytes + voxel)));
  return hn::Min(hn::Mul(bytes, hn::Set(d, weights.per_unit)), hn::Set(d, 1.0f));
}

template <bool kWeighted>
HWY_INLINE ForceRowSums MakeForceRow(const DemonsForceTask& t, const DemonsForceScales& scales, int y, int z,
                                     float* numerator, float* denominator) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const Int3 n = t.size;
  const ptrdiff_t row = n.x, plane = row * n.y;
  const ptrdiff_t first = z * plane + y * row;
  const float* const f = t.fixed + first;
  const float* const m = t.warped + first;
  const ptrdiff_t low[3] = {-1, y > 0 ? -row : 0, z > 0 ? -plane : 0},
                  high[3] = {1, y < n.y - 1 ? row : 0, z < n.z - 1 ? plane : 0};
  const bool face[3] = {false, low[1] == 0 || high[1] == 0, low[2] == 0 || high[2] == 0};
  ForceRowSums sums{0, 0, 0};
  const auto scalar = [&](int x) {
    float square;
    int sample;
    DemonsPull pull = ForceVoxel(f + x, m + x, n, {x, y, z}, scales, &square, &sample);
    if (kWeighted) {
      const float weight = WeightAt(t, first + x);
      square *= weight;
      pull = weight * pull;
      sums.weight += sample != 0 ? weight : 0;
    }
    sums.squares += square;
    sums.samples += sample;
    float* const to = numerator + 3 * x;
    if (t.accumulate) {
      pull.numerator = pull.numerator + Vec3f{to[0], to[1], to[2]};
      pull.denominator += denominator[x];
    }
    to[0] = pull.numerator.x;
    to[1] = pull.numerator.y;
    to[2] = pull.numerator.z;
    denominator[x] = pull.denominator;
  };
  int x = 0;
  scalar(x++);
  VF squares = hn::Zero(d), weights = hn::Zero(d);
  for (; x + lanes <= n.x - 1; x += lanes) {
    const VF at_f = hn::LoadU(d, f + x), at_m = hn::LoadU(d, m + x);
    const VF difference = hn::Sub(at_f, at_m);
    const auto none = hn::IsNaN(difference);
    VF g[3];
    for (int a = 0; a < 3; ++a) {
      const VF df = Difference(hn::LoadU(d, f + x + low[a]), at_f, hn::LoadU(d, f + x + high[a]), face[a]);
      const VF dm = Difference(hn::LoadU(d, m + x + low[a]), at_m, hn::LoadU(d, m + x + high[a]), face[a]);
      g[a] = hn::MulAdd(hn::Set(d, scales.fixed[a]), df, hn::Mul(hn::Set(d, scales.warped[a]), dm));
    }
    const VF square = hn::IfThenZeroElse(none, hn::Mul(difference, difference));
    VF weight = hn::Set(d, 1.0f);
    if (kWeighted) {
      weight =
          hn::IfThenZeroElse(none, hn::Mul(Weights(t.fixed_weights, first + x), Weights(t.warped_weights, first + x)));
      weights = hn::Add(weights, weight);
    }
    squares = hn::Add(squares, kWeighted ? hn::Mul(weight, square) : square);
    sums.samples += lanes - static_cast<int64_t>(hn::CountTrue(d, none));
    VF certainty = hn::MulAdd(square, hn::Set(d, scales.noise), hn::Set(d, scales.flat));
    for (int a = 0; a < 3; ++a) certainty = hn::MulAdd(g[a], g[a], certainty);
    certainty = hn::IfThenZeroElse(none, hn::Mul(certainty, hn::Set(d, scales.weight)));
    if (kWeighted) certainty = hn::Mul(weight, certainty);
    VF pull[3];
    for (int a = 0; a < 3; ++a) {
      pull[a] = hn::IfThenZeroElse(none, hn::Mul(hn::Mul(difference, g[a]), hn::Set(d, scales.step[a])));
      if (kWeighted) pull[a] = hn::Mul(weight, pull[a]);
    }
    if (t.accumulate) {
      VF before[3];
      hn::LoadInterleaved3(d, numerator + 3 * x, before[0], before[1], before[2]);
      for (int a = 0; a < 3; ++a) pull[a] = hn::Add(pull[a], before[a]);
      certainty = hn::Add(certainty, hn::LoadU(d, denominator + x));
    }
    hn::StoreInterleaved3(pull[0], pull[1], pull[2], d, numerator + 3 * x);
    hn::StoreU(certainty, d, denominator + x);
  }
  sums.squares += hn::GetLane(hn::SumOfLanes(d, squares));
  if (kWeighted) sums.weight += hn::GetLane(hn::SumOfLanes(d, weights));
  for (; x < n.x; ++x) scalar(x);
  return sums;
}

ForceRowSums ForceRow(const DemonsForceTask& t, const DemonsForceScales& scales, int y, int z, float* numerator,
                      float* denominator) {
  return t.weighted() ? MakeForceRow<true>(t, scales, y, z, numerator, denominator)
                      : MakeForceRow<false>(t, scales, y, z, numerator, denominator);
}

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

constexpr int64_t kPiece = 1 << 15;

}  // namespace

HWY_EXPORT(ForceRow);

ForceRowSums ForceRow(const DemonsForceTask& task, const DemonsForceScales& scales, int y, int z, float* numerator,
                      float* denominator) {
  return HWY_DYNAMIC_DISPATCH(ForceRow)(task, scales, y, z, numerator, denominator);
}

absl::Status PrepareDemonsImage(const ExecContext&, const float* image, const uint8_t* mask, int64_t voxels,
                                float scale, float offset, float* out) {
  ParallelFor((voxels + kPiece - 1) / kPiece, [&](int64_t piece) {
    const int64_t end = std::min(voxels, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; ++i) {
      const bool counts = mask == nullptr || mask[i] != 0;
      out[i] = counts ? scale * image[i] + offset : std::numeric_limits<float>::quiet_NaN();
    }
  });
  return absl::OkStatus();
}

absl::Status MeasurePair(const ExecContext&, const DemonsPair& pair, int64_t voxels, PairMoments* partial,
                         PairMoments* moments) {
  ParallelFor(MomentPieces(voxels), [&](int64_t piece) {
    PairMoments sums;
    const int64_t end = std::min(voxels, (piece + 1) * kMomentPiece);
    for (int64_t i = piece * kMomentPiece; i < end; ++i) AddPair(pair, i, &sums);
    partial[piece] = sums;
  });
  *moments = PairMoments();
  for (int64_t i = 0; i < MomentPieces(voxels); ++i) AddMoments(partial[i], moments);
  return absl::OkStatus();
}

namespace {

void AddSums(ForceRowSums& total, const ForceRowSums& part) {
  total.squares += part.squares;
  total.samples += part.samples;
  total.weight += part.weight;
}

// Row (y, z) of N and D on a coarser grid.
ForceRowSums CoarseForceRow(const DemonsForceTask& task, const DemonsForceScales& scales, int y, int z,
                            float* numerator, float* denominator) {
  const Int3 n = task.size, cells = task.force_size;
  DemonsForceTask fine = task;
  fine.accumulate = false;
  float* const row = ThreadScratch<float>(4 * static_cast<size_t>(n.x));
  std::vector<DemonsPull> pulls(cells.x);
  ForceRowSums sums{0, 0, 0};
  const DemonsCell lines(n, cells, {0, y, z});
  for (int at_z = lines.first.z; at_z < lines.last.z; ++at_z) {
    for (int at_y = lines.first.y; at_y < lines.last.y; ++at_y) {
      AddSums(sums, ForceRow(fine, scales, at_y, at_z, row, row + 3 * n.x));
      for (int i = 0; i < cells.x; ++i) {
        for (int x = FirstInCell(i, cells.x, n.x); x < FirstInCell(i + 1, cells.x, n.x); ++x) {
          pulls[i].numerator = pulls[i].numerator + LoadVector(row + 3 * x);
          pulls[i].denominator += row[3 * n.x + x];
        }
      }
    }
  }
  for (int i = 0; i < cells.x; ++i) {
    const DemonsPull pull = DemonsCell(n, cells, {i, y, z}).Mean(pulls[i]);
    const Vec3f before = task.accumulate ? LoadVector(numerator + 3 * i) : Vec3f{0, 0, 0};
    StoreVector(before + pull.numerator, numerator + 3 * i);
    denominator[i] = (task.accumulate ? denominator[i] : 0) + pull.denominator;
  }
  return sums;
}

}  // namespace

absl::Status DemonsForce(const ExecContext&, const DemonsForceTask& task, float* force, DemonsState* state,
                         const int* skip) {
  if (skip != nullptr && *skip != 0) return absl::OkStatus();
  const DemonsForceScales scales(task);
  const Int3 n = task.force_size;
  const int64_t rows = int64_t{n.y} * n.z;
  float* const denominator = force + 3 * rows * n.x;
  const auto make_row = task.force_size == task.size ? &ForceRow : &CoarseForceRow;
  const ForceRowSums sums = OrderedReduce(
      rows, ForceRowSums{0, 0, 0},
      [&](int64_t row) {
        return make_row(task, scales, static_cast<int>(row % n.y), static_cast<int>(row / n.y), force + 3 * row * n.x,
                        denominator + row * n.x);
      },
      AddSums);
  const auto samples = static_cast<double>(sums.samples);
  if (state != nullptr) AdvanceDemons(sums.squares, task.weighted() ? sums.weight : samples, samples, state);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif
