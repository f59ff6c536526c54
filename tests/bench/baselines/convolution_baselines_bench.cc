// SPDX-License-Identifier: Apache-2.0
// The convolution and summation schemes of Álvarez González (2015) beside the product's Gaussian, on one device in one
// run.
//
//   convolution_baselines_bench [--device=auto|cpu|cuda] [--csv] [--repeats=N] [--volume=NAME]
//
// A field of three components, uniform in (-10, 10), is smoothed with a Gaussian window of 21, 41, 61 or 81 voxels (the
// thesis has 20 to 80), cut at 3 sigma. The thesis's kernel takes all components at a time; ours (SmoothGaussian) is
// called for each. Times are ns per voxel of three components. Errors are mean and largest, against float64, of the
// pass along x (where the thesis's window is float32, and ours is the exact Gaussian, normalised at the faces), over
// rows of about 2^20 voxels. The floor is a plain copy of three components, 24 bytes a voxel, once.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/image/smooth.h"
#include "tests/bench/baselines/bench_main.h"
#include "tests/bench/baselines/convolution_schemes.h"
#include "tests/bench/baselines/table.h"

namespace intrawarp::baselines {
namespace {

constexpr int kRadii[] = {10, 20, 30, 40};
constexpr WindowLoop kBest = {false, 5};  // for the passes along y and z

struct Row {
  std::string name;
  FieldError error;
  // Along x: with an `if` unrolled 1, 5, 20 times; without it likewise. Then y, z with kBest, and all three passes.
  std::vector<double> seconds;
};

double SigmaOf(int radius) { return radius / 3.0 - 1e-3; }  // ceil(3 sigma) = radius

std::vector<double> ExactWindow(int radius) {
  std::vector<double> window(2 * radius + 1);
  double sum = 0;
  for (int k = -radius; k <= radius; ++k) sum += window[k + radius] = std::exp(-0.5 * std::pow(k / SigmaOf(radius), 2));
  for (double& w : window) w /= sum;
  return window;
}

class VolumeBench {
 public:
  VolumeBench(const ExecContext& ctx, int repeats, Int3 size)
      : ctx_(ctx), repeats_(repeats), size_(size), voxels_(int64_t{size.x} * size.y * size.z), planes_(3 * voxels_) {
    std::mt19937 engine(1);
    std::uniform_real_distribution<float> value(-10, 10);
    for (float& v : planes_) v = value(engine);
  }

  absl::Status Prepare() {
    INTRAWARP_RETURN_IF_ERROR(Upload(planes_, &planes_buffer_));
    if (ctx_.is_cuda()) {
      std::vector<float> interleaved(4 * voxels_);
      for (int64_t i = 0; i < 3 * voxels_; ++i) interleaved[i % voxels_ * 4 + i / voxels_] = planes_[i];
      INTRAWARP_RETURN_IF_ERROR(Upload(interleaved, &interleaved_buffer_));
    }
    INTRAWARP_ASSIGN_OR_RETURN(out_, ctx_.device().Allocate(16 * voxels_, ctx_.stream()));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Row>> Measure(int radius) {
    std::vector<Row> rows;
    const std::vector<double> exact = ExactWindow(radius);
    const std::vector<float> window(exact.begin(), exact.end());
    const int64_t stride = ComparedRowStride(size_);
    reference_ = ReferenceConvolution(planes_, size_, 0, {window.begin(), window.end()}, false, stride);
    for (Summation summation : kSummations) {
      INTRAWARP_ASSIGN_OR_RETURN(Row row, MeasureScheme(summation, window));
      rows.push_back(row);
    }
    reference_ = ReferenceConvolution(planes_, size_, 0, exact, true, stride);
    INTRAWARP_ASSIGN_OR_RETURN(Row ours, MeasureOurs(SigmaOf(radius)));
    rows.push_back(ours);
    INTRAWARP_ASSIGN_OR_RETURN(const double copy, MedianSeconds(ctx_, repeats_, [&] {
                                 return Copy(ctx_, out_.as<void>(), planes_buffer_.as<void>(), 12 * voxels_ / 16 * 16);
                               }));
    rows.push_back({"floor: copy of 24 B/voxel", {NAN, NAN}, std::vector<double>(9, NAN)});
    rows.back().seconds.back() = copy;
    return rows;
  }

 private:
  absl::Status Upload(const std::vector<float>& values, Buffer* buffer) {
    const size_t bytes = values.size() * sizeof(float);
    INTRAWARP_ASSIGN_OR_RETURN(*buffer, ctx_.device().Allocate(bytes, ctx_.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Copy(buffer->as<void>(), values.data(), bytes, ctx_.stream()));
    return ctx_.device().Synchronize(ctx_.stream());
  }

  absl::StatusOr<double> TimeScheme(Summation summation, WindowLoop loop, const Convolution& convolution) {
    const Buffer& in = ctx_.is_cuda() ? interleaved_buffer_ : planes_buffer_;
    INTRAWARP_ASSIGN_OR_RETURN(const Work work,
                               MakeConvolution(ctx_, summation, loop, convolution, in.as<float>(), out_.as<float>()));
    return MedianSeconds(ctx_, repeats_, work);
  }

  absl::StatusOr<Row> MeasureScheme(Summation summation, const std::vector<float>& window) {
    Row row{SummationName(summation), {}, std::vector<double>(9, NAN)};
    for (const bool branch : {true, false}) {
      int column = branch ? 0 : 3;
      for (const int unroll : {1, 5, 20}) {
        // The CPU has one loop.
        if (ctx_.is_cuda() || (!branch && unroll == kBest.unroll)) {
          INTRAWARP_ASSIGN_OR_RETURN(row.seconds[column], TimeScheme(summation, {branch, unroll}, {size_, 0, window}));
        }
        ++column;
      }
    }
    const FieldLayout layout = ctx_.is_cuda() ? InterleavedLayout(4) : PlanarLayout(size_);
    INTRAWARP_ASSIGN_OR_RETURN(
        row.error, CompareRows(ctx_, out_.as<float>(), layout, size_, ComparedRowStride(size_), reference_));
    for (int axis : {1, 2}) {
      INTRAWARP_ASSIGN_OR_RETURN(row.seconds[5 + axis], TimeScheme(summation, kBest, {size_, axis, window}));
    }
    row.seconds[8] = row.seconds[4] + row.seconds[6] + row.seconds[7];
    return row;
  }

  absl::StatusOr<double> TimeOurs(Vec3d sigma) {
    return MedianSeconds(ctx_, repeats_, [&] {
      Geometry g;
      g.size = size_;
      for (int c = 0; c < 3; ++c) {
        INTRAWARP_RETURN_IF_ERROR(SmoothGaussian(ctx_, {planes_buffer_.as<float>() + c * voxels_, g}, sigma,
                                                 {out_.as<float>() + c * voxels_, g}));
      }
      return absl::OkStatus();
    });
  }

  absl::StatusOr<Row> MeasureOurs(double sigma) {
    Row row{"SmoothGaussian (ours)", {}, std::vector<double>(9, NAN)};
    INTRAWARP_ASSIGN_OR_RETURN(row.seconds[4], TimeOurs({sigma, 0, 0}));
    INTRAWARP_ASSIGN_OR_RETURN(row.error, CompareRows(ctx_, out_.as<float>(), PlanarLayout(size_), size_,
                                                      ComparedRowStride(size_), reference_));
    INTRAWARP_ASSIGN_OR_RETURN(row.seconds[6], TimeOurs({0, sigma, 0}));
    INTRAWARP_ASSIGN_OR_RETURN(row.seconds[7], TimeOurs({0, 0, sigma}));
    INTRAWARP_ASSIGN_OR_RETURN(row.seconds[8], TimeOurs({sigma, sigma, sigma}));
    return row;
  }

  const ExecContext& ctx_;
  const int repeats_;
  const Int3 size_;
  const int64_t voxels_;
  std::vector<float> planes_;
  std::vector<double> reference_;
  Buffer planes_buffer_, interleaved_buffer_, out_;
};

const std::vector<std::string> kColumns = {"x if",  "x if u5", "x if u20", "x",        "x u5",
                                           "x u20", "y u5",    "z u5",     "x + y + z"};

void Print(const ExecContext& ctx, const NamedVolume& volume, int radius, const std::vector<Row>& rows) {
  const double voxels = 1.0 * volume.size.x * volume.size.y * volume.size.z;
  std::vector<std::string> columns = {"mean 1e-6", "max 1e-6"};
  columns.insert(columns.end(), kColumns.begin(), kColumns.end());
  Table table(absl::StrCat("window of ", 2 * radius + 1, ", ", volume.name, " ", volume.size.x, "x", volume.size.y, "x",
                           volume.size.z, ": error; ns/voxel (Alvarez Gonzalez 2015, table 6.1)"),
              columns, ctx.is_cuda() ? "%.4f" : "%.3f");
  for (const Row& row : rows) {
    std::vector<double> values = {1e6 * row.error.mean, 1e6 * row.error.max};
    for (double s : row.seconds) values.push_back(s / voxels * 1e9);
    table.Add(row.name, values);
  }
  table.Print();
}

void PrintCsv(const ExecContext& ctx, const NamedVolume& volume, int radius, const std::vector<Row>& rows) {
  const double voxels = 1.0 * volume.size.x * volume.size.y * volume.size.z;
  for (const Row& row : rows)
    for (size_t i = 0; i < kColumns.size(); ++i) {
      if (std::isnan(row.seconds[i])) continue;
      std::printf("%s,%s,%d,%s,%s,%.6g,%.6g,%.6g\n", ctx.device().name().c_str(), volume.name, 2 * radius + 1,
                  row.name.c_str(), kColumns[i].c_str(), row.seconds[i] / voxels * 1e9, row.error.mean, row.error.max);
    }
}

absl::Status Bench(const ExecContext& ctx, const BenchFlags& flags) {
  const std::vector<NamedVolume> volumes = {kPaperVolumes[1], {"256^3", {256, 256, 256}}, kPaperVolumes[0]};
  if (flags.csv) std::printf("device,volume,window,summation,pass,ns_per_voxel,mean_error_x,max_error_x\n");
  bool any = false;
  for (const NamedVolume& volume : volumes) {
    // Without --volume the CPU measures the smallest volume alone.
    const bool wanted = flags.volume.empty() ? ctx.is_cuda() || !any : flags.volume == volume.name;
    if (!wanted) continue;
    any = true;
    VolumeBench bench(ctx, flags.repeats, volume.size);
    INTRAWARP_RETURN_IF_ERROR(bench.Prepare());
    for (int radius : kRadii) {
      INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Row> rows, bench.Measure(radius));
      flags.csv ? PrintCsv(ctx, volume, radius, rows) : Print(ctx, volume, radius, rows);
    }
  }
  if (!any) return absl::InvalidArgumentError(absl::StrCat("volume: no \"", flags.volume, "\""));
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp::baselines

int main(int argc, char** argv) {
  return intrawarp::baselines::BenchMain(
      argc, argv, "Errors and times of convolution by Alvarez Gonzalez (2015) beside our Gaussian.",
      intrawarp::baselines::Bench);
}
