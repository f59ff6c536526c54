// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/device/parallel.h"
#include "engine/metric/ngf_kernels.h"
#include "engine/metric/ngf_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/metric/ngf_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/metric/ngf-inl.h"
#include "hwy/highway.h"

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(MarchBrick);

}  // namespace

int64_t NgfWorkspaceBytes(Int3) { return 0; }

absl::Status EvaluateNgf(const ExecContext&, const NgfTask& task, const int* skip, float* voxel_gradient,
                         MetricValue* value) {
  if (skip != nullptr && *skip != 0) return absl::OkStatus();
  const NgfPlan plan{task, MakeNgfScales(task), voxel_gradient};
  const size_t floats = plan.ScratchFloats();
  const NgfSums sums = OrderedReduce(
      plan.bricks(), NgfSums{},
      [&](int64_t i) {
        NgfSums part;
        HWY_DYNAMIC_DISPATCH(MarchBrick)(plan, i, ThreadScratch<float>(floats), &part);
        return part;
      },
      [](NgfSums& total, const NgfSums& part) {
        total.value += part.value;
        total.weight += part.weight;
        total.samples += part.samples;
      });
  *value = {sums.weight > 0 ? sums.value / sums.weight : std::numeric_limits<double>::quiet_NaN(), sums.samples};
  if (voxel_gradient == nullptr) return absl::OkStatus();
  const float scale = sums.weight > 0 ? static_cast<float>(1 / sums.weight) : 0;
  constexpr int64_t kRun = 1 << 16;
  const int64_t voxels = Voxels(task.size);
  ParallelFor((voxels + kRun - 1) / kRun, [&](int64_t i) {
    for (int64_t k = i * kRun; k < std::min(voxels, (i + 1) * kRun); ++k) voxel_gradient[k] *= scale;
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
