// SPDX-License-Identifier: Apache-2.0
// The discrete search, step by step, on resident images of noise; the time does not depend on what they show.
//
//   search_bench [DEVICE [NX NY NZ [NODE_MM RANGE_MM]]]
//
// Voxels are cubes of 1 mm. For each step: milliseconds (the median of several), and for the search of one direction
// the floor: its costs, two bytes each, written once and read by every coupled step at the rate of a plain copy in this
// run.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "engine/registration/registration.h"
#include "engine/search/discrete_search.h"
#include "engine/search/feature_grids.h"
#include "engine/search/node_field.h"
#include "tests/bench/bench_support.h"

namespace intrawarp {
namespace {

struct Options {
  std::string device = "auto";
  Int3 size{192, 160, 224};
  double node_mm = 6, range_mm = 48;
};

double Number(const char* text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) Check(absl::InvalidArgumentError(std::string("no number: ") + text));
  return value;
}

Options Parse(int argc, char** argv) {
  Options options;
  if (argc != 1 && argc != 2 && argc != 5 && argc != 7) {
    Check(absl::InvalidArgumentError("usage: search_bench [DEVICE [NX NY NZ [NODE_MM RANGE_MM]]]"));
  }
  if (argc > 1) options.device = argv[1];
  if (argc > 4) {
    for (int a = 0; a < 3; ++a) options.size[a] = static_cast<int>(Number(argv[2 + a]));
  }
  if (argc > 6) {
    options.node_mm = Number(argv[5]);
    options.range_mm = Number(argv[6]);
  }
  return options;
}

// The median milliseconds of a call that ends with the stream.
double Time(const ExecContext& ctx, int times, const std::function<absl::Status()>& call) {
  std::vector<double> ms;
  for (int i = 0; i <= times; ++i) {
    Check(ctx.device().Synchronize(ctx.stream()));
    const Clock::time_point begin = Clock::now();
    Check(call());
    Check(ctx.device().Synchronize(ctx.stream()));
    if (i > 0) ms.push_back(1e3 * Seconds(begin));
  }
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  return ms[ms.size() / 2];
}

PreparedImage Noise(const ExecContext& ctx, const Geometry& grid, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> u(0, 1000);
  std::vector<float> voxels(grid.voxels());
  for (float& v : voxels) v = u(engine);
  return Value(PreparedImage::Prepare(ctx, voxels.data(), PixelType::kFloat32, 1, 0, grid));
}

void Run(const Options& options) {
  const std::unique_ptr<Device> device = Value(OpenDevice(options.device));
  const int times = device->kind() == DeviceKind::kCuda ? 20 : 3;
  Geometry grid;
  grid.size = options.size;
  const SearchOptions stage{.node_mm = options.node_mm, .range_mm = options.range_mm};
  const SearchLayout layout = Value(LayOutSearch(grid, stage.node_mm, stage.range_mm));
  const Int3 n = layout.nodes.size;
  const int64_t nodes = layout.nodes.voxels(), labels = LabelCount(layout.reach);
  OwnedContext scratch = Value(OwnedContext::Create(*device, PreparedImage::WorkspaceBytes(grid, PixelType::kFloat32)));
  const PreparedImage fixed = Noise(scratch.context(), grid, 1), moving = Noise(scratch.context(), grid, 2);
  const RegistrationInput input{&fixed, &moving, nullptr, nullptr, {stage}, AffineMap::Identity()};
  OwnedContext owned = Value(OwnedContext::Create(
      *device, RegistrationWorkspaceBytes(*device, input) + nodes * 32 + 6 * nodes * sizeof(float) + 4096));
  const ExecContext ctx = owned.context();
  std::printf("%s: %dx%dx%d voxels, %dx%dx%d nodes, %lld labels, %.0f MB of costs a direction\n",
              device->model().c_str(), grid.size.x, grid.size.y, grid.size.z, n.x, n.y, n.z,
              static_cast<long long>(labels), 2e-6 * static_cast<double>(nodes * labels));

  const double whole = Time(ctx, times, [&] { return Register(ctx, input).status(); });
  auto* const described = Value(ctx.arena().Allocate<PooledDescriptor>(2 * nodes));
  auto* const field = Value(ctx.arena().Allocate<float>(6 * nodes));
  const Transform identity(AffineMap::Identity());
  const double describe = Time(ctx, times, [&] {
    Check(DescribeNodes(ctx, fixed, {}, identity, layout, described));
    return DescribeNodes(ctx, moving, {}, identity, layout, described + nodes);
  });
  const double search =
      Time(ctx, times, [&] { return SearchDisplacements(ctx, described, described + nodes, n, layout.reach, field); });
  Check(SearchDisplacements(ctx, described + nodes, described, n, layout.reach, field + 3 * nodes));
  const double consistent = Time(ctx, times, [&] { return MakeConsistent(ctx, n, 15, field, field + 3 * nodes); });
  const double bytes = 2.0 * static_cast<double>(nodes * labels) * (1 + std::size(kCouplings));
  const double floor = 1e3 * bytes / CopyBandwidth(*device);
  std::printf("descriptors of both images %8.3f ms\n", describe);
  std::printf("search of one direction    %8.3f ms, floor %.3f ms, of the floor %.2f\n", search, floor, floor / search);
  std::printf("consistency                %8.3f ms\n", consistent);
  std::printf("the whole method           %8.3f ms\n", whole);
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  intrawarp::Run(intrawarp::Parse(argc, argv));
  return 0;
}
