// SPDX-License-Identifier: Apache-2.0
// The B-spline interpolation of Zachariadis (2020, chapter 2) beside the product's, on one device in one run.
//
//   bspline_baselines_bench [--device=auto|cpu|cuda] [--csv] [--repeats=N] [--volume=NAME]
//
// Control points are uniform in (-10, 10). Errors are against the plain sum in float64, over a fixed set of rows of
// about 2^20 voxels a volume (ComparedRowStride). The floors are plain stores of what a variant writes: 16 bytes a
// voxel for the thesis's variants on CUDA, 12 for the product's and for all on the CPU.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/bench/baselines/bench_main.h"
#include "tests/bench/baselines/bspline_variants.h"
#include "tests/bench/baselines/table.h"

namespace intrawarp::baselines {
namespace {

constexpr int kTiles = kMaxTile - kMinTile + 1;
constexpr char kProduct[] = "EvaluateControlGrid (ours)";
constexpr char kFloor16[] = "floor: store of 16 B/voxel";
constexpr char kFloor12[] = "floor: store of 12 B/voxel";

struct Measurement {
  double seconds = NAN, mean = NAN, max = NAN;
};
// By name, then tile - kMinTile.
using Measurements = std::map<std::string, Measurement[kTiles]>;

class VolumeBench {
 public:
  VolumeBench(const ExecContext& ctx, int repeats, Int3 size)
      : ctx_(ctx), repeats_(repeats), size_(size), row_stride_(ComparedRowStride(size)) {}

  absl::StatusOr<Measurements> Measure() {
    const size_t bytes = int64_t{16} * size_.x * size_.y * size_.z;
    INTRAWARP_ASSIGN_OR_RETURN(out_, ctx_.device().Allocate(bytes, ctx_.stream()));
    for (int tile = kMinTile; tile <= kMaxTile; ++tile) INTRAWARP_RETURN_IF_ERROR(MeasureTile({size_, tile}));
    return std::move(results_);
  }

 private:
  absl::Status MeasureTile(const TiledVolume& volume) {
    const std::vector<Float4> control = RandomControlPoints(volume, 1);
    reference_ = ReferenceRows(volume, control, row_stride_);
    const size_t bytes = control.size() * sizeof(Float4);
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer on_device, ctx_.device().Allocate(bytes, ctx_.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Copy(on_device.as<void>(), control.data(), bytes, ctx_.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Synchronize(ctx_.stream()));
    for (const Variant& variant : Variants(ctx_)) {
      INTRAWARP_ASSIGN_OR_RETURN(const Work work, variant.make(ctx_, volume, on_device.as<Float4>(), out_.as<float>()));
      INTRAWARP_RETURN_IF_ERROR(MeasureWork(variant.name, work, LayoutOf(ctx_, volume), volume.tile));
    }
    INTRAWARP_ASSIGN_OR_RETURN(const Work product, MakeProduction(ctx_, volume, control, out_.as<float>()));
    INTRAWARP_RETURN_IF_ERROR(MeasureWork(kProduct, product, InterleavedLayout(3), volume.tile));
    return MeasureFloors(volume.tile);
  }

  absl::Status MeasureWork(const char* name, const Work& work, FieldLayout layout, int tile) {
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Fill(out_.as<void>(), 0xff, out_.bytes(), ctx_.stream()));
    INTRAWARP_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(ctx_, repeats_, work));
    INTRAWARP_ASSIGN_OR_RETURN(const FieldError error,
                               CompareRows(ctx_, out_.as<float>(), layout, size_, row_stride_, reference_));
    results_[name][tile - kMinTile] = {seconds, error.mean, error.max};
    return absl::OkStatus();
  }

  // Measured beside each tile, so that both see the same machine.
  absl::Status MeasureFloors(int tile) {
    const size_t voxels = int64_t{size_.x} * size_.y * size_.z;
    for (const size_t bytes : {12, 16}) {
      if (bytes == 16 && !ctx_.is_cuda()) continue;
      INTRAWARP_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(ctx_, repeats_, [&] {
                                   return Fill(ctx_, out_.as<void>(), bytes * voxels / 16 * 16);
                                 }));
      results_[bytes == 16 ? kFloor16 : kFloor12][tile - kMinTile].seconds = seconds;
    }
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  const int repeats_;
  const Int3 size_;
  const int64_t row_stride_;
  Buffer out_;
  std::vector<double> reference_;
  Measurements results_;
};

std::vector<std::string> RowNames(const ExecContext& ctx) {
  std::vector<std::string> names;
  for (const Variant& v : Variants(ctx)) names.push_back(v.name);
  names.push_back(kProduct);
  if (ctx.is_cuda()) names.push_back(kFloor16);
  names.push_back(kFloor12);
  return names;
}

std::vector<std::string> TileColumns() {
  std::vector<std::string> columns;
  for (int tile = kMinTile; tile <= kMaxTile; ++tile) columns.push_back(absl::StrCat("tile ", tile));
  return columns;
}

void PrintTimes(const ExecContext& ctx, const NamedVolume& volume, const Measurements& results) {
  const double voxels = 1.0 * volume.size.x * volume.size.y * volume.size.z;
  Table table(absl::StrCat("ns/voxel, ", volume.name, " ", volume.size.x, "x", volume.size.y, "x", volume.size.z,
                           " (Zachariadis 2020, figures 2.8, 2.9 and 2.12)"),
              TileColumns(), ctx.is_cuda() ? "%.5f" : "%.3f");
  for (const std::string& name : RowNames(ctx)) {
    std::vector<double> times;
    for (const Measurement& m : results.at(name)) times.push_back(m.seconds / voxels * 1e9);
    table.Add(name, times);
  }
  table.Print();
}

// The product's goals: its part of the store bandwidth, and its speed over the fastest published variant.
void PrintRatios(const ExecContext& ctx, const std::vector<Measurements>& all,
                 const std::vector<NamedVolume>& volumes) {
  const std::string best = ctx.is_cuda() ? "TTLI" : "VT", second = ctx.is_cuda() ? "TT" : "VV";
  Table table("time over ours; ours over its floor", TileColumns(), "%.3f");
  for (size_t v = 0; v < all.size(); ++v) {
    const auto& ours = all[v].at(kProduct);
    const auto add = [&](const std::string& name, const Measurement* above, const Measurement* below) {
      std::vector<double> ratios;
      for (int t = 0; t < kTiles; ++t) ratios.push_back(above[t].seconds / below[t].seconds);
      table.Add(absl::StrCat(volumes[v].name, " ", name), ratios);
    };
    add(best + " / ours", all[v].at(best), ours);
    add(second + " / ours", all[v].at(second), ours);
    add("12 B floor / ours", all[v].at(kFloor12), ours);
  }
  table.Print();
}

// Tables 2.2 and 2.3: the mean over the volumes of Table 2.1.
void PrintErrors(const ExecContext& ctx, const std::vector<Measurements>& all) {
  std::vector<std::string> columns = TileColumns();
  columns.push_back("mean");
  columns.push_back("largest");
  columns.push_back("paper");
  Table table(absl::StrCat("mean absolute error against float64, 1e-6 (Zachariadis 2020, table ",
                           ctx.is_cuda() ? "2.2" : "2.3", "); largest of any voxel"),
              columns, "%.4g");
  const auto add = [&](const std::string& name, double paper_error) {
    std::vector<double> row(kTiles);
    double mean = 0, largest = 0;
    for (const Measurements& results : all)
      for (int t = 0; t < kTiles; ++t) {
        const Measurement& m = results.at(name)[t];
        row[t] += 1e6 * m.mean / all.size();
        mean += 1e6 * m.mean / (all.size() * kTiles);
        largest = std::max(largest, 1e6 * m.max);
      }
    row.insert(row.end(), {mean, largest, paper_error});
    table.Add(name, row);
  };
  for (const Variant& v : Variants(ctx)) add(v.name, v.paper_error);
  add(kProduct, NAN);
  table.Print();
}

void PrintCsv(const ExecContext& ctx, const NamedVolume& volume, const Measurements& results) {
  const double voxels = 1.0 * volume.size.x * volume.size.y * volume.size.z;
  for (const std::string& name : RowNames(ctx))
    for (int t = 0; t < kTiles; ++t) {
      const Measurement& m = results.at(name)[t];
      std::printf("%s,%s,%dx%dx%d,%s,%d,%.6g,%.6g,%.6g\n", ctx.device().name().c_str(), volume.name, volume.size.x,
                  volume.size.y, volume.size.z, name.c_str(), t + kMinTile, m.seconds / voxels * 1e9, m.mean, m.max);
    }
  std::fflush(stdout);
}

absl::Status Bench(const ExecContext& ctx, const BenchFlags& flags) {
  std::vector<NamedVolume> volumes, measured;
  for (const NamedVolume& v : kPaperVolumes) volumes.push_back(v);
  volumes.push_back({"256^3", {256, 256, 256}});
  volumes.push_back({"512^3", {512, 512, 512}});
  if (flags.csv) std::printf("device,volume,size,variant,tile,ns_per_voxel,mean_error,max_error\n");
  std::vector<Measurements> all, of_paper;
  for (const NamedVolume& volume : volumes) {
    if (!flags.volume.empty() && flags.volume != volume.name) continue;
    INTRAWARP_ASSIGN_OR_RETURN(const Measurements results, VolumeBench(ctx, flags.repeats, volume.size).Measure());
    flags.csv ? PrintCsv(ctx, volume, results) : PrintTimes(ctx, volume, results);
    measured.push_back(volume);
    all.push_back(results);
    if (measured.size() <= kPaperVolumes.size()) of_paper.push_back(results);
  }
  if (all.empty()) return absl::InvalidArgumentError(absl::StrCat("volume: no \"", flags.volume, "\""));
  if (flags.csv) return absl::OkStatus();
  PrintRatios(ctx, all, measured);
  PrintErrors(ctx, of_paper);
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp::baselines

int main(int argc, char** argv) {
  return intrawarp::baselines::BenchMain(
      argc, argv, "Errors and times of B-spline interpolation by Zachariadis (2020) beside ours.",
      intrawarp::baselines::Bench);
}
