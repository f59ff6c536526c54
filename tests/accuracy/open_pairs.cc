// SPDX-License-Identifier: Apache-2.0
// The open pairs of public data by engine calls: four breathing states of two livers with landmarks, and brains and
// prostates with labels, in both directions. Prints a line for each pair and way: the mean distance of the landmarks
// inside and outside the liver in mm, or the mean Dice of the labels; the median time of a call in ms; and the stages
// of the answer, with the iterations of each level.
//
//   open_pairs DATA [--device=auto|cpu|cuda:N] [--ways=WAY/WAY/...] [--pairs=NAME/NAME/...] [--times=3]
//
// A way is `auto`, or stages that are separated by commas, as in affine,ffd:lncc:s3:w0.25:l1: a method, its metric,
// and of ffd the spacing of control points in voxels (s), the bending weight (w), the levels (l) and the
// iterations of each (i); of log-demons `half` is a velocity on half the grid. The names of pairs begin with those that
// --pairs gives.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "engine/image/sample.h"
#include "engine/registration/registration.h"
#include "engine/transform/transform.h"
#include "io/format/nifti.h"

namespace intrawarp {
namespace {

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "open_pairs: %s\n", why.c_str());
  std::exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(value.status().ToString());
  return *std::move(value);
}

constexpr size_t kLoadingBytes = size_t{1} << 30;

struct PairFiles {
  std::string name, folder, fixed, moving;
  // Label maps; without them there are landmarks.
  std::string fixed_labels, moving_labels;
};

// Files without .nii.gz.
std::vector<PairFiles> AllPairs(const std::string& data) {
  std::vector<PairFiles> all;
  for (const auto& [liver, states] : std::map<std::string, std::vector<std::string>>{{"18", {"cyc_1_10", "cyc_3_10"}},
                                                                                     {"26", {"cyc_1_6", "cyc_4_7"}}}) {
    for (const std::string& state : states) {
      all.push_back({absl::StrCat("liver ", liver, " ", state),
                     absl::StrCat(data, "/reg3d/liver_4dmri_eth/dataset", liver, "/"), "exhMaster", state, "", ""});
    }
  }
  all.push_back({"lapirn", absl::StrCat(data, "/reg3d/brain_t1_lapirn/"), "image_A_160x192x144", "image_B_160x192x144",
                 "image_A_160x192x144_seg", "image_B_160x192x144_seg"});
  all.push_back({"malf", absl::StrCat(data, "/reg3d/brain_t1_malf/"), "1000_SS", "1001_SS", "1000_glm", "1001_glm"});
  all.push_back(
      {"prostate", absl::StrCat(data, "/reg3d/prostate_mr_deepreg/"), "image0", "image1", "label0", "label1"});
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    PairFiles swapped = all[i];
    swapped.name += " swapped";
    std::swap(swapped.fixed, swapped.moving);
    std::swap(swapped.fixed_labels, swapped.moving_labels);
    all.push_back(swapped);
  }
  return all;
}

// x y z of each point, LPS mm.
std::vector<double> ReadPoints(const std::string& path) {
  std::ifstream in(path);
  std::vector<double> points;
  std::string line;
  std::getline(in, line);  // the names of the columns
  while (std::getline(in, line)) {
    for (const absl::string_view field : absl::StrSplit(line, ',', absl::SkipWhitespace())) {
      double value;
      if (absl::SimpleAtod(field, &value)) points.push_back(value);
    }
  }
  return points;
}

PreparedImage Load(const ExecContext& ctx, const std::string& path) {
  const io::HostVolume v = Value(io::ReadNifti(path));
  return Value(
      PreparedImage::Prepare(ctx, v.pixels.data(), v.pixel_type, v.rescale_slope, v.rescale_intercept, v.geometry));
}

std::vector<double> Mapped(Device& device, const Transform& transform, std::vector<double> points) {
  const auto count = static_cast<int64_t>(points.size() / 3);
  OwnedContext owned = Value(OwnedContext::Create(device, MapPointsWorkspaceBytes(transform, count)));
  const absl::Status status = MapPoints(owned.context(), transform, /*inverse=*/false, absl::MakeSpan(points));
  if (!status.ok()) Fail(status.ToString());
  return points;
}

double MeanDistance(Device& device, const Transform& transform, const PairFiles& files, const std::string& where) {
  const std::vector<double> fixed = ReadPoints(absl::StrCat(files.folder, files.fixed, "_landmarks_", where, ".csv")),
                            moving = ReadPoints(absl::StrCat(files.folder, files.moving, "_landmarks_", where, ".csv"));
  if (fixed.empty() || fixed.size() % 3 != 0 || moving.size() != fixed.size()) {
    Fail(absl::StrCat(files.name, ": landmarks are missing or do not match"));
  }
  const std::vector<double> mapped = Mapped(device, transform, fixed);
  double sum = 0;
  for (size_t i = 0; i + 2 < mapped.size(); i += 3) {
    sum += std::hypot(mapped[i] - moving[i], mapped[i + 1] - moving[i + 1], mapped[i + 2] - moving[i + 2]);
  }
  return sum / (static_cast<double>(mapped.size()) / 3);
}

// The mean over all labels of either map, with the moving one mapped to the fixed one's grid by the nearest voxel.
double MeanDice(Device& device, const Transform& transform, const PairFiles& files) {
  const io::HostVolume fixed = Value(io::ReadNifti(files.folder + files.fixed_labels + ".nii.gz")),
                       moving = Value(io::ReadNifti(files.folder + files.moving_labels + ".nii.gz"));
  const std::vector<float> of_fixed = io::ToFloat(fixed), of_moving = io::ToFloat(moving);
  const AffineMap to_physical = IndexToPhysical(fixed.geometry), to_index = PhysicalToIndex(moving.geometry);
  const Int3 n = fixed.geometry.size, m = moving.geometry.size;
  std::vector<double> points;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) {
        const Vec3d p = to_physical(Vec3d{1.0 * x, 1.0 * y, 1.0 * z});
        points.insert(points.end(), {p.x, p.y, p.z});
      }
  points = Mapped(device, transform, std::move(points));
  struct Counts {
    double fixed = 0, warped = 0, common = 0;
  };
  std::map<int, Counts> labels;
  for (const float label : of_moving) labels[static_cast<int>(label)];
  for (size_t i = 0; i < of_fixed.size(); ++i) {
    const Vec3d p = to_index(Vec3d{points[3 * i], points[3 * i + 1], points[3 * i + 2]});
    const Vec3f index{static_cast<float>(p.x), static_cast<float>(p.y), static_cast<float>(p.z)};
    const int a = static_cast<int>(of_fixed[i]),
              b = IsInside(m, index) ? static_cast<int>(of_moving[NearestOffset(m, index)]) : 0;
    labels[a].fixed += 1;
    labels[b].warped += 1;
    if (a == b) labels[a].common += 1;
  }
  labels.erase(0);
  if (labels.empty()) Fail(absl::StrCat(files.name, ": no labels"));
  double sum = 0;
  for (const auto& [label, c] : labels) sum += 2 * c.common / (c.fixed + c.warped);
  return sum / static_cast<double>(labels.size());
}

// A letter and a number, as in w0.25.
std::optional<double> Number(absl::string_view word, absl::string_view letter) {
  double value;
  return absl::ConsumePrefix(&word, letter) && absl::SimpleAtod(word, &value) ? std::optional(value) : std::nullopt;
}

// False for another word.
bool SetFfdWord(absl::string_view word, FfdOptions& options) {
  const auto spacing = Number(word, "s"), weight = Number(word, "w"), levels = Number(word, "l"),
             iterations = Number(word, "i");
  if (spacing) options.spacing_vox = *spacing;
  if (weight) options.bending_weight = *weight;
  if (levels) options.levels = static_cast<int>(*levels);
  if (iterations) options.iterations = static_cast<int>(*iterations);
  return spacing || weight || levels || iterations;
}

std::optional<MetricKind> MetricNamed(absl::string_view name) {
  for (const MetricTraits& traits : kMetricTable) {
    if (traits.name == name) return traits.kind;
  }
  return std::nullopt;
}

// False where the stage has no such word.
bool SetWord(absl::string_view word, StageOptions& stage) {
  const std::optional<MetricKind> metric = MetricNamed(word);
  if (auto* ffd = std::get_if<FfdOptions>(&stage)) {
    if (!metric) return SetFfdWord(word, *ffd);
    ffd->metric = metric;
    return true;
  }
  if (auto* affine = std::get_if<AffineOptions>(&stage); affine != nullptr && metric) {
    affine->metric = metric;
    return true;
  }
  auto* demons = std::get_if<LogDemonsOptions>(&stage);
  if (demons == nullptr || word != "half") return false;
  demons->velocity_grid = VelocityGrid::kHalf;
  return true;
}

StageOptions ParseStage(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ':');
  std::optional<StageOptions> stage = StageNamed(words[0]);
  if (!stage.has_value()) Fail(absl::StrCat("no method ", words[0]));
  for (size_t i = 1; i < words.size(); ++i) {
    if (!SetWord(words[i], *stage)) Fail(absl::StrCat(words[0], ": no such word: ", words[i]));
  }
  return *stage;
}

RegistrationInput InputOf(const PreparedImage& fixed, const PreparedImage& moving, const std::string& way) {
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, {}, std::nullopt};
  input.automatic = way == "auto";
  if (input.automatic) {
    input.stages = AutomaticStages();
  } else {
    for (const absl::string_view stage : absl::StrSplit(way, ',')) input.stages.push_back(ParseStage(stage));
  }
  return input;
}

std::string StagesOf(const RegistrationResult& result) {
  return absl::StrJoin(result.stages, ",", [](std::string* out, const StageReport& stage) {
    absl::StrAppend(out, MethodName(stage.options), ":", MetricName(MetricOf(stage.options)));
    for (const LevelReport& level : stage.levels) absl::StrAppend(out, ":", level.iterations);
  });
}

void RunPair(Device& device, const PairFiles& files, const std::string& way, int times) {
  // The images are freed on its stream.
  OwnedContext loading = Value(OwnedContext::Create(device, kLoadingBytes));
  const PreparedImage fixed = Load(loading.context(), files.folder + files.fixed + ".nii.gz"),
                      moving = Load(loading.context(), files.folder + files.moving + ".nii.gz");
  const RegistrationInput input = InputOf(fixed, moving, way);
  OwnedContext owned = Value(OwnedContext::Create(device, RegistrationWorkspaceBytes(device, input)));
  std::vector<double> ms;
  std::optional<RegistrationResult> result;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    result = Value(Register(owned.context(), input));
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  const std::string accuracy =
      files.fixed_labels.empty()
          ? absl::StrFormat("%.3f / %.3f mm", MeanDistance(device, result->transform, files, "liver"),
                            MeanDistance(device, result->transform, files, "outside"))
          : absl::StrFormat("Dice %.4f", MeanDice(device, result->transform, files));
  std::printf("| %s | %s | %s | %.1f ms | %s |\n", files.name.c_str(), way.c_str(), accuracy.c_str(), ms[ms.size() / 2],
              StagesOf(*result).c_str());
  std::fflush(stdout);
}

struct Options {
  std::string data, device;
  std::vector<std::string> ways, pairs;
  int times = 3;
};

CommandSyntax Syntax() {
  return {{{.name = "device", .placeholder = "D", .help = "auto"},
           {.name = "ways", .placeholder = "WAYS", .help = "auto"},
           {.name = "pairs", .placeholder = "NAMES", .help = "all"},
           {.name = "times", .type = FlagType::kInteger, .placeholder = "N", .help = "3", .minimum = 1}},
          {"DATA"}};
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  Options options;
  options.data = flags.Positional(0);
  options.device = flags.String("device", "auto");
  options.ways = absl::StrSplit(flags.String("ways", "auto"), '/');
  options.pairs = absl::StrSplit(flags.String("pairs", ""), '/');
  options.times = static_cast<int>(flags.Integer("times", options.times));
  return options;
}

bool IsAskedFor(const Options& options, const PairFiles& files) {
  return std::any_of(options.pairs.begin(), options.pairs.end(),
                     [&](const std::string& name) { return files.name.rfind(name, 0) == 0; });
}

int Main(const std::vector<std::string>& arguments) {
  const Options options = Value(ParseOptions(arguments));
  const std::unique_ptr<Device> device = Value(OpenDevice(options.device));
  for (const PairFiles& files : AllPairs(options.data)) {
    if (!IsAskedFor(options, files)) continue;
    for (const std::string& way : options.ways) RunPair(*device, files, way, options.times);
  }
  return 0;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) { return intrawarp::Main({argv + 1, argv + argc}); }
