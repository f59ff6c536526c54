// SPDX-License-Identifier: Apache-2.0
// LNCC and NGF of two stored images, with and without the voxel gradient.
//
//   voxel_gradient_bench [--benchmark_filter=cuda:0/lncc/...] ...
//
// ns_voxel: time over voxels. bytes_voxel: what the operator's passes read and write in global memory, each array
// counted once a pass. floor_ms: reading both images and writing the voxel gradient (12 bytes a voxel; 8 without) at
// the bandwidth that a plain copy reaches on this device in this run; passes_ms: the operator's own bytes at that
// bandwidth. to_floor, to_passes: time over these. On CUDA the time is that of 20 evaluations enqueued together.
#include <benchmark/benchmark.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/device/parallel.h"
#include "engine/metric/lncc.h"
#include "engine/metric/ngf.h"
#include "tests/bench/device_benchmarks.h"

namespace intrawarp {
namespace {

// A textured body in a flat surrounding; a part of the warped one has no source.
struct Images {
  Images(Device& device, const ExecContext& ctx, Int3 size) {
    const int64_t plane = int64_t{size.x} * size.y, voxels = plane * size.z;
    std::vector<float> f(voxels), m(voxels);
    ParallelFor(size.z, [&](int64_t z) {
      for (int y = 0; y < size.y; ++y)
        for (int x = 0; x < size.x; ++x) {
          const double u = 2.0 * x / size.x - 1, v = 2.0 * y / size.y - 1, w = 2.0 * z / size.z - 1;
          const double body = 1 / (1 + std::exp((std::sqrt(1.6 * u * u + 2 * v * v + 1.8 * w * w) - 1) * 30));
          const double inner = std::sin(27 * u + 2 * v) + std::sin(26 * v - 3 * w) + std::sin(25 * w + 4 * u * v);
          const int64_t i = z * plane + int64_t{y} * size.x + x;
          f[i] = static_cast<float>(body * (100 + 18 * inner));
          m[i] = static_cast<float>(body * (130 - 12 * inner + 4 * std::sin(40 * u + 30 * w)));
          if (u + 0.2 * v > 0.95) m[i] = std::numeric_limits<float>::quiet_NaN();
        }
    });
    fixed = *device.Allocate(voxels * sizeof(float), ctx.stream());
    warped = *device.Allocate(voxels * sizeof(float), ctx.stream());
    voxel_gradient = *device.Allocate(voxels * sizeof(float), ctx.stream());
    value = *device.Allocate(sizeof(MetricValue), ctx.stream());
    Check(device.Copy(fixed.as<void>(), f.data(), voxels * sizeof(float), ctx.stream()));
    Check(device.Copy(warped.as<void>(), m.data(), voxels * sizeof(float), ctx.stream()));
    Check(device.Synchronize(ctx.stream()));
  }
  Buffer fixed, warped, voxel_gradient, value;
};

// Bytes a voxel; lncc_cuda.cu and ngf_cuda.cu explain the numbers of CUDA. On the CPU LNCC stores counts, A, B
// and C.
double PassBytes(DeviceKind device, MetricKind metric, bool with_gradient) {
  if (metric == MetricKind::kNgf) return with_gradient ? 20 : 8;
  if (device == DeviceKind::kCpu) return with_gradient ? 24 : 9;
  return with_gradient ? 39 : 21;
}

void Bench(benchmark::State& state, Device* device, MetricKind metric, Int3 size, bool with_gradient) {
  const int64_t workspace = metric == MetricKind::kLncc ? LnccWorkspaceBytes(size) : NgfWorkspaceBytes(size);
  OwnedContext owned = *OwnedContext::Create(*device, workspace);
  const ExecContext ctx = owned.context();
  Images images(*device, ctx, size);
  float* voxel_gradient = with_gradient ? images.voxel_gradient.as<float>() : nullptr;
  const auto evaluate = [&] {
    if (metric == MetricKind::kLncc) {
      const LnccTask task{images.fixed.as<float>(), images.warped.as<float>(), size, 2.5, 1e-3, 1e-3};
      Check(EvaluateLncc(ctx, task, nullptr, voxel_gradient, images.value.as<MetricValue>()));
    } else {
      const NgfTask task{images.fixed.as<float>(), images.warped.as<float>(), size, {1, 1, 1}, 3, 3};
      Check(EvaluateNgf(ctx, task, nullptr, voxel_gradient, images.value.as<MetricValue>()));
    }
  };
  evaluate();
  Check(device->Synchronize(ctx.stream()));
  const int launches = ctx.is_cuda() ? 20 : 1;
  double total = 0;
  int64_t rounds = 0;
  for (auto _ : state) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < launches; ++i) evaluate();
    Check(device->Synchronize(ctx.stream()));
    const double seconds = Seconds(begin) / launches;
    state.SetIterationTime(seconds);
    total += seconds;
    ++rounds;
  }
  const double seconds = total / rounds, voxels = double{1} * size.x * size.y * size.z;
  const double bandwidth = CopyBandwidth(*device), bytes = PassBytes(device->kind(), metric, with_gradient);
  const double floor = voxels * (with_gradient ? 12 : 8) / bandwidth;
  state.counters["ns_voxel"] = seconds / voxels * 1e9;
  state.counters["bytes_voxel"] = bytes;
  state.counters["floor_ms"] = floor * 1e3;
  state.counters["to_floor"] = seconds / floor;
  state.counters["passes_ms"] = voxels * bytes / bandwidth * 1e3;
  state.counters["to_passes"] = seconds / (voxels * bytes / bandwidth);
}

void RegisterAll(Device* device) {
  std::vector<Int3> sizes = {{74, 33, 52}, {147, 65, 104}, {294, 130, 208}};
  if (device->kind() == DeviceKind::kCuda) sizes.push_back({512, 228, 385});
  for (MetricKind metric : {MetricKind::kLncc, MetricKind::kNgf}) {
    for (const Int3 size : sizes) {
      for (bool with_gradient : {true, false}) {
        const std::string name = absl::StrCat(device->name(), "/", MetricName(metric), "/", size.x, "x", size.y, "x",
                                              size.z, with_gradient ? "/voxel_gradient" : "/value");
        benchmark::RegisterBenchmark(name.c_str(), Bench, device, metric, size, with_gradient)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) { return intrawarp::DeviceBenchmarksMain(argc, argv, intrawarp::RegisterAll); }
