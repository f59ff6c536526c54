// SPDX-License-Identifier: Apache-2.0
// Costs: a task has one label, and smooths its costs in scratch memory of its own. Labels: a task has some nodes, whose
// best labels stay in the cache while it walks over all of them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/device/parallel.h"
#include "engine/search/discrete_search_kernels.h"
#include "engine/transform/displacement.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/search/discrete_search_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

#ifndef INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_CPU_ONCE_
#define INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_CPU_ONCE_
namespace intrawarp::cpu {

// Rows are padded to a multiple of this many nodes, the most lanes of a vector.
constexpr int kRowAlignment = 16;
constexpr int kNodesAtOnce = 64;
// The channels of a row, and their sums of squares; with weights these, too (WeightSteps).
constexpr int kPlanes = kDescriptorChannels + 1;

// The rows of both images as float32, which holds products and sums of channels exactly: plane c of row r begins at
// (r planes + c) times the width. The moving rows have reach.x zeros on either side.
struct DescriptorRows {
  int planes = kPlanes;
  int width = 0, moving_width = 0;
  std::vector<float> fixed, moving;
  // A moving row outside the image.
  std::vector<float> nothing;
};

}  // namespace intrawarp::cpu
#endif  // INTRAWARP_ENGINE_SEARCH_DISCRETE_SEARCH_CPU_ONCE_

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kRowAlignment>;
using DI = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<uint16_t, DI>;
using VI = hn::Vec<DI>;

// The costs of a row of fixed nodes with the moving nodes that their label leads to, as many as `width`.
template <bool kWeighted>
HWY_INLINE void MakeRowCosts(const float* HWY_RESTRICT fixed, const float* HWY_RESTRICT moving, int width,
                             int moving_width, int32_t* HWY_RESTRICT out) {
  const DF d;
  const DI di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int x = 0; x < width; x += lanes) {
    auto product = hn::Mul(hn::LoadU(d, fixed + x), hn::LoadU(d, moving + x));
    for (int c = 1; c < kDescriptorChannels; ++c) {
      product = hn::MulAdd(hn::LoadU(d, fixed + c * width + x), hn::LoadU(d, moving + c * moving_width + x), product);
    }
    const auto squares = hn::LoadU(d, fixed + kDescriptorChannels * width + x);
    const auto others = hn::LoadU(d, moving + kDescriptorChannels * moving_width + x);
    if (kWeighted) {
      // As WeightedCost.
      const VI added = hn::ConvertTo(di, hn::Sub(others, hn::Add(product, product)));
      const VI of_fixed = hn::ConvertTo(di, hn::LoadU(d, fixed + kPlanes * width + x));
      const VI of_moving = hn::ConvertTo(di, hn::LoadU(d, moving + kPlanes * moving_width + x));
      const VI sum = hn::Add(hn::ConvertTo(di, squares), hn::ShiftRight<8>(hn::Mul(of_moving, added)));
      const auto has_one = hn::RebindMask(di, hn::Gt(squares, hn::Zero(d)));
      hn::StoreU(hn::IfThenElseZero(has_one, hn::ShiftRight<8>(hn::Mul(of_fixed, sum))), di, out + x);
      continue;
    }
    const auto cost = hn::Sub(hn::Add(squares, others), hn::Add(product, product));
    hn::StoreU(hn::ConvertTo(di, hn::IfThenElseZero(hn::Gt(squares, hn::Zero(d)), cost)), di, out + x);
  }
}

void RowCosts(const float* HWY_RESTRICT fixed, const float* HWY_RESTRICT moving, int width, int moving_width,
              int32_t* HWY_RESTRICT out) {
  MakeRowCosts<false>(fixed, moving, width, moving_width, out);
}
void WeightedRowCosts(const float* HWY_RESTRICT fixed, const float* HWY_RESTRICT moving, int width, int moving_width,
                      int32_t* HWY_RESTRICT out) {
  MakeRowCosts<true>(fixed, moving, width, moving_width, out);
}

HWY_INLINE VI Smoothed(VI a, VI b, VI c, VI d, VI e) {
  return hn::Add(hn::Add(hn::Add(a, e), c), hn::ShiftLeft<1>(hn::Add(hn::Add(b, d), c)));
}

// out[x] = the smoothed in[x + k step], k = -2 to 2.
void SmoothRow(const int32_t* HWY_RESTRICT in, int64_t step, int width, int32_t* HWY_RESTRICT out) {
  const DI d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int x = 0; x < width; x += lanes) {
    const int32_t* p = in + x;
    hn::StoreU(Smoothed(hn::LoadU(d, p - 2 * step), hn::LoadU(d, p - step), hn::LoadU(d, p), hn::LoadU(d, p + step),
                        hn::LoadU(d, p + 2 * step)),
               d, out + x);
  }
}

// The same as costs.
void SmoothToCosts(const int32_t* HWY_RESTRICT in, int64_t step, const float* HWY_RESTRICT scales, int width,
                   uint16_t* HWY_RESTRICT out) {
  const DI d;
  const DF df;
  const DU16 d16;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int x = 0; x < width; x += lanes) {
    const int32_t* p = in + x;
    const VI sum = Smoothed(hn::LoadU(d, p - 2 * step), hn::LoadU(d, p - step), hn::LoadU(d, p), hn::LoadU(d, p + step),
                            hn::LoadU(d, p + 2 * step));
    const auto scaled = hn::Mul(hn::ConvertTo(df, sum), hn::LoadU(df, scales + x));
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(scaled)), d16, out + x);
  }
}

// best[i] and score[i] against `costs` of label `label`; term[i] is what is added to 256 costs, and grows by step[i].
void TakeLabel(const uint16_t* HWY_RESTRICT costs, int label, int added, const int32_t* HWY_RESTRICT step,
               int32_t* HWY_RESTRICT term, int32_t* HWY_RESTRICT score, int32_t* HWY_RESTRICT best) {
  const DI d;
  const DU16 d16;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const VI labels = hn::Set(d, label), constant = hn::Set(d, added);
  for (int i = 0; i < kNodesAtOnce; i += lanes) {
    const VI before = hn::LoadU(d, term + i), least = hn::LoadU(d, score + i);
    const VI cost = hn::ShiftLeft<8>(hn::PromoteTo(d, hn::LoadU(d16, costs + i)));
    const VI sum = hn::Add(hn::Add(cost, before), constant);
    const auto is_better = hn::Lt(sum, least);
    hn::StoreU(hn::Add(before, hn::LoadU(d, step + i)), d, term + i);
    hn::StoreU(hn::Min(sum, least), d, score + i);
    hn::StoreU(hn::IfThenElse(is_better, labels, hn::LoadU(d, best + i)), d, best + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(RowCosts);
HWY_EXPORT(WeightedRowCosts);
HWY_EXPORT(SmoothRow);
HWY_EXPORT(SmoothToCosts);
HWY_EXPORT(TakeLabel);

int64_t Rows(Int3 size) { return int64_t{size.y} * size.z; }

// `weights` are read where there are more than kPlanes `planes`.
std::vector<float> MakeRows(const PooledDescriptor* nodes, const uint8_t* weights, int planes, Int3 size, int before,
                            int width) {
  std::vector<float> rows(Rows(size) * planes * width);
  ParallelFor(Rows(size), [&](int64_t row) {
    float* out = rows.data() + row * planes * width + before;
    for (int x = 0; x < size.x; ++x) {
      const PooledDescriptor& node = nodes[row * size.x + x];
      for (int c = 0; c < kDescriptorChannels; ++c) out[c * width + x] = node.channel[c];
      out[kDescriptorChannels * width + x] = static_cast<float>(node.squares);
      if (planes > kPlanes) out[kPlanes * width + x] = static_cast<float>(WeightSteps(weights, row * size.x + x));
    }
  });
  return rows;
}

DescriptorRows MakeDescriptorRows(const DiscreteSearch& in) {
  DescriptorRows rows;
  rows.planes = in.weighted() ? kPlanes + 1 : kPlanes;
  rows.width = (in.size.x + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  rows.moving_width = rows.width + 2 * in.reach.x;
  rows.fixed = MakeRows(in.fixed, in.weights.fixed, rows.planes, in.size, 0, rows.width);
  rows.moving = MakeRows(in.moving, in.weights.moving, rows.planes, in.size, in.reach.x, rows.moving_width);
  rows.nothing.resize(rows.planes * rows.moving_width);
  return rows;
}

std::vector<float> MakeScales(Int3 size) {
  std::vector<float> scales(Rows(size) * size.x + kRowAlignment);
  ParallelFor(Rows(size), [&](int64_t row) {
    const int y = static_cast<int>(row % size.y), z = static_cast<int>(row / size.y);
    for (int x = 0; x < size.x; ++x) scales[row * size.x + x] = CostScale(size, {x, y, z});
  });
  return scales;
}

// The costs of a label, smoothed along x and y: rows [2, 2 + size.z) of planes; the two planes before and after are 0.
void PlanesOfLabel(const DiscreteSearch& in, const DescriptorRows& rows, Int3 label, int32_t* planes) {
  const Int3 n = in.size;
  const int64_t width = rows.width, plane = width * n.y;
  auto* const scratch = ThreadScratch<int32_t>(width * (n.y + 4) + width + 4 + kRowAlignment);
  int32_t* const raw = scratch + width * (n.y + 4);
  std::memset(scratch, 0, sizeof(int32_t) * (width * (n.y + 4) + width + 4 + kRowAlignment));
  std::memset(planes, 0, sizeof(int32_t) * 2 * plane);
  std::memset(planes + plane * (n.z + 2), 0, sizeof(int32_t) * 2 * plane);
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      const int other_y = y + label.y, other_z = z + label.z;
      const bool inside = other_y >= 0 && other_z >= 0 && other_y < n.y && other_z < n.z;
      const float* fixed = rows.fixed.data() + (int64_t{z} * n.y + y) * rows.planes * width;
      const int64_t other_row = int64_t{other_z} * n.y + other_y;
      const float* moving =
          (inside ? rows.moving.data() + other_row * rows.planes * rows.moving_width : rows.nothing.data()) +
          in.reach.x + label.x;
      if (in.weighted()) {
        HWY_DYNAMIC_DISPATCH(WeightedRowCosts)(fixed, moving, rows.width, rows.moving_width, raw + 2);
      } else {
        HWY_DYNAMIC_DISPATCH(RowCosts)(fixed, moving, rows.width, rows.moving_width, raw + 2);
      }
      HWY_DYNAMIC_DISPATCH(SmoothRow)(raw + 2, 1, rows.width, scratch + (y + 2) * width);
    }
    for (int y = 0; y < n.y; ++y) {
      HWY_DYNAMIC_DISPATCH(SmoothRow)
      (scratch + (y + 2) * width, width, rows.width, planes + (z + 2) * plane + y * width);
    }
  }
}

struct Planes {
  int32_t value;
};

void CostsOfLabel(const DiscreteSearch& in, const DescriptorRows& rows, const std::vector<float>& scales, int label) {
  const Int3 n = in.size;
  const int64_t width = rows.width, plane = width * n.y;
  int32_t* const planes = &ThreadScratch<Planes>(plane * (n.z + 4))->value;
  PlanesOfLabel(in, rows, LabelAt(in.reach, label), planes);
  uint16_t* const costs = in.costs + label * in.stride;
  // In order: a row writes beyond its end, where the next one begins.
  for (int64_t row = 0; row < Rows(n); ++row) {
    HWY_DYNAMIC_DISPATCH(SmoothToCosts)
    (planes + 2 * plane + row * width, plane, scales.data() + row * n.x, rows.width, costs + row * n.x);
  }
}

// The best labels of the nodes [first, first + kNodesAtOnce).
void BestLabels(const DiscreteSearch& in, int coupling, int64_t first) {
  int32_t score[kNodesAtOnce], best[kNodesAtOnce] = {}, term[kNodesAtOnce], step[kNodesAtOnce];
  std::fill_n(score, kNodesAtOnce, std::numeric_limits<int32_t>::max());
  const int32_t *ux = in.u + first, *uy = ux + in.stride, *uz = uy + in.stride;
  for (int i = 0; i < kNodesAtOnce; ++i) step[i] = -2 * coupling * ux[i];
  const Int3 r = in.reach;
  int label = 0;
  for (int z = -r.z; z <= r.z; ++z) {
    for (int y = -r.y; y <= r.y; ++y) {
      const int length = y * y + z * z;
      for (int i = 0; i < kNodesAtOnce; ++i) term[i] = -2 * coupling * (y * uy[i] + z * uz[i] - r.x * ux[i]);
      for (int x = -r.x; x <= r.x; ++x, ++label) {
        HWY_DYNAMIC_DISPATCH(TakeLabel)
        (in.costs + label * in.stride + first, label, coupling * kDisplacementSteps * (x * x + length), step, term,
         score, best);
      }
    }
  }
  std::copy_n(best, kNodesAtOnce, in.best + first);
}

int64_t Nodes(const DiscreteSearch& in) { return Rows(in.size) * in.size.x; }

}  // namespace

absl::Status ComputeCosts(const ExecContext&, const DiscreteSearch& in) {
  const DescriptorRows rows = MakeDescriptorRows(in);
  const std::vector<float> scales = MakeScales(in.size);
  ParallelFor(LabelCount(in.reach), [&](int64_t label) { CostsOfLabel(in, rows, scales, static_cast<int>(label)); });
  return absl::OkStatus();
}

absl::Status PullCosts(const ExecContext&, const DiscreteSearch& in, const PulledCosts& pulled) {
  ParallelFor(LabelCount(in.reach), [&](int64_t label) {
    for (int i = 0; i < pulled.count; ++i) AddPull(in, pulled.pulls[i], static_cast<int>(label));
  });
  return absl::OkStatus();
}

absl::Status CoupledStep(const ExecContext&, const DiscreteSearch& in, int coupling) {
  ParallelFor((Nodes(in) + kNodesAtOnce - 1) / kNodesAtOnce,
              [&](int64_t i) { BestLabels(in, coupling, i * kNodesAtOnce); });
  ParallelFor(Rows(in.size), [&](int64_t row) {
    const int y = static_cast<int>(row % in.size.y), z = static_cast<int>(row / in.size.y);
    for (int x = 0; x < in.size.x; ++x) AverageLabels(in, row * in.size.x + x, {x, y, z});
  });
  return absl::OkStatus();
}

absl::Status WriteDisplacements(const ExecContext&, const DiscreteSearch& in) {
  ParallelFor(Rows(in.size), [&](int64_t row) {
    for (int x = 0; x < in.size.x; ++x) WriteDisplacement(in, row * in.size.x + x);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
