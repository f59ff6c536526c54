// SPDX-License-Identifier: Apache-2.0
// Sparse products A A of the generators' matrices, resident on the device.
//
//   sparse_bench [--benchmark_filter=cuda:0/multiply/fp32/fem27x3_25] ...
//
// multiply: pattern, allocation of the result and values; plan: the pattern alone; execute: the values of a plan.
// median_us and gflops (two a product) are of single calls, each waited for. floor_us: A twice, C and their row offsets
// at the bandwidth of a plain copy of 1 GiB (CPU: 256 MiB); to_floor: median over it. Each result is checked first:
// C x against A (A x).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/sparse/multiply.h"
#include "tests/bench/sparse_generators.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

double Seconds(const ExecContext& ctx, const std::function<absl::Status()>& call) {
  const Clock::time_point begin = Clock::now();
  Check(call());
  Check(ctx.device().Synchronize(ctx.stream()));
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Read and written, at the best of ten copies.
double BytesPerSecond(const ExecContext& ctx) {
  const size_t bytes = ctx.is_cuda() ? size_t{1} << 30 : size_t{1} << 28;
  Buffer from = *ctx.device().Allocate(bytes, ctx.stream()), to = *ctx.device().Allocate(bytes, ctx.stream());
  Check(ctx.device().Fill(from.as<void>(), 1, bytes, ctx.stream()));
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    best = std::min(
        best, Seconds(ctx, [&] { return ctx.device().Copy(to.as<void>(), from.as<void>(), bytes, ctx.stream()); }));
  }
  return 2 * bytes / best;
}

template <typename T>
std::vector<double> Apply(const HostCsr<T>& m, const std::vector<double>& x) {
  std::vector<double> y(m.rows);
  for (int32_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) {
      y[r] += static_cast<double>(m.values[i]) * x[m.column_indices[i]];
    }
  }
  return y;
}

// Every term is positive, so that the relative error is that of the entries.
template <typename T>
void CheckSquare(const HostCsr<T>& a, const HostCsr<T>& c) {
  std::vector<double> x(a.columns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1 + static_cast<double>(i % 7);
  const std::vector<double> expected = Apply(a, Apply(a, x)), got = Apply(c, x);
  const double tolerance = sizeof(T) == 4 ? 1e-4 : 1e-12;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - expected[i]) <= tolerance * expected[i]) continue;
    std::cerr << "row " << i << " of the product is wrong: " << got[i] << " for " << expected[i] << "\n";
    std::exit(1);
  }
}

enum class Part { kMultiply, kPlan, kExecute };

template <typename T>
void BenchSquare(benchmark::State& state, Device* device, const std::string& name, Part part) {
  const HostCsr<double> made = *MatrixByName(name, 1);
  const HostCsr<T> host = {made.rows, made.columns, made.row_offsets, made.column_indices,
                           std::vector<T>(made.values.begin(), made.values.end())};
  MultiplyOptions options;
  options.precision = sizeof(T) == 4 ? MultiplyPrecision::kFp32 : MultiplyPrecision::kFp64;
  OwnedContext small = *OwnedContext::Create(*device, 1 << 20);
  CsrMatrix a = *CsrMatrix::Upload(*device, small.context().stream(), host);
  const MultiplyEstimate estimate = *EstimateMultiply(small.context(), a.view(), a.view(), options);
  OwnedContext owned = *OwnedContext::Create(*device, std::max<int64_t>(estimate.workspace_bytes, 1));
  const ExecContext ctx = owned.context();

  auto c = Multiply(ctx, a.view(), a.view(), options);
  Check(c.status());
  CheckSquare(host, *c->template Download<T>(*device, ctx.stream()));
  const int64_t bytes = 2 * a.bytes() + c->bytes(), entries = c->view().entries;
  const double floor = static_cast<double>(bytes) / BytesPerSecond(ctx);
  auto plan = PlanMultiply(ctx, a.view(), a.view(), options);
  Check(plan.status());
  const std::function<absl::Status()> call = [&]() -> absl::Status {
    if (part == Part::kPlan) return PlanMultiply(ctx, a.view(), a.view(), options).status();
    if (part == Part::kMultiply) return Multiply(ctx, a.view(), a.view(), options).status();
    return ExecuteMultiply(ctx, *plan, a.view(), a.view(), c->values());
  };
  Seconds(ctx, call);
  std::vector<double> times;
  for (auto _ : state) {
    times.push_back(Seconds(ctx, call));
    state.SetIterationTime(times.back());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  const double median = times[times.size() / 2];
  state.counters["median_us"] = median * 1e6;
  state.counters["floor_us"] = floor * 1e6;
  state.counters["to_floor"] = median / floor;
  state.counters["gflops"] = part == Part::kPlan ? 0 : 2 * estimate.products / median * 1e-9;
  state.counters["entries"] = entries;
}

template <typename T>
void Register(Device* device, const char* precision, const std::string& name) {
  for (const auto& [part, label] :
       {std::pair(Part::kMultiply, "multiply"), std::pair(Part::kPlan, "plan"), std::pair(Part::kExecute, "execute")}) {
    benchmark::RegisterBenchmark(absl::StrCat(device->name(), "/", label, "/", precision, "/", name).c_str(),
                                 BenchSquare<T>, device, name, part)
        ->UseManualTime()
        ->Iterations(device->kind() == DeviceKind::kCuda ? 20 : 3)
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const auto devices = intrawarp::AllDevices();
  for (const auto& device : devices) {
    for (const char* name :
         {"fem27x3_25", "fem27x6_18", "stencil27_64", "band_9506", "lap2d_725", "cage_130k", "rmat_500k"}) {
      intrawarp::Register<float>(device.get(), "fp32", name);
      intrawarp::Register<double>(device.get(), "fp64", name);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
