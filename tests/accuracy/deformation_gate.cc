// SPDX-License-Identifier: Apache-2.0
// The gate for deformations held against known ones: registrations of pairs whose truth is known, drawn at random, with
// the true error of the affine part and of the deformation over the blocks that either of them ought to move, and what
// the gate made of it.
//
//   deformation_gate DATA FIRST COUNT       cases FIRST to FIRST + COUNT - 1
//   deformation_gate DATA gains SCENE       log-demons on a scene at other gains and offsets, intensities as they are
//                                           (before) and matched where the images ask for it (after)
//
// DATA is the folder of public test data. A case is a scene (a texture, the still phantom, a part of a real image), a
// deformation of it (a bump or a swelling of 10 voxels around a lesion, waves, a shift; 0.5 to 4 voxels), what is wrong
// with the images (nothing, noise, noise in one of them, the lesion missing, another gain) and a method; every fifth
// case is of two scenes. A deformation is right when it takes a fifth and a tenth of a voxel or more off the error over
// those blocks, and wrong when it adds a tenth and a quarter of a voxel; any deformation of scenes that have nothing in
// common is wrong, and two of one kind (heads, say) are neither. The last lines are the counts. Runs on the first
// device, the methods at their defaults.
#include "engine/quality/deformation_gate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/phantom/phantom.h"
#include "engine/image/sample.h"
#include "engine/registration/registration.h"
#include "io/format/nifti.h"

namespace intrawarp {
namespace {

constexpr size_t kWorkspaceBytes = size_t{1} << 30;

using Map = std::function<Vec3d(Vec3d)>;

struct Image {
  Geometry geometry;
  std::vector<float> voxels;
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

// body(value, index) for every voxel.
template <typename Body>
void ForEachVoxel(Image& image, const Body& body) {
  const Int3 n = image.geometry.size;
  int64_t i = 0;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) body(image.voxels[i++], Vec3d{double(x), double(y), double(z)});
    }
  }
}

float At(const Image& image, Vec3d index) {
  const Int3 n = image.geometry.size;
  Vec3f inside;
  for (int a = 0; a < 3; ++a) inside[a] = static_cast<float>(std::clamp(index[a], 0.0, n[a] - 1.0));
  return SampleLinear(image.voxels.data(), n, inside);
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

// --- Scenes: larger than what is registered by kMargin voxels on each side ---

constexpr int kMargin = 6;
constexpr Int3 kSize{52, 52, 44};
constexpr Int3 kLarge{kSize.x + 2 * kMargin, kSize.y + 2 * kMargin, kSize.z + 2 * kMargin};

Image Texture(uint32_t seed, double spacing) {
  Image image{{}, std::vector<float>(int64_t{kLarge.x} * kLarge.y * kLarge.z)};
  image.geometry.size = kLarge;
  image.geometry.spacing = {spacing, spacing, spacing};
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> u(-1, 1);
  struct Blob {
    Vec3d center;
    double radius, value;
  };
  std::vector<Blob> blobs;
  for (int i = 0; i < 260; ++i) {
    blobs.push_back(
        {{32 + 34 * u(engine), 32 + 34 * u(engine), 28 + 30 * u(engine)}, 5.5 + 2.5 * u(engine), 50 * u(engine)});
  }
  ForEachVoxel(image, [&](float& value, Vec3d p) {
    double sum = 100;
    for (const Blob& b : blobs) {
      const Vec3d d = p - b.center;
      const double r2 = Dot(d, d) / (b.radius * b.radius);
      if (r2 < 12) sum += b.value * std::exp(-r2);
    }
    value = static_cast<float>(sum);
  });
  return image;
}

Image StillPhantom(uint32_t seed) {
  phantom::PhantomOptions options;
  options.size = kLarge;
  options.spacing = {4.5, 4.5, 4.5};
  options.seed = seed;
  options.amplitude_mm = 0;
  const phantom::Phantom made = Value(phantom::MakePhantom(options));
  return {made.moving.geometry, io::ToFloat(made.moving)};
}

// A part of a real image, at voxels of about so many mm.
Image Part(const std::string& data, const char* name, double voxel_mm, Vec3d centre) {
  const io::HostVolume volume = Value(io::ReadNifti(absl::StrCat(data, "/reg3d/", name)));
  const Image whole{volume.geometry, io::ToFloat(volume)};
  Image part{{}, std::vector<float>(int64_t{kLarge.x} * kLarge.y * kLarge.z)};
  part.geometry.size = kLarge;
  part.geometry.spacing = {voxel_mm, voxel_mm, voxel_mm};
  const Int3 n = whole.geometry.size;
  ForEachVoxel(part, [&](float& value, Vec3d p) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) {
      index[a] = centre[a] * n[a] + (p[a] - 0.5 * kLarge[a]) * voxel_mm / whole.geometry.spacing[a];
    }
    value = At(whole, index);
  });
  return part;
}

constexpr int kScenes = 14;
Image Scene(const std::string& data, int scene, uint32_t seed) {
  switch (scene) {
    case 0:
      return Texture(seed, 1);
    case 1:
      return Texture(seed, 0.4);
    case 2:
      return StillPhantom(seed);
    case 3:
      return Part(data, "templates_spm/single_subj_T1.nii.gz", 2, {0.5, 0.5, 0.5});
    case 4:
      return Part(data, "abdomen_ct_totalseg/example_ct.nii.gz", 4, {0.5, 0.5, 0.5});
    case 5:
      return Part(data, "liver_4dmri_eth/dataset26/exhMaster.nii.gz", 2.5, {0.4, 0.5, 0.5});
    case 6:
      return Part(data, "brain_t1_fireants/atlas_2mm_1000_3.nii.gz", 2.2, {0.5, 0.5, 0.5});
    case 7:
      return Part(data, "fair/mice3D_R.nii.gz", 0.6, {0.5, 0.5, 0.5});
    case 8:
      return Part(data, "prostate_mr_deepreg/image0.nii.gz", 1.2, {0.5, 0.5, 0.5});
    case 9:
      return Part(data, "multimodal_chris/chris_t1.nii.gz", 1.5, {0.4, 0.55, 0.6});
    case 10:
      return Part(data, "brain_t1_claire/brain01.nii.gz", 1.5, {0.5, 0.5, 0.5});
    case 11:
      return Part(data, "misc/CT_pitch.nii.gz", 1.5, {0.5, 0.5, 0.5});
    case 12:
      return Part(data, "prostate_mr_us/case000025_mr_image.nii.gz", 0.45, {0.5, 0.5, 0.5});
    default:
      return Part(data, "liver_4dmri_eth/dataset18/exhMaster.nii.gz", 2, {0.6, 0.5, 0.5});
  }
}

// --- Cases ---

enum class Kind { kBump, kSwelling, kWaves, kShift, kNone };
enum class Spoil { kNothing, kNoise, kNoiseInOne, kLesionMissing, kGain };
const char* const kKindNames[] = {"bump", "swelling", "waves", "shift", "none"};
const char* const kSpoilNames[] = {"clean", "noise", "noise in one", "lesion missing", "gain"};

struct Way {
  const char* name;
  std::vector<StageOptions> stages;
};
std::vector<Way> Ways() {
  const AffineOptions ssd{.metric = MetricKind::kSsd}, ngf{.metric = MetricKind::kNgf};
  const FfdOptions nmi{.metric = MetricKind::kNmi}, ffd_ssd{.metric = MetricKind::kSsd};
  const LogDemonsOptions demons;
  return {{"ffd nmi", {nmi}},
          {"ffd ssd", {ffd_ssd}},
          {"log-demons", {demons}},
          {"affine,ffd", {ngf, nmi}},
          {"affine,ffd ssd", {ssd, ffd_ssd}},
          {"affine,log-demons", {ssd, demons}}};
}

// Scenes of one kind have the same number; textures differ by their seeds.
int KindOfScene(int scene) {
  switch (scene) {
    case 3:
    case 6:
    case 9:
    case 10:
      return 3;
    case 5:
    case 13:
      return 5;
    case 8:
    case 12:
      return 8;
    default:
      return scene;
  }
}

struct Case {
  int number = 0;
  int scene = 0, other = 0;
  bool unrelated = false;
  Kind kind = Kind::kNone;
  double amplitude = 0;
  Spoil spoil = Spoil::kNothing;
  int way = 0;
  uint32_t seed = 0;
};

bool IsAkin(const Case& c) { return KindOfScene(c.scene) == KindOfScene(c.other) && c.scene > 1; }

Case Draw(int number) {
  std::mt19937 engine(static_cast<uint32_t>(number) * 2654435761u + 17);
  const auto pick = [&](int n) { return static_cast<int>(engine() % static_cast<uint32_t>(n)); };
  Case c;
  c.number = number;
  c.seed = engine();
  c.scene = pick(kScenes);
  c.unrelated = pick(5) == 0;
  // The seeds of two textures or phantoms differ; two parts of one image do not occur.
  c.other = c.scene < 3 && pick(2) == 0 ? c.scene : (c.scene + 1 + pick(kScenes - 1)) % kScenes;
  c.kind = static_cast<Kind>(pick(9) / 2);
  const double amplitudes[] = {0.5, 1, 2, 4};
  c.amplitude = c.kind == Kind::kNone ? 0 : amplitudes[pick(4)];
  c.spoil = static_cast<Spoil>(pick(5));
  c.way = pick(6);
  return c;
}

// In voxels of the large scene: where the moving image shows what the fixed one has at p.
Map Truth(const Case& c, Vec3d lesion) {
  std::mt19937 engine(c.seed + 1);
  std::normal_distribution<double> normal;
  Vec3d way{normal(engine), normal(engine), normal(engine)};
  way = (c.amplitude / std::sqrt(Dot(way, way))) * way;
  constexpr double kWidth = 6;
  switch (c.kind) {
    case Kind::kBump:
      return [=](Vec3d p) {
        const Vec3d d = p - lesion;
        return p + std::exp(-0.5 * Dot(d, d) / (kWidth * kWidth)) * way;
      };
    case Kind::kSwelling: {
      const double sign = c.seed % 2 == 0 ? 1 : -1;
      return [=, amplitude = c.amplitude](Vec3d p) {
        const Vec3d d = p - lesion;
        return p + sign * amplitude / kWidth * std::exp(0.5 - 0.5 * Dot(d, d) / (kWidth * kWidth)) * d;
      };
    }
    case Kind::kWaves:
      return [=](Vec3d p) {
        const double k = 2 * M_PI / 56;
        return p + Vec3d{way.x * std::sin(k * p.y + 1), way.y * std::sin(k * p.z + 2), way.z * std::sin(k * p.x)};
      };
    case Kind::kShift:
      return [=](Vec3d p) { return p + way; };
    case Kind::kNone:
      break;
  }
  return [](Vec3d p) { return p; };
}

struct Pair {
  Image fixed, moving;
  // LPS mm; null: the scenes have nothing in common.
  Map truth;
};

// The middle of a large image, sampled at map(p).
Image Middle(const Image& large, const Map& map) {
  Image image{large.geometry, std::vector<float>(int64_t{kSize.x} * kSize.y * kSize.z)};
  image.geometry.size = kSize;
  image.geometry.origin = {};
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) image.geometry.direction[a][b] = a == b;
  ForEachVoxel(image, [&](float& value, Vec3d p) { value = At(large, map(p + Vec3d{kMargin, kMargin, kMargin})); });
  return image;
}

void RemoveLesion(Image& image, Vec3d lesion) {
  const float value = At(image, lesion) + static_cast<float>(1.5 * Deviation(image));
  ForEachVoxel(image, [&](float& v, Vec3d p) {
    const Vec3d d = p - lesion;
    if (Dot(d, d) < 25) v = value;
  });
}

Pair Make(const std::string& data, const Case& c) {
  std::mt19937 engine(c.seed);
  std::uniform_real_distribution<double> u(-1, 1);
  const Vec3d middle{0.5 * kLarge.x, 0.5 * kLarge.y, 0.5 * kLarge.z};
  const Vec3d lesion = middle + Vec3d{8 * u(engine), 8 * u(engine), 7 * u(engine)};
  const Map truth = Truth(c, lesion), same = [](Vec3d p) { return p; };
  const Image scene = Scene(data, c.scene, c.seed);
  Pair pair{Middle(scene, truth), Middle(c.unrelated ? Scene(data, c.other, c.seed + 99) : scene, same), nullptr};
  pair.moving.geometry = pair.fixed.geometry;
  const double deviation = Deviation(pair.fixed);
  if (c.spoil == Spoil::kNoise) AddNoise(pair.fixed, 0.1 * deviation, c.seed + 2);
  if (c.spoil == Spoil::kNoise) AddNoise(pair.moving, 0.1 * deviation, c.seed + 3);
  if (c.spoil == Spoil::kNoiseInOne) AddNoise(pair.fixed, 0.3 * deviation, c.seed + 4);
  if (c.spoil == Spoil::kLesionMissing) RemoveLesion(pair.moving, lesion - Vec3d{kMargin, kMargin, kMargin});
  if (c.spoil == Spoil::kGain) {
    for (float& v : pair.moving.voxels) v = static_cast<float>(0.8 * v + 0.1 * deviation);
  }
  const double mm = pair.fixed.geometry.spacing.x;
  const Vec3d margin{kMargin, kMargin, kMargin};
  if (!c.unrelated) {
    pair.truth = [=](Vec3d p) { return mm * (truth((1 / mm) * p + margin) - margin); };
  }
  return pair;
}

// --- Judging ---

PreparedImage Prepare(const ExecContext& ctx, const Image& image) {
  return Value(PreparedImage::Prepare(ctx, image.voxels.data(), PixelType::kFloat32, 1, 0, image.geometry));
}

std::vector<Vec3d> Centres(const ResidualProbe& probe) {
  const AffineMap to_physical = IndexToPhysical(probe.blocks);
  std::vector<Vec3d> centres;
  const Int3 n = probe.blocks.size;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) centres.push_back(to_physical({double(x), double(y), double(z)}));
  return centres;
}

std::vector<Vec3d> Mapped(const ExecContext& ctx, const Transform& transform, const std::vector<Vec3d>& points) {
  std::vector<double> flat;
  for (const Vec3d p : points) flat.insert(flat.end(), {p.x, p.y, p.z});
  Check(MapPoints(ctx, transform, false, absl::MakeSpan(flat)));
  std::vector<Vec3d> mapped;
  for (size_t i = 0; i < flat.size(); i += 3) mapped.push_back({flat[i], flat[i + 1], flat[i + 2]});
  return mapped;
}

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

enum class Label { kRight, kWrong, kNeither };
const char* const kLabelNames[] = {"right", "wrong", "neither"};

struct Errors {
  double affine = 0, deformed = 0;  // voxels
  int blocks = 0;
};

// The mean errors over the matched blocks that move, or ought to, by a quarter of a voxel or more.
Errors Measure(const ExecContext& ctx, const Pair& pair, const Transform& transform, const ResidualProbe& before,
               const ResidualProbe& after) {
  const std::vector<Vec3d> centres = Centres(before), to = Mapped(ctx, transform, centres);
  const double voxel = pair.fixed.geometry.spacing.x;
  Errors errors;
  for (size_t i = 0; i < centres.size(); ++i) {
    const Vec3d from = transform.affine()(centres[i]), truth = pair.truth ? pair.truth(centres[i]) : centres[i];
    const double e0 = Length(from - truth) / voxel, e1 = Length(to[i] - truth) / voxel;
    const bool is_judged = before.matches[i].matched != 0 || after.matches[i].matched != 0;
    if (!is_judged || (Length(to[i] - from) <= 0.25 * voxel && e0 <= 0.25)) continue;
    ++errors.blocks;
    errors.affine += e0;
    errors.deformed += e1;
  }
  if (errors.blocks > 0) errors.affine /= errors.blocks, errors.deformed /= errors.blocks;
  return errors;
}

Label LabelOf(const Case& c, const Errors& errors) {
  if (c.unrelated) return IsAkin(c) ? Label::kNeither : Label::kWrong;
  if (errors.blocks < 3) return Label::kNeither;
  if (errors.deformed < 0.8 * errors.affine && errors.affine - errors.deformed > 0.1) return Label::kRight;
  return errors.deformed > 1.1 * errors.affine + 0.25 ? Label::kWrong : Label::kNeither;
}

struct Count {
  int number[3] = {}, kept[3] = {};
};

void Run(const ExecContext& ctx, const std::string& data, const Case& c, Count* count) {
  const Pair pair = Make(data, c);
  const PreparedImage fixed = Prepare(ctx, pair.fixed), moving = Prepare(ctx, pair.moving);
  const Way way = Ways()[c.way];
  const RegistrationInput input{&fixed, &moving, nullptr, nullptr, way.stages, std::nullopt};
  const absl::StatusOr<RegistrationResult> result = Register(ctx, input);
  std::printf("%d | %d | %s | %g | %s | %s |", c.number, c.scene, c.unrelated ? "unrelated" : kKindNames[int(c.kind)],
              c.amplitude, kSpoilNames[int(c.spoil)], way.name);
  if (!result.ok()) {
    std::printf(" refused\n");
    return;
  }
  const Transform& transform = result->transform;
  const ResidualProbe before = Value(ProbeResidual(ctx, fixed, moving, {}, {}, Transform(transform.affine())));
  const ResidualProbe after = Value(ProbeResidual(ctx, fixed, moving, {}, {}, transform));
  const std::optional<ErrorEstimate> at_affine = PredictError(before), at_end = PredictError(after);
  const Errors errors = Measure(ctx, pair, transform, before, after);
  if (!at_affine || !at_end) {
    std::printf(" too little structure\n");
    return;
  }
  const GateAnswer gate =
      Value(JudgeDeformation(ctx, {fixed, moving, {}, {}}, transform, {before, *at_affine}, {after, *at_end}));
  const int label = int(LabelOf(c, errors));
  ++count->number[label];
  count->kept[label] += gate.is_accepted;
  const DeformationEvidence& e = gate.evidence;
  std::printf(" %s | %s | %.3f | %.3f | %d | %.2f | %.2f | %.2f | %.4f | %.4f | %.4f | %d of %d | %.3f | %.3f\n",
              kLabelNames[label], gate.is_accepted ? "kept" : "undone", errors.affine, errors.deformed,
              int(e.moved.count), e.moved.gain, e.moved.foretold, e.unexplained.left_in_most, e.unexplained.before,
              e.unexplained.after, e.unexplained.after_everywhere, int(e.bounded.beyond), int(e.bounded.blocks),
              at_affine->agreement, *gate.error.affine_agreement);
  std::fflush(stdout);
}

// --- Gains ---

// Waves of 2 voxels, seen at a gain and an offset in standard deviations: the mean error of the body's blocks in voxels
// of the affine part and at the end, and whether intensities were matched.
void RunGain(const ExecContext& ctx, const std::string& data, int scene, double gain, double offset,
             std::vector<StageOptions> stages, const char* name) {
  Case c;
  c.scene = scene;
  c.seed = 5;
  c.kind = Kind::kWaves;
  c.amplitude = 2;
  Pair pair = Make(data, c);
  const double deviation = Deviation(pair.moving);
  for (float& v : pair.moving.voxels) v = static_cast<float>(gain * v + offset * deviation);
  const PreparedImage fixed = Prepare(ctx, pair.fixed), moving = Prepare(ctx, pair.moving);
  std::printf("%d | %g | %g | %s |", scene, gain, offset, name);
  for (const std::optional<bool> match : {std::optional<bool>(false), {std::nullopt}}) {
    std::get<LogDemonsOptions>(stages.back()).match_intensities = match;
    const RegistrationInput input{&fixed, &moving, nullptr, nullptr, stages, std::nullopt};
    const absl::StatusOr<RegistrationResult> result = Register(ctx, input);
    if (!result.ok()) {
      std::printf(" refused | |");
      continue;
    }
    const ResidualProbe before =
        Value(ProbeResidual(ctx, fixed, moving, {}, {}, Transform(result->transform.affine())));
    const ResidualProbe after = Value(ProbeResidual(ctx, fixed, moving, {}, {}, result->transform));
    const Errors errors = Measure(ctx, pair, result->transform, before, after);
    const bool matched = *std::get<LogDemonsOptions>(result->stages.back().options).match_intensities;
    std::printf(" %.3f | %.3f%s |", errors.affine, errors.deformed, matched ? " matched" : "");
  }
  std::printf("\n");
  std::fflush(stdout);
}

void RunGains(const ExecContext& ctx, const std::string& data, int scene) {
  std::printf("scene | gain | offset | way | affine part before | before | affine part after | after\n");
  const AffineOptions ssd{.metric = MetricKind::kSsd};
  for (const double gain : {0.5, 0.8, 1.0, 1.25, 2.0}) {
    for (const double offset : {0.0, 0.5}) {
      RunGain(ctx, data, scene, gain, offset, {LogDemonsOptions()}, "log-demons");
      RunGain(ctx, data, scene, gain, offset, {ssd, LogDemonsOptions()}, "affine,log-demons");
    }
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  using namespace intrawarp;
  if (argc < 4) {
    std::fprintf(stderr, "deformation_gate DATA FIRST COUNT\n");
    return 2;
  }
  const auto devices = AllDevices();
  OwnedContext owned = Value(OwnedContext::Create(*devices.front(), kWorkspaceBytes));
  if (std::string(argv[2]) == "gains") {
    RunGains(owned.context(), argv[1], std::atoi(argv[3]));
    return 0;
  }
  const int first = std::atoi(argv[2]), count = std::atoi(argv[3]);
  std::printf(
      "case | scene | truth | voxels | spoilt by | way | deformation | gate | error of affine part | error | moved "
      "blocks | gain | foretold | left in most | unexplained before | after | everywhere | beyond bounds | affine "
      "agreement | as judged\n");
  Count counts;
  for (int i = first; i < first + count; ++i) Run(owned.context(), argv[1], Draw(i), &counts);
  for (int i = 0; i < 3; ++i) {
    std::printf("%s: %d, kept %d, undone %d\n", kLabelNames[i], counts.number[i], counts.kept[i],
                counts.number[i] - counts.kept[i]);
  }
  return 0;
}
