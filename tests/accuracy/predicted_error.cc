// SPDX-License-Identifier: Apache-2.0
// The predicted error held against true ones: for each registration, the mean true error, the median of the expected
// one, the part of the true errors that lie below their 0.95 bounds, and what the deformation gained of its way.
// Truths are known maps (phantoms, and real images deformed by random smooth maps, with noise and another contrast),
// judged at the centres of the matched blocks, and the landmarks of the livers, judged by the nearest matched block.
//
//   predicted_error DATA SET [FEATURES.csv]    SET: phantoms, known, modalities, livers, subjects or unrelated
//
// DATA is the folder of public test data. FEATURES.csv gets a line a judged place, from which the coefficients of
// engine/quality/predicted_error.cc are regressed: name, node, true error (mm), the lengths of the block's own and of
// its smoothed offset (nodes), 1 - best / rival of both. Registrations run on the first device, at their defaults.
#include "engine/quality/predicted_error.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/phantom/phantom.h"
#include "engine/image/sample.h"
#include "engine/quality/deformation_gate.h"
#include "engine/registration/registration.h"
#include "io/format/nifti.h"
#include "io/format/points.h"

namespace intrawarp {
namespace {

constexpr size_t kWorkspaceBytes = size_t{2} << 30;

using Map = std::function<Vec3d(Vec3d)>;

struct Image {
  Geometry geometry;
  std::vector<float> voxels;
};

// Places whose true image in the moving image is known.
struct Truth {
  std::vector<Vec3d> fixed, moving;
};

struct Pair {
  std::string name;
  Image fixed, moving;
  // Either a map, or landmarks, or neither.
  Map map;
  Truth landmarks;
};

struct Way {
  const char* name;
  std::vector<StageOptions> stages;
};

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// --- Images ---

Image FromHost(const io::HostVolume& volume) { return {volume.geometry, io::ToFloat(volume)}; }

// body(value, point) for every voxel.
template <typename Body>
void ForEachVoxel(Image& image, const Body& body) {
  const AffineMap to_physical = IndexToPhysical(image.geometry);
  const Int3 n = image.geometry.size;
  int64_t i = 0;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) body(image.voxels[i++], to_physical({double(x), double(y), double(z)}));
    }
  }
}

// The image at map(p); outside it, its nearest face.
Image Deformed(const Image& image, const Map& map) {
  Image out = image;
  const AffineMap to_index = PhysicalToIndex(image.geometry);
  const Int3 n = image.geometry.size;
  ForEachVoxel(out, [&](float& value, Vec3d p) {
    const Vec3d index = to_index(map(p));
    Vec3f inside;
    for (int a = 0; a < 3; ++a) inside[a] = static_cast<float>(std::clamp(index[a], 0.0, n[a] - 1.0));
    value = SampleLinear(image.voxels.data(), n, inside);
  });
  return out;
}

double Deviation(const Image& image) {
  double sum = 0, squares = 0;
  for (const float v : image.voxels) {
    sum += v;
    squares += double{v} * v;
  }
  const auto n = static_cast<double>(image.voxels.size());
  return std::sqrt(squares / n - sum / n * (sum / n));
}

void AddNoise(Image& image, double deviation, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> noise(0, deviation);
  for (float& v : image.voxels) v += static_cast<float>(noise(engine));
}

// v^1.3 of the range, at 0.7 of it.
void ChangeContrast(Image& image) {
  const auto [low, high] = std::minmax_element(image.voxels.begin(), image.voxels.end());
  const float from = *low, range = *high - *low;
  for (float& v : image.voxels) v = from + 0.7f * range * std::pow((v - from) / range, 1.3f);
}

Image Noise(const Geometry& geometry, uint32_t seed) {
  Image image{geometry, std::vector<float>(geometry.voxels())};
  AddNoise(image, 10, seed);
  return image;
}

// Six bells of up to `amplitude_mm` on each axis, after them an affine map of up to 5 degrees and 8 mm.
Map RandomMap(const Geometry& g, uint32_t seed, double amplitude_mm) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto vector = [&](Vec3d scale) {
    return Vec3d{scale.x * uniform(engine), scale.y * uniform(engine), scale.z * uniform(engine)};
  };
  const AffineMap affine = phantom::RandomAffine(seed, 5, 0.03, 0.02, 8, Center(g)), to_physical = IndexToPhysical(g);
  const double side = std::cbrt(static_cast<double>(g.voxels()) * g.voxel_volume());
  struct Bell {
    Vec3d center, way;
    double width;
  };
  std::vector<Bell> bells;
  for (int i = 0; i < 6; ++i) {
    const Vec3d index = vector({0.3 * g.size.x, 0.3 * g.size.y, 0.3 * g.size.z});
    const Vec3d way = vector({amplitude_mm, amplitude_mm, amplitude_mm});
    bells.push_back({Center(g) + to_physical.Linear(index), way, side * (0.18 + 0.06 * uniform(engine))});
  }
  return [=](Vec3d p) {
    Vec3d q = p;
    for (const Bell& bell : bells) {
      const Vec3d d = p - bell.center;
      q = q + std::exp(-0.5 * Dot(d, d) / (bell.width * bell.width)) * bell.way;
    }
    return affine(q);
  };
}

// --- Sets ---

std::vector<Pair> Phantoms() {
  std::vector<Pair> pairs;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    phantom::PhantomOptions options;
    options.size = {96, 96, 72};
    options.spacing = {3.33, 3.33, 3.33};
    options.seed = seed;
    options.amplitude_mm = 8 * seed;
    options.invert_intensities = seed % 2 == 0;
    options.noise_sd = 8 * seed;
    const phantom::Phantom made = Value(phantom::MakePhantom(options));
    const auto model = std::make_shared<phantom::PhantomModel>(Value(phantom::PhantomModel::Create(options)));
    pairs.push_back({absl::StrCat("phantom ", seed),
                     FromHost(made.fixed),
                     FromHost(made.moving),
                     [model](Vec3d p) { return model->Transform(p); },
                     {}});
  }
  return pairs;
}

Image Load(const std::string& data, const std::string& name) {
  return FromHost(Value(io::ReadNifti(absl::StrCat(data, "/reg3d/", name))));
}

std::vector<Pair> Known(const std::string& data) {
  std::vector<Pair> pairs;
  uint32_t seed = 100;
  for (const char* name : {"templates_spm/single_subj_T1.nii.gz", "abdomen_ct_totalseg/example_ct.nii.gz",
                           "brain_t1_fireants/atlas_2mm_1000_3.nii.gz"}) {
    for (const bool spoiled : {false, true}) {
      Image moving = Load(data, name);
      const Map map = RandomMap(moving.geometry, ++seed, spoiled ? 8 : 12);
      Image fixed = Deformed(moving, map);
      if (spoiled) {
        const double deviation = 0.08 * Deviation(moving);
        AddNoise(fixed, deviation, seed);
        AddNoise(moving, deviation, seed + 50);
        ChangeContrast(fixed);
      }
      pairs.push_back({absl::StrCat(name, spoiled ? " spoiled" : ""), std::move(fixed), std::move(moving), map, {}});
    }
  }
  return pairs;
}

std::vector<Pair> Modalities(const std::string& data) {
  std::vector<Pair> pairs;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Image t1 = Load(data, "templates_spm/avg152T1.nii.gz");
    const Map map = RandomMap(t1.geometry, 200 + seed, 4 * (seed - 1));
    pairs.push_back(
        {absl::StrCat("T1 T2 ", seed), Deformed(t1, map), Load(data, "templates_spm/avg152T2.nii.gz"), map, {}});
  }
  return pairs;
}

std::vector<Vec3d> LoadPoints(const std::string& path) { return Value(io::ReadPoints(path)); }

std::vector<Pair> Livers(const std::string& data) {
  std::vector<Pair> pairs;
  for (const auto& [subject, state] :
       {std::pair{"18", "cyc_1_10"}, {"18", "cyc_3_10"}, {"26", "cyc_1_6"}, {"26", "cyc_4_7"}}) {
    const std::string folder = absl::StrCat("liver_4dmri_eth/dataset", subject, "/");
    for (const char* where : {"liver", "outside"}) {
      const auto points = [&](const char* image) {
        return LoadPoints(absl::StrCat(data, "/reg3d/", folder, image, "_landmarks_", where, ".csv"));
      };
      pairs.push_back({absl::StrCat(subject, " ", state, " ", where),
                       Load(data, folder + "exhMaster.nii.gz"),
                       Load(data, absl::StrCat(folder, state, ".nii.gz")),
                       nullptr,
                       {points("exhMaster"), points(state)}});
    }
  }
  return pairs;
}

std::vector<Pair> Subjects(const std::string& data) {
  std::vector<Pair> pairs;
  const auto add = [&](const char* name, const std::string& fixed, const std::string& moving) {
    pairs.push_back({name, Load(data, fixed), Load(data, moving), nullptr, {}});
  };
  add("fireants", "brain_t1_fireants/atlas_2mm_1000_3.nii.gz", "brain_t1_fireants/atlas_2mm_1001_3.nii.gz");
  add("mice", "fair/mice3D_R.nii.gz", "fair/mice3D_T.nii.gz");
  add("prostate", "prostate_mr_deepreg/image0.nii.gz", "prostate_mr_deepreg/image1.nii.gz");
  add("claire", "brain_t1_claire/brain01.nii.gz", "brain_t1_claire/brain02.nii.gz");
  return pairs;
}

std::vector<Pair> Unrelated(const std::string& data) {
  const Image brain = Load(data, "templates_spm/single_subj_T1.nii.gz"),
              abdomen = Load(data, "abdomen_ct_totalseg/example_ct.nii.gz"),
              liver = Load(data, "liver_4dmri_eth/dataset26/exhMaster.nii.gz");
  return {{"noise", Noise(brain.geometry, 1), Noise(brain.geometry, 2), nullptr, {}},
          {"liver, brain", liver, brain, nullptr, {}},
          {"brain, abdomen", brain, abdomen, nullptr, {}},
          {"liver, abdomen", liver, abdomen, nullptr, {}}};
}

std::vector<Pair> PairsOf(const std::string& data, const std::string& set) {
  if (set == "phantoms") return Phantoms();
  if (set == "known") return Known(data);
  if (set == "modalities") return Modalities(data);
  if (set == "livers") return Livers(data);
  if (set == "subjects") return Subjects(data);
  if (set == "unrelated") return Unrelated(data);
  std::fprintf(stderr, "no set %s\n", set.c_str());
  std::exit(2);
}

std::vector<Way> Ways() {
  const AffineOptions ssd{.metric = MetricKind::kSsd}, ngf{.metric = MetricKind::kNgf};
  return {{"affine ssd", {ssd}},
          {"affine ngf", {ngf}},
          {"ffd nmi", {ngf, FfdOptions{.metric = MetricKind::kNmi}}},
          {"ffd lncc", {ngf, FfdOptions{.metric = MetricKind::kLncc}}},
          {"ffd ssd", {ssd, FfdOptions{.metric = MetricKind::kSsd}}},
          {"log-demons", {ssd, LogDemonsOptions()}}};
}

// --- Judging ---

struct Judged {
  std::vector<double> errors, bounds;
};

std::vector<double> Flat(const std::vector<Vec3d>& points) {
  std::vector<double> flat;
  for (const Vec3d p : points) flat.insert(flat.end(), {p.x, p.y, p.z});
  return flat;
}

double Distance(Vec3d a, Vec3d b) {
  const Vec3d d = a - b;
  return std::sqrt(Dot(d, d));
}

// Calls `judge` with every place whose truth is known: the block that speaks for it, its point, and the true one.
template <typename Body>
void ForEachPlace(const Pair& pair, const ResidualProbe& probe, const Body& judge) {
  const std::vector<MatchedBlock> blocks = MatchedBlocks(probe);
  if (blocks.empty()) return;
  if (pair.map) {
    for (const MatchedBlock& block : blocks) judge(*block.match, block.centre, pair.map(block.centre));
  }
  for (size_t i = 0; i < pair.landmarks.fixed.size(); ++i) {
    const Vec3d p = pair.landmarks.fixed[i];
    const auto nearest = std::min_element(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) {
      return Distance(a.centre, p) < Distance(b.centre, p);
    });
    judge(*nearest->match, p, pair.landmarks.moving[i]);
  }
}

double Length(const float v[3]) { return std::sqrt(double{v[0]} * v[0] + double{v[1]} * v[1] + double{v[2]} * v[2]); }

void WriteFeatures(const std::string& name, const BlockMatch& match, double node_mm, double error, std::FILE* out) {
  const auto distinctness = [](const CostMinimum& m) { return m.rival > 0 ? 1 - m.best / m.rival : 0; };
  std::fprintf(out, "%s,%.3f,%.3f,%.4f,%.4f,%.4f,%.4f\n", name.c_str(), node_mm, error, Length(match.own.offset),
               Length(match.smoothed.offset), distinctness(match.own), distinctness(match.smoothed));
}

Judged Judge(const ExecContext& ctx, const Pair& pair, const Transform& transform, const ResidualProbe& probe,
             const std::string& name, std::FILE* features) {
  std::vector<const BlockMatch*> matches;
  std::vector<Vec3d> points, truths;
  ForEachPlace(pair, probe, [&](const BlockMatch& match, Vec3d point, Vec3d truth) {
    matches.push_back(&match);
    points.push_back(point);
    truths.push_back(truth);
  });
  std::vector<double> mapped = Flat(points);
  Check(MapPoints(ctx, transform, false, absl::MakeSpan(mapped)));
  Judged judged;
  for (size_t i = 0; i < points.size(); ++i) {
    const double error = Distance({mapped[3 * i], mapped[3 * i + 1], mapped[3 * i + 2]}, truths[i]);
    judged.errors.push_back(error);
    judged.bounds.push_back(PredictBlockError(*matches[i], probe.node_mm).bound_mm);
    if (features != nullptr) WriteFeatures(name, *matches[i], probe.node_mm.x, error, features);
  }
  return judged;
}

void PrintErrors(const Judged& judged) {
  if (judged.errors.empty()) {
    std::printf(" - | - |");
    return;
  }
  double mean = 0, below = 0;
  for (size_t i = 0; i < judged.errors.size(); ++i) {
    mean += judged.errors[i];
    below += judged.errors[i] <= judged.bounds[i];
  }
  const auto n = static_cast<double>(judged.errors.size());
  std::printf(" %.2f | %.3f |", mean / n, below / n);
}

PreparedImage Prepare(const ExecContext& ctx, const Image& image) {
  return Value(PreparedImage::Prepare(ctx, image.voxels.data(), PixelType::kFloat32, 1, 0, image.geometry));
}

void RunWay(const ExecContext& ctx, const Pair& pair, const Way& way, std::FILE* features) {
  const PreparedImage fixed = Prepare(ctx, pair.fixed), moving = Prepare(ctx, pair.moving);
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, way.stages, std::nullopt};
  const absl::StatusOr<RegistrationResult> result = Register(ctx, input);
  std::printf("| %s | %s |", pair.name.c_str(), way.name);
  if (!result.ok()) {
    std::printf(" refused | | | | | |\n");
    return;
  }
  const Transform& transform = result->transform;
  const ResidualProbe probe = Value(ProbeResidual(ctx, fixed, moving, {}, {}, transform));
  PrintErrors(Judge(ctx, pair, transform, probe, absl::StrCat(pair.name, "/", way.name), features));
  const std::optional<ErrorEstimate> error = PredictError(probe);
  const ResidualProbe at_affine = Value(ProbeResidual(ctx, fixed, moving, {}, {}, Transform(transform.affine())));
  const std::optional<ErrorEstimate> before = PredictError(at_affine);
  if (!error || !before) {
    std::printf(" too little structure | | | |\n");
    return;
  }
  const GateAnswer gate =
      Value(JudgeDeformation(ctx, {fixed, moving, {}, {}}, transform, {at_affine, *before}, {probe, *error}));
  std::printf(" %.2f | %.2f | %.3f | %.2f | %.2f |\n", error->expected_mm, error->bound_mm, error->agreement,
              gate.evidence.deformation_mm, gate.gain());
  std::fflush(stdout);
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  using namespace intrawarp;
  if (argc < 3) {
    std::fprintf(stderr, "predicted_error DATA SET [FEATURES.csv]\n");
    return 2;
  }
  std::FILE* const features = argc > 3 ? std::fopen(argv[3], "w") : nullptr;
  const auto devices = AllDevices();
  OwnedContext owned = Value(OwnedContext::Create(*devices.front(), kWorkspaceBytes));
  std::printf("| pair | way | mean error | below bound | expected | bound | agreement | way, mm | gain |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (const Pair& pair : PairsOf(argv[1], argv[2])) {
    for (const Way& way : Ways()) RunWay(owned.context(), pair, way, features);
  }
  if (features != nullptr) std::fclose(features);
  return 0;
}
