// SPDX-License-Identifier: Apache-2.0
// Smoothing and composition of vector fields by Leong et al. (2021) beside the product's, on one device in one run.
//
//   demons_baselines_bench [--device=auto|cpu|cuda] [--csv] [--repeats=N] [--volume=NAME]
//
// Seven sizes from 1.3 M to 37 M voxels (the paper names 1.3 M, 278 x 334 x 278 and 37 M; ours are the latter's shape
// at equal steps of its edge). Smoothing with sigma 3 (a window of 19); composition of two smooth fields of up to 4 and
// 3 voxels. Bandwidth counts the bytes that must move, 72 a voxel for a smoothing (three passes) and 36 for a
// composition, whatever a variant moves; the floor is a plain copy of as many bytes. Composition through filtered
// textures is given without and with the filling of the textures, which each squaring in log-demons needs. Errors, in
// voxels, are against float64 over about 2^20 voxels. "ours, in planes" are the operators of log-demons' iterations on
// CUDA: x and y in one pass (shown under y), and the composition that is fused with the pass along z, here without
// smoothing. "CPU" is the product's operator on all cores of this machine. A size has its number of voxels in millions
// for a name.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/transform/vector_field.h"
#if INTRAWARP_WITH_CUDA
#include "engine/transform/vector_planes.h"
#endif
#include "tests/bench/baselines/bench_main.h"
#include "tests/bench/baselines/demons_variants.h"
#include "tests/bench/baselines/table.h"

namespace intrawarp::baselines {
namespace {

const std::vector<NamedVolume> kSizes = {
    {"1.3", {103, 123, 103}},  {"3.2", {138, 166, 138}},  {"6.2", {173, 208, 173}}, {"10.8", {208, 250, 208}},
    {"17.2", {243, 292, 243}}, {"25.8", {278, 334, 278}}, {"36.9", {313, 377, 313}}};
constexpr double kSigma = 3;
constexpr int kSmoothingBytes = 72, kCompositionBytes = 36;
constexpr char kOurs[] = "ours", kPlanes[] = "ours, in planes", kCpu[] = "CPU", kFloor[] = "floor: copy";

// Times by name: the passes along x, y and z, and the whole.
struct Smoothed {
  double pass[3] = {NAN, NAN, NAN}, whole = NAN;
};
struct Composed {
  double seconds = NAN, with_fill = NAN;
  FieldError error{NAN, NAN};
};
struct Measurements {
  double voxels = 0;
  std::map<std::string, Smoothed> smoothing;
  std::map<std::string, Composed> composition;
};

// Three planes: motion of up to `amplitude` voxels, in waves of some tens of voxels.
std::vector<float> MakePlanes(Int3 size, float amplitude, float phase) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  std::vector<float> planes(3 * voxels);
  ParallelFor(int64_t{3} * size.z, [&](int64_t i) {
    const int c = static_cast<int>(i / size.z), z = static_cast<int>(i % size.z);
    float* out = &planes[i * size.x * size.y];
    for (int y = 0; y < size.y; ++y) {
      const float a = std::sin(0.11f * y + phase + c) * amplitude, b = std::cos(0.07f * z + 2 * phase - c);
      for (int x = 0; x < size.x; ++x) *out++ = a * b * std::cos(0.05f * (c + 1) * x);
    }
  });
  return planes;
}

std::vector<float> Interleave(const std::vector<float>& planes) {
  const int64_t voxels = static_cast<int64_t>(planes.size()) / 3;
  std::vector<float> interleaved(planes.size());
  ParallelFor(3, [&](int64_t c) {
    for (int64_t v = 0; v < voxels; ++v) interleaved[3 * v + c] = planes[c * voxels + v];
  });
  return interleaved;
}

absl::StatusOr<Buffer> Upload(const ExecContext& ctx, const std::vector<float>& values) {
  const size_t bytes = values.size() * sizeof(float);
  INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(buffer.as<void>(), values.data(), bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return buffer;
}

class SizeBench {
 public:
  SizeBench(const ExecContext& ctx, int repeats, Int3 size)
      : ctx_(ctx), repeats_(repeats), size_(size), voxels_(int64_t{size.x} * size.y * size.z) {
    results_.voxels = static_cast<double>(voxels_);
  }

  absl::StatusOr<Measurements> Measure() {
    INTRAWARP_ASSIGN_OR_RETURN(out_, ctx_.device().Allocate(12 * voxels_, ctx_.stream()));
    INTRAWARP_ASSIGN_OR_RETURN(spare_, ctx_.device().Allocate(12 * voxels_, ctx_.stream()));
    inner_ = MakePlanes(size_, 4, 0.3f);
    outer_ = MakePlanes(size_, 3, 1.7f);
    reference_ = ReferenceComposition(inner_, outer_, size_, ComparedRowStride(size_));
    if (ctx_.is_cuda()) INTRAWARP_RETURN_IF_ERROR(MeasureVariants());
    const std::vector<float> inner = Interleave(inner_), outer = Interleave(outer_);
    INTRAWARP_RETURN_IF_ERROR(MeasureOurs(ctx_, kOurs, repeats_, inner, outer));
    INTRAWARP_RETURN_IF_ERROR(MeasureFloor());
    if (ctx_.is_cuda()) INTRAWARP_RETURN_IF_ERROR(MeasureCpu(inner, outer));
    return std::move(results_);
  }

 private:
  absl::Status MeasureVariants() {
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer inner, Upload(ctx_, inner_));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer outer, Upload(ctx_, outer_));
    for (const Smoothing variant : SmoothingVariants(ctx_)) {
      INTRAWARP_RETURN_IF_ERROR(MeasureSmoothing(variant, inner.as<float>()));
    }
    for (const Composition variant : CompositionVariants(ctx_)) {
      INTRAWARP_RETURN_IF_ERROR(MeasureComposition(variant, inner.as<float>(), outer.as<float>()));
    }
#if INTRAWARP_WITH_CUDA
    INTRAWARP_RETURN_IF_ERROR(MeasurePlanes(inner.as<float>(), outer.as<float>()));
#endif
    return absl::OkStatus();
  }

#if INTRAWARP_WITH_CUDA
  absl::Status MeasurePlanes(float* inner, float* outer) {
    const auto compose = [&] {
      return intrawarp::cuda::ComposePlanes(ctx_, inner, outer, size_, out_.as<float>(), nullptr);
    };
    Composed& composed = results_.composition[kPlanes];
    INTRAWARP_ASSIGN_OR_RETURN(composed.seconds, MedianSeconds(ctx_, repeats_, compose));
    composed.with_fill = composed.seconds;
    INTRAWARP_ASSIGN_OR_RETURN(composed.error, CompareRows(ctx_, out_.as<float>(), PlanarLayout(size_), size_,
                                                           ComparedRowStride(size_), reference_));
    // The time does not depend on which of the two buffers holds the result.
    const auto smooth_xy = [&] {
      return intrawarp::cuda::SmoothPlanesXY(ctx_, inner, size_, 3, {kSigma, kSigma, kSigma}, spare_.as<float>(),
                                             nullptr, nullptr)
          .status();
    };
    const auto smooth_z = [&] {
      return intrawarp::cuda::SmoothPlanesZ(ctx_, spare_.as<float>(), size_, kSigma, out_.as<float>(), nullptr,
                                            nullptr);
    };
    Smoothed& smoothed = results_.smoothing[kPlanes];
    INTRAWARP_ASSIGN_OR_RETURN(smoothed.pass[1], MedianSeconds(ctx_, repeats_, smooth_xy));
    INTRAWARP_ASSIGN_OR_RETURN(smoothed.pass[2], MedianSeconds(ctx_, repeats_, smooth_z));
    INTRAWARP_ASSIGN_OR_RETURN(smoothed.whole, MedianSeconds(ctx_, repeats_, [&] {
                                 INTRAWARP_RETURN_IF_ERROR(smooth_xy());
                                 return smooth_z();
                               }));
    return absl::OkStatus();
  }
#endif

  absl::Status MeasureSmoothing(Smoothing variant, const float* in) {
    const std::vector<float> window = GaussianWindow(kSigma);
    float* const ends[] = {out_.as<float>(), spare_.as<float>(), out_.as<float>()};
    const float* const begins[] = {in, out_.as<float>(), spare_.as<float>()};
    Smoothed& result = results_.smoothing[Name(variant)];
    Work passes[3];
    for (int axis = 0; axis < 3; ++axis) {
      INTRAWARP_ASSIGN_OR_RETURN(passes[axis],
                                 MakeSmoothingPass(ctx_, variant, size_, axis, window, begins[axis], ends[axis]));
      INTRAWARP_ASSIGN_OR_RETURN(result.pass[axis], MedianSeconds(ctx_, repeats_, passes[axis]));
    }
    INTRAWARP_ASSIGN_OR_RETURN(result.whole, MedianSeconds(ctx_, repeats_, [&] {
                                 for (const Work& pass : passes) INTRAWARP_RETURN_IF_ERROR(pass());
                                 return absl::OkStatus();
                               }));
    return absl::OkStatus();
  }

  absl::Status MeasureComposition(Composition variant, const float* inner, const float* outer) {
    INTRAWARP_ASSIGN_OR_RETURN(const CompositionWork work,
                               MakeComposition(ctx_, variant, size_, inner, outer, out_.as<float>()));
    Composed& result = results_.composition[Name(variant)];
    if (work.fill) INTRAWARP_RETURN_IF_ERROR(work.fill());
    INTRAWARP_ASSIGN_OR_RETURN(result.seconds, MedianSeconds(ctx_, repeats_, work.compose));
    INTRAWARP_ASSIGN_OR_RETURN(result.error, CompareRows(ctx_, out_.as<float>(), PlanarLayout(size_), size_,
                                                         ComparedRowStride(size_), reference_));
    result.with_fill = result.seconds;
    if (!work.fill) return absl::OkStatus();
    INTRAWARP_ASSIGN_OR_RETURN(result.with_fill, MedianSeconds(ctx_, repeats_, [&] {
                                 INTRAWARP_RETURN_IF_ERROR(work.fill());
                                 return work.compose();
                               }));
    return absl::OkStatus();
  }

  // Runs on the device of `ctx`, which is the CPU when that is measured beside CUDA.
  absl::Status MeasureOurs(const ExecContext& ctx, const char* name, int repeats,
                           const std::vector<float>& inner_values, const std::vector<float>& outer_values) {
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer inner, Upload(ctx, inner_values));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer outer, Upload(ctx, outer_values));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer out, ctx.device().Allocate(12 * voxels_, ctx.stream()));
    const auto smooth = [&](Vec3d sigma) {
      return MedianSeconds(ctx, repeats, [&, sigma] {
        return SmoothVectorField(ctx, inner.as<float>(), size_, sigma, out.as<float>());
      });
    };
    Smoothed& smoothed = results_.smoothing[name];
    const Vec3d sigmas[] = {{kSigma, 0, 0}, {0, kSigma, 0}, {0, 0, kSigma}};
    for (int axis = 0; axis < 3; ++axis) {
      INTRAWARP_ASSIGN_OR_RETURN(smoothed.pass[axis], smooth(sigmas[axis]));
    }
    INTRAWARP_ASSIGN_OR_RETURN(smoothed.whole, smooth({kSigma, kSigma, kSigma}));
    Composed& composed = results_.composition[name];
    INTRAWARP_ASSIGN_OR_RETURN(composed.seconds, MedianSeconds(ctx, repeats, [&] {
                                 return ComposeVectorFields(ctx, inner.as<float>(), outer.as<float>(), size_,
                                                            out.as<float>());
                               }));
    composed.with_fill = composed.seconds;
    INTRAWARP_ASSIGN_OR_RETURN(composed.error, CompareRows(ctx, out.as<float>(), InterleavedLayout(3), size_,
                                                           ComparedRowStride(size_), reference_));
    return absl::OkStatus();
  }

  absl::Status MeasureCpu(const std::vector<float>& inner, const std::vector<float>& outer) {
    INTRAWARP_ASSIGN_OR_RETURN(const auto device, OpenDevice("cpu"));
    INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned,
                               OwnedContext::Create(*device, SmoothVectorFieldWorkspaceBytes(size_)));
    return MeasureOurs(owned.context(), kCpu, 1, inner, outer);
  }

  absl::Status MeasureFloor() {
    const auto copy = [&](int passes) {
      return MedianSeconds(ctx_, repeats_, [this, passes] {
        for (int i = 0; i < passes; ++i) {
          INTRAWARP_RETURN_IF_ERROR(Copy(ctx_, out_.as<void>(), spare_.as<void>(), 12 * voxels_ / 16 * 16));
        }
        return absl::OkStatus();
      });
    };
    Smoothed& smoothed = results_.smoothing[kFloor];
    INTRAWARP_ASSIGN_OR_RETURN(smoothed.pass[0], copy(1));
    smoothed.pass[1] = smoothed.pass[2] = smoothed.pass[0];
    INTRAWARP_ASSIGN_OR_RETURN(smoothed.whole, copy(3));
    results_.composition[kFloor].seconds = results_.composition[kFloor].with_fill = smoothed.whole / 2;
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  const int repeats_;
  const Int3 size_;
  const int64_t voxels_;
  std::vector<float> inner_, outer_;
  std::vector<double> reference_;
  Buffer out_, spare_;
  Measurements results_;
};

using Value = double (*)(const Measurements&, const std::string& row);

void PrintTable(const std::string& title, const std::vector<std::string>& sizes, const std::vector<Measurements>& all,
                const std::vector<std::string>& rows, const char* format, Value value) {
  Table table(title, sizes, format);
  for (const std::string& row : rows) {
    std::vector<double> values;
    for (const Measurements& m : all) values.push_back(value(m, row));
    table.Add(row, values);
  }
  table.Print();
}

std::vector<std::string> RowNames(const ExecContext& ctx, std::vector<std::string> variants) {
  if (!ctx.is_cuda()) return {kOurs, kFloor};
  variants.insert(variants.begin(), kCpu);
  variants.insert(variants.end(), {kOurs, kPlanes, kFloor});
  return variants;
}

std::vector<std::string> SmoothingRows(const ExecContext& ctx) {
  std::vector<std::string> names;
  for (const Smoothing v : SmoothingVariants(ctx)) names.push_back(Name(v));
  return RowNames(ctx, names);
}

std::vector<std::string> CompositionRows(const ExecContext& ctx) {
  std::vector<std::string> names;
  for (const Composition v : CompositionVariants(ctx)) names.push_back(Name(v));
  return RowNames(ctx, names);
}

void PrintSmoothing(const ExecContext& ctx, const std::vector<std::string>& sizes,
                    const std::vector<Measurements>& all) {
  const std::vector<std::string> rows = SmoothingRows(ctx);
  PrintTable("smoothing, ms, by millions of voxels (Leong et al. 2021, figure 5a)", sizes, all, rows, "%.4f",
             [](const Measurements& m, const std::string& row) { return m.smoothing.at(row).whole * 1e3; });
  const Value passes[] = {
      [](const Measurements& m, const std::string& row) { return m.smoothing.at(row).pass[0] * 1e3; },
      [](const Measurements& m, const std::string& row) { return m.smoothing.at(row).pass[1] * 1e3; },
      [](const Measurements& m, const std::string& row) { return m.smoothing.at(row).pass[2] * 1e3; }};
  for (int axis = 0; axis < 3; ++axis) {
    PrintTable(absl::StrCat("pass along ", std::string(1, "xyz"[axis]), ", ms (figures 5b and 5c)"), sizes, all, rows,
               "%.4f", passes[axis]);
  }
  PrintTable("smoothing, GB/s of 72 B/voxel (figure 6a)", sizes, all, rows, "%.0f",
             [](const Measurements& m, const std::string& row) {
               return kSmoothingBytes * m.voxels / m.smoothing.at(row).whole * 1e-9;
             });
  if (!ctx.is_cuda()) return;
  PrintTable("smoothing, times faster than our CPU device (figure 6b)", sizes, all, rows, "%.1f",
             [](const Measurements& m, const std::string& row) {
               return m.smoothing.at(kCpu).whole / m.smoothing.at(row).whole;
             });
}

void PrintComposition(const ExecContext& ctx, const std::vector<std::string>& sizes,
                      const std::vector<Measurements>& all) {
  const std::vector<std::string> rows = CompositionRows(ctx);
  PrintTable("composition, ms, textures filled before (Leong et al. 2021, figure 7a)", sizes, all, rows, "%.4f",
             [](const Measurements& m, const std::string& row) { return m.composition.at(row).seconds * 1e3; });
  PrintTable("composition, ms, with the filling of textures", sizes, all, rows, "%.4f",
             [](const Measurements& m, const std::string& row) { return m.composition.at(row).with_fill * 1e3; });
  if (ctx.is_cuda()) {
    PrintTable("composition, textures filled before, times faster than our CPU device (figure 7b)", sizes, all, rows,
               "%.1f", [](const Measurements& m, const std::string& row) {
                 return m.composition.at(kCpu).seconds / m.composition.at(row).seconds;
               });
  }
  PrintTable("composition, GB/s of 36 B/voxel, textures filled before (figure 8b)", sizes, all, rows, "%.0f",
             [](const Measurements& m, const std::string& row) {
               return kCompositionBytes * m.voxels / m.composition.at(row).seconds * 1e-9;
             });
  PrintTable("composition, mean error, 1e-6 voxel", sizes, all, rows, "%.3g",
             [](const Measurements& m, const std::string& row) { return m.composition.at(row).error.mean * 1e6; });
  PrintTable("composition, largest error, 1e-6 voxel", sizes, all, rows, "%.3g",
             [](const Measurements& m, const std::string& row) { return m.composition.at(row).error.max * 1e6; });
}

void PrintCsv(const ExecContext& ctx, const Measurements& m) {
  const std::string head = absl::StrCat(ctx.device().name(), ",", m.voxels, ",");
  for (const std::string& row : SmoothingRows(ctx)) {
    const Smoothed& s = m.smoothing.at(row);
    std::printf("%ssmoothing,%s,%.6g,%.6g,%.6g,%.6g,,,\n", head.c_str(), row.c_str(), s.whole * 1e3, s.pass[0] * 1e3,
                s.pass[1] * 1e3, s.pass[2] * 1e3);
  }
  for (const std::string& row : CompositionRows(ctx)) {
    const Composed& c = m.composition.at(row);
    std::printf("%scomposition,%s,%.6g,,,,%.6g,%.6g,%.6g\n", head.c_str(), row.c_str(), c.seconds * 1e3,
                c.with_fill * 1e3, c.error.mean, c.error.max);
  }
  std::fflush(stdout);
}

absl::Status Bench(const ExecContext& ctx, const BenchFlags& flags) {
  if (flags.csv) std::printf("device,voxels,operator,variant,ms,x_ms,y_ms,z_ms,with_fill_ms,mean_error,max_error\n");
  std::vector<Measurements> all;
  std::vector<std::string> sizes;
  for (const NamedVolume& volume : kSizes) {
    if (!flags.volume.empty() && flags.volume != volume.name) continue;
    INTRAWARP_ASSIGN_OR_RETURN(Measurements results, SizeBench(ctx, flags.repeats, volume.size).Measure());
    if (flags.csv) PrintCsv(ctx, results);
    all.push_back(std::move(results));
    sizes.push_back(volume.name);
  }
  if (all.empty()) return absl::InvalidArgumentError(absl::StrCat("volume: no \"", flags.volume, "\""));
  if (flags.csv) return absl::OkStatus();
  PrintSmoothing(ctx, sizes, all);
  PrintComposition(ctx, sizes, all);
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp::baselines

int main(int argc, char** argv) {
  return intrawarp::baselines::BenchMain(
      argc, argv, "Smoothing and composition of vector fields by Leong et al. (2021) beside ours.",
      intrawarp::baselines::Bench);
}
