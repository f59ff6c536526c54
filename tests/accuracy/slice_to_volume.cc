// SPDX-License-Identifier: Apache-2.0
// The capture range of the registration of a slice to a volume. Slices are cut from a public volume at random oblique
// planes through its middle, with noise and the mean over a thickness, and registered to the volume (or to another
// one on its grid) from starts that are displaced by a known amount. The error of a pose is the distance, over the
// slice's points inside the volume's body, between where the result and where the truth puts them.
//
//   slice_to_volume SLICES.nii.gz VOLUME.nii.gz [--trials=N] [--thickness=MM] [--noise=PART] [--pixel=MM]
//                   [--axis=PIXELS] [--case=MODE:AMOUNT]... [--method=METHOD:METRIC]... [--search] [--list]
//                   [--dump=FOLDER]
//
// The slices come from the first volume, whose grid the second shares. A case displaces the start: in_plane and
// out_of_plane in mm, in_plane_turn and tilt in degrees, any in mm with half as many degrees about any axis. --search
// gives no start, so that the search around the header pose is part of the measurement. --list prints a line for each
// registration, with what the verdict judges by. --dump writes the slices of each case and their true points.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/image/sample.h"
#include "engine/quality/predicted_error.h"
#include "engine/quality/similarity.h"
#include "engine/registration/registration.h"
#include "engine/registration/stage/stage.h"
#include "io/format/nifti.h"
#include "io/format/volume.h"

namespace intrawarp {
namespace {

constexpr size_t kWorkspaceBytes = size_t{256} << 20;
// A result within this of the truth counts as a success, mm.
constexpr double kSuccessMm = 2;

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

struct Image {
  Geometry grid;
  std::vector<float> values;
};

Image ReadImage(const std::string& path) {
  const io::HostVolume volume = Value(io::ReadNifti(path));
  return {volume.geometry, io::ToFloat(volume)};
}

PreparedImage Prepare(const ExecContext& ctx, const Image& image) {
  return Value(PreparedImage::Prepare(ctx, image.values.data(), PixelType::kFloat32, 1, 0, image.grid));
}

struct Settings {
  int trials = 20;
  double thickness = 2, noise = 0.05, pixel = 1;
  int axis = 128;
  bool search = false, list = false;
  std::string dump;
  struct Case {
    std::string mode;
    double amount = 0;
  };
  std::vector<Case> cases;
  std::vector<std::pair<std::string, StageOptions>> methods;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  double Normal() { return normal_(engine_); }
  double Uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  Vec3d Direction() {
    const Vec3d v{Normal(), Normal(), Normal()};
    return (1 / std::sqrt(Dot(v, v))) * v;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<double> normal_;
};

// Rodrigues: a turn by `degrees` about an axis through `center`, and then a shift.
AffineMap Turn(Vec3d axis, double degrees, Vec3d center, Vec3d shift) {
  const double angle = degrees * M_PI / 180, c = std::cos(angle), s = std::sin(angle);
  const double k[3][3] = {{0, -axis.z, axis.y}, {axis.z, 0, -axis.x}, {-axis.y, axis.x, 0}};
  AffineMap turn;
  for (int r = 0; r < 3; ++r) {
    for (int q = 0; q < 3; ++q) turn.m[r][q] = (r == q ? c : 0) + (1 - c) * axis[r] * axis[q] + s * k[r][q];
  }
  const Vec3d moved = center - turn(center) + shift;
  for (int r = 0; r < 3; ++r) turn.m[r][3] = moved[r];
  return turn;
}

double AngleOf(const AffineMap& map) {
  // The rotation nearest to the linear part, to first order in its stretch.
  const double trace = (map.m[0][0] + map.m[1][1] + map.m[2][2]) / std::cbrt(std::max(1e-9, Determinant(map)));
  return std::acos(std::clamp((trace - 1) / 2, -1.0, 1.0)) * 180 / M_PI;
}

Vec3d Axis(const Geometry& g, int c) { return {g.direction[0][c], g.direction[1][c], g.direction[2][c]}; }

// The middle of what is brighter than a tenth of the range.
Vec3d BodyCenter(const Image& image) {
  const auto [low, high] = std::minmax_element(image.values.begin(), image.values.end());
  const float least = *low + 0.1f * (*high - *low);
  Vec3d sum;
  double count = 0;
  const Int3 n = image.grid.size;
  for (int64_t i = 0; i < image.grid.voxels(); ++i) {
    if (image.values[i] <= least) continue;
    sum = sum +
          Vec3d{static_cast<double>(i % n.x), static_cast<double>(i / n.x % n.y), static_cast<double>(i / n.x / n.y)};
    ++count;
  }
  return IndexToPhysical(image.grid)((1 / count) * sum);
}

// A plane of random orientation, within 20 mm of the middle.
Geometry RandomPlane(const Settings& settings, Vec3d middle, Random& random) {
  Geometry g{.size = {settings.axis, settings.axis, 1},
             .spacing = {settings.pixel, settings.pixel, settings.thickness}};
  const Vec3d n = random.Direction();
  const AffineMap turn = Turn(random.Direction(), random.Uniform(0, 180), {}, {});
  Vec3d u = turn.Linear({1, 0, 0});
  u = u - Dot(u, n) * n;
  u = (1 / std::sqrt(Dot(u, u))) * u;
  const Vec3d v{n.y * u.z - n.z * u.y, n.z * u.x - n.x * u.z, n.x * u.y - n.y * u.x};
  for (int r = 0; r < 3; ++r) {
    g.direction[r][0] = u[r];
    g.direction[r][1] = v[r];
    g.direction[r][2] = n[r];
  }
  const double half = 0.5 * (settings.axis - 1) * settings.pixel;
  g.origin = middle + random.Uniform(-20, 20) * n - half * u - half * v;
  return g;
}

struct Slice {
  Image image;
  // LPS mm.
  std::vector<Vec3d> body;
};

// The mean over the thickness, with noise in parts of the volume's range.
Slice Cut(const Image& volume, const Geometry& plane, double noise, Random& random) {
  const auto [low, high] = std::minmax_element(volume.values.begin(), volume.values.end());
  const float range = *high - *low;
  Slice slice{{plane, std::vector<float>(plane.voxels(), *low)}, {}};
  const AffineMap to_physical = IndexToPhysical(plane), to_index = PhysicalToIndex(volume.grid);
  const int layers = std::max(1, static_cast<int>(std::lround(2 * plane.spacing.z)));
  for (int64_t i = 0; i < plane.voxels(); ++i) {
    const double x = static_cast<double>(i % plane.size.x), y = static_cast<double>(i / plane.size.x);
    double sum = 0;
    for (int layer = 0; layer < layers; ++layer) {
      const Vec3d p = to_index(to_physical({x, y, (layer + 0.5) / layers - 0.5}));
      const Vec3f index{static_cast<float>(p.x), static_cast<float>(p.y), static_cast<float>(p.z)};
      sum += IsInside(volume.grid.size, index) ? SampleLinear(volume.values.data(), volume.grid.size, index) : *low;
    }
    slice.image.values[i] = static_cast<float>(sum / layers);
    if (sum / layers > *low + 0.1 * range) slice.body.push_back(to_physical({x, y, 0}));
  }
  for (float& value : slice.image.values) value += static_cast<float>(noise * range * random.Normal());
  return slice;
}

// The map that displaces a slice's header: the registration that undoes it is its inverse.
AffineMap Displacement(const Settings::Case& of, const Geometry& plane, Vec3d center, Random& random) {
  const Vec3d u = Axis(plane, 0), v = Axis(plane, 1), n = Axis(plane, 2);
  const double angle = random.Uniform(0, 2 * M_PI);
  const Vec3d along = std::cos(angle) * u + std::sin(angle) * v;
  const double sign = random.Uniform(-1, 1) < 0 ? -1 : 1;
  if (of.mode == "in_plane") return Turn(n, 0, center, of.amount * along);
  if (of.mode == "out_of_plane") return Turn(n, 0, center, sign * of.amount * n);
  if (of.mode == "in_plane_turn") return Turn(n, sign * of.amount, center, {});
  if (of.mode == "tilt") return Turn(along, of.amount, center, {});
  return Turn(random.Direction(), 0.5 * of.amount, center, of.amount * random.Direction());
}

Geometry Moved(const Geometry& plane, const AffineMap& by) {
  Geometry moved = plane;
  moved.origin = by(plane.origin);
  for (int c = 0; c < 3; ++c) {
    const Vec3d axis = by.Linear(Axis(plane, c));
    for (int r = 0; r < 3; ++r) moved.direction[r][c] = axis[r];
  }
  return moved;
}

double MeanDistance(const std::vector<Vec3d>& points, const AffineMap& a, const AffineMap& b) {
  double sum = 0;
  for (const Vec3d& p : points) {
    const Vec3d d = a(p) - b(p);
    sum += std::sqrt(Dot(d, d));
  }
  return sum / static_cast<double>(points.size());
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

struct Errors {
  std::vector<double> start, mm, degrees, seconds;
  int failed = 0;
};

struct Volume {
  Image slices, moving;
  Vec3d middle;
};

// The figures that the verdict judges by.
void List(const ExecContext& ctx, const std::string& name, const PreparedImage& fixed, const PreparedImage& moving,
          const RegistrationResult& result, const Errors& errors) {
  const ResidualProbe probe = Value(ProbeResidual(ctx, fixed, moving, {}, {}, result.transform));
  const ErrorEstimate error = PredictError(probe).value_or(ErrorEstimate{});
  const SlicePose pose = result.slice_pose.value_or(SlicePose{});
  const double margin = result.starts ? result.starts->margin.value_or(-1) : -1;
  const double overlap = Value(MeasureSimilarity(ctx, fixed, moving, {}, {}, result.transform)).overlap;
  std::printf(
      "- %s: error %.2f mm, start margin %.2f, pose %.2f (offset %.4f tilt %.4f in plane %.4f), overlap %.2f, "
      "expected %.2f mm, bound %.2f mm, agreement %.2f\n",
      name.c_str(), errors.mm.back(), margin, pose.Observability(), pose.offset_rise, pose.tilt_rise,
      pose.in_plane_rise, overlap, error.expected_mm, error.bound_p95_mm, error.agreement);
}

void RunTrial(Device& device, const Settings& settings, const Volume& volume, const PreparedImage& moving,
              const Settings::Case& of, uint32_t seed, std::map<std::string, Errors>& errors) {
  Random random(seed);
  Slice slice;
  do slice = Cut(volume.slices, RandomPlane(settings, volume.middle, random), settings.noise, random);
  while (slice.body.size() < slice.image.values.size() / 8);
  Vec3d center;
  for (const Vec3d& p : slice.body) center = center + (1 / static_cast<double>(slice.body.size())) * p;
  const AffineMap by = Displacement(of, slice.image.grid, center, random), truth = Inverse(by);
  slice.image.grid = Moved(slice.image.grid, by);
  for (Vec3d& p : slice.body) p = by(p);
  OwnedContext owned = Value(OwnedContext::Create(device, kWorkspaceBytes));
  const ExecContext ctx = owned.context();
  const PreparedImage fixed = Prepare(ctx, slice.image);
  if (!settings.dump.empty()) {
    const std::string name = absl::StrCat(settings.dump, "/", of.mode, "_", of.amount, "_", seed);
    (void)io::WriteNifti(name + ".nii.gz", slice.image.grid, PixelType::kFloat32, slice.image.values.data());
    std::ofstream points(name + ".csv");
    points << "x,y,z,to_x,to_y,to_z\n";
    for (size_t i = 0; i < slice.body.size(); i += 16) {
      const Vec3d p = slice.body[i], t = truth(p);
      points << absl::StrCat(p.x, ",", p.y, ",", p.z, ",", t.x, ",", t.y, ",", t.z, "\n");
    }
  }
  for (const auto& [name, stage] : settings.methods) {
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, {stage}, std::nullopt};
    if (!settings.search) input.initial = AffineMap::Identity();
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<RegistrationResult> result = Register(ctx, input);
    Errors& to = errors[name];
    const AffineMap found = result.ok() ? result->transform.affine() : AffineMap::Identity();
    if (!result.ok()) ++to.failed;
    to.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    to.start.push_back(MeanDistance(slice.body, AffineMap::Identity(), truth));
    to.mm.push_back(MeanDistance(slice.body, found, truth));
    to.degrees.push_back(AngleOf(Compose(Inverse(truth), found)));
    if (settings.list && result.ok()) List(ctx, name, fixed, moving, *result, to);
  }
}

void Print(const Settings::Case& of, const std::map<std::string, Errors>& errors) {
  for (const auto& [name, e] : errors) {
    const auto within = std::count_if(e.mm.begin(), e.mm.end(), [](double mm) { return mm < kSuccessMm; });
    std::printf("| %s %g | %s | %.1f | %.2f | %.2f | %.2f | %.2f | %ld of %zu | %.2f |\n", of.mode.c_str(), of.amount,
                name.c_str(), Quantile(e.start, 0.5), Quantile(e.mm, 0.5), Quantile(e.mm, 0.95),
                Quantile(e.degrees, 0.5), Quantile(e.degrees, 0.95), static_cast<long>(within), e.mm.size(),
                Quantile(e.seconds, 0.5));
  }
  std::fflush(stdout);
}

std::optional<Settings::Case> ParseCase(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Settings::Case of;
  if (parts.size() != 2 || !absl::SimpleAtod(parts[1], &of.amount)) return std::nullopt;
  of.mode = parts[0];
  for (const char* mode : {"in_plane", "out_of_plane", "in_plane_turn", "tilt", "any"}) {
    if (of.mode == mode) return of;
  }
  return std::nullopt;
}

std::optional<StageOptions> ParseMethod(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() != 2) return std::nullopt;
  const std::map<std::string, MetricKind> metrics = {
      {"ssd", MetricKind::kSsd}, {"ngf", MetricKind::kNgf}, {"nmi", MetricKind::kNmi}, {"lncc", MetricKind::kLncc}};
  const auto metric = metrics.find(parts[1]);
  if (metric == metrics.end()) return std::nullopt;
  if (parts[0] == "rigid") return RigidOptions{.metric = metric->second};
  if (parts[0] == "affine") return AffineOptions{.metric = metric->second};
  return std::nullopt;
}

// False: not an option, or a wrong value.
bool ParseFlag(absl::string_view arg, Settings* settings) {
  if (absl::ConsumePrefix(&arg, "--trials=")) return absl::SimpleAtoi(arg, &settings->trials) && settings->trials > 0;
  if (absl::ConsumePrefix(&arg, "--axis=")) return absl::SimpleAtoi(arg, &settings->axis) && settings->axis > 7;
  if (absl::ConsumePrefix(&arg, "--thickness=")) return absl::SimpleAtod(arg, &settings->thickness);
  if (absl::ConsumePrefix(&arg, "--noise=")) return absl::SimpleAtod(arg, &settings->noise);
  if (absl::ConsumePrefix(&arg, "--pixel=")) return absl::SimpleAtod(arg, &settings->pixel);
  if (absl::ConsumePrefix(&arg, "--dump=")) return settings->dump = std::string(arg), true;
  if (arg == "--search") return settings->search = true;
  if (arg == "--list") return settings->list = true;
  if (absl::ConsumePrefix(&arg, "--case=")) {
    const std::optional<Settings::Case> of = ParseCase(std::string(arg));
    if (of) settings->cases.push_back(*of);
    return of.has_value();
  }
  if (absl::ConsumePrefix(&arg, "--method=")) {
    const std::optional<StageOptions> stage = ParseMethod(std::string(arg));
    if (stage) settings->methods.emplace_back(std::string(arg), *stage);
    return stage.has_value();
  }
  return false;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  using namespace intrawarp;
  Settings settings;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') {
      paths.emplace_back(argv[i]);
    } else if (!ParseFlag(argv[i], &settings)) {
      std::fprintf(stderr, "%s: unknown, or a wrong value\n", argv[i]);
      return 2;
    }
  }
  if (paths.size() != 2) {
    std::fprintf(stderr, "slice_to_volume SLICES.nii.gz VOLUME.nii.gz [OPTIONS]\n");
    return 2;
  }
  if (settings.methods.empty()) {
    for (const char* name : {"rigid:ngf", "rigid:nmi", "affine:ngf", "affine:nmi"}) {
      settings.methods.emplace_back(name, *ParseMethod(name));
    }
  }
  if (!settings.dump.empty()) std::filesystem::create_directories(settings.dump);
  Volume volume{ReadImage(paths[0]), ReadImage(paths[1]), {}};
  volume.middle = BodyCenter(volume.slices);
  const auto devices = AllDevices();
  Device& cpu = *devices[0];
  OwnedContext owned = Value(OwnedContext::Create(cpu, kWorkspaceBytes));
  const PreparedImage moving = Prepare(owned.context(), volume.moving);
  std::printf(
      "| start | method | start, mm | median, mm | 95 %%, mm | median, degrees | 95 %%, degrees | within %g mm | s |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      kSuccessMm);
  for (const Settings::Case& of : settings.cases) {
    std::map<std::string, Errors> errors;
    for (int trial = 1; trial <= settings.trials; ++trial) {
      RunTrial(cpu, settings, volume, moving, of, static_cast<uint32_t>(trial), errors);
    }
    Print(of, errors);
  }
  return 0;
}
