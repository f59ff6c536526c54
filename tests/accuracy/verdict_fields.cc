// SPDX-License-Identifier: Apache-2.0
// Verdicts by the size of the field: pairs of images with nothing in common, and pairs that a known map relates
// (field_scenes.h), at fields of 15 to 400 mm, registered by every way as a server does it. Writes a line of JSON a
// registration, which verdict_fields.py counts: the verdict, its reasons, the true error where there is one, and the
// numbers that the verdict is made of.
//
//   verdict_fields DATA OUT.jsonl [--device=cpu|cuda:0] [--pairs=500] [--seconds=N] [--threads=N] [--part=K/N]
//                  [--ways=WAY,...] [--blocks=OUT.bin]
//
// DATA is the folder of public test data. Every pair of each side meets one way, then every pair the next, so that a
// run that is ended by --seconds is a sample of the whole. --blocks also writes what the probe saw of each result and
// of its affine part, from which rules can be replayed (BlockRecord).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/quality/residual_probe.h"
#include "server/registration/registration_job.h"
#include "tests/accuracy/field_scenes.h"

namespace intrawarp::server {
namespace {

using fields::Pair;

struct Flags {
  std::string data, out, blocks, device = "cpu";
  std::vector<std::string> ways;
  int pairs = 500, threads = 1, part = 0, parts = 1;
  double seconds = 1e9;
};

template <typename T>
T Value(absl::StatusOr<T> value, const char* what) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s: %s\n", what, value.status().ToString().c_str());
  std::exit(1);
}

struct Way {
  const char* name;
  std::vector<StageOptions> stages;
  bool automatic = false;
};

std::vector<Way> AllWays() {
  const AffineOptions ssd{.metric = MetricKind::kSsd}, ngf{.metric = MetricKind::kNgf};
  const FfdOptions nmi{.metric = MetricKind::kNmi};
  return {{"auto", AutomaticStages(), true},
          {"rigid", {RigidOptions()}},
          {"affine", {ssd}},
          {"ffd", {ngf, nmi}},
          {"log-demons", {ssd, LogDemonsOptions()}},
          {"affine ngf", {ngf}},
          {"ffd alone", {nmi}},
          {"log-demons alone", {LogDemonsOptions()}}};
}

std::vector<Way> WaysOf(const Flags& flags) {
  std::vector<Way> ways = AllWays();
  if (flags.ways.empty()) return ways;
  std::vector<Way> chosen;
  for (Way& way : ways) {
    if (std::find(flags.ways.begin(), flags.ways.end(), way.name) != flags.ways.end()) chosen.push_back(std::move(way));
  }
  return chosen;
}

constexpr const char* kSides[] = {"unrelated", "known", "livers"};

Pair MakePair(const std::string& data, const std::vector<fields::Source>& sources, int side, int number) {
  if (side == 0) return fields::MakeUnrelated(sources, number);
  return side == 1 ? fields::MakeKnown(sources, number) : fields::ReadLivers(data, number);
}

// A registration to run.
struct Case {
  int side = 0;
  int number = 0;
  const Way* way = nullptr;
  std::string Key() const { return absl::StrCat(kSides[side], "/", number, "/", way->name); }
};

std::vector<Case> CasesOf(const Flags& flags, const std::vector<Way>& ways) {
  std::vector<Case> cases;
  const int count = static_cast<int>(ways.size());
  for (int round = 0; round < count; ++round) {
    for (int number = 0; number < flags.pairs; ++number) {
      for (int side = 0; side < (number < fields::kLiverPairs ? 3 : 2); ++side) {
        cases.push_back({side, number, &ways[(number + round) % count]});
      }
    }
  }
  std::vector<Case> part;
  for (size_t i = flags.part; i < cases.size(); i += flags.parts) part.push_back(cases[i]);
  return part;
}

// --- Numbers ---

struct Errors {
  double mean = 0, p95 = 0, max = 0;
};

Errors ErrorsOf(const ExecContext& ctx, const Pair& pair, const Transform& transform) {
  std::vector<double> mapped, errors;
  for (const Vec3d p : pair.places) mapped.insert(mapped.end(), {p.x, p.y, p.z});
  const absl::Status status = MapPoints(ctx, transform, /*inverse=*/false, absl::MakeSpan(mapped));
  if (!status.ok()) return {NAN, NAN, NAN};
  Errors out;
  for (size_t i = 0; i < pair.places.size(); ++i) {
    const Vec3d d = Vec3d{mapped[3 * i], mapped[3 * i + 1], mapped[3 * i + 2]} - pair.mapped[i];
    errors.push_back(std::sqrt(Dot(d, d)));
    out.mean += errors.back() / static_cast<double>(pair.places.size());
  }
  std::sort(errors.begin(), errors.end());
  out.p95 = errors[errors.size() * 95 / 100];
  out.max = errors.back();
  return out;
}

// The error that makes an answer bad, mm: two voxels, 5 mm at most; and three times as much for the 0.95 quantile.
double LimitOf(const Pair& pair) {
  return pair.family == "livers" ? 5 : std::min(5.0, 2 * pair.field_mm / pair.fixed.grid.size.x);
}

class Line {
 public:
  void Add(const char* name, const std::string& text) {
    absl::StrAppend(&text_, Comma(), "\"", name, "\":\"", text, "\"");
  }
  void Add(const char* name, double value) {
    if (std::isfinite(value)) absl::StrAppend(&text_, Comma(), "\"", name, "\":", value);
  }
  void Add(const char* name, const std::optional<double>& value) {
    if (value) Add(name, *value);
  }
  std::string Text() const { return absl::StrCat("{", text_, "}\n"); }

 private:
  const char* Comma() const { return text_.empty() ? "" : ","; }
  std::string text_;
};

void AddError(const ErrorEstimate& error, Line& line) {
  line.Add("expected", error.expected_mm);
  line.Add("bound", error.bound_mm);
  line.Add("bound_p95", error.bound_p95_mm);
  line.Add("bound_max", error.bound_max_mm);
  line.Add("judged", error.judged_fraction);
  line.Add("agreement", error.agreement);
  line.Add("chance", error.chance);
  line.Add("affine_expected", error.affine_expected_mm);
  line.Add("affine_agreement", error.affine_agreement);
  line.Add("deformation", error.deformation_mm);
}

void AddQuality(const RegistrationOutcome& outcome, Line& line) {
  const QualityReport& quality = outcome.quality;
  std::vector<std::string> causes;
  for (const ReviewReason& reason : quality.review_reasons) causes.emplace_back(ReviewText(reason.cause));
  line.Add("verdict", NeedsReview(quality.review_reasons) ? "review" : "ok");
  line.Add("reasons", absl::StrJoin(causes, ", "));
  if (quality.error) AddError(*quality.error, line);
  line.Add("rejected_gain", quality.rejected_gain);
  line.Add("start_margin", quality.start_margin);
  line.Add("mirror_lead", quality.mirror_lead);
  line.Add("ncc", quality.after.ncc);
  line.Add("ncc_before", quality.before.ncc);
  line.Add("nmi", quality.after.nmi);
  line.Add("overlap", quality.overlap);
  line.Add("min_stretch", quality.affine.min_stretch);
  line.Add("max_stretch", quality.affine.max_stretch);
  line.Add("stop", static_cast<double>(outcome.result.stop_reason));
}

// --- What the probe saw ---

// A file of these: the key's length and bytes, which result ('d': as it is, 'a': its affine part, 'u': the deformation
// before the gate took it out), three numbers of blocks (uint16), mm a node (float), and for each block 12 bytes: flags
// (1 covered, 2 matched, 4 shown), the own and the smoothed offset (int8, 1/32 node), 1 - best / rival of both (uint8,
// 1/255), and the deformation at the block's centre (int8, 1/16 node).
struct Probed {
  char kind;
  const Transform* transform;
};

int8_t Steps(double value) { return static_cast<int8_t>(std::clamp(std::round(value), -127.0, 127.0)); }
uint8_t Distinctness(const CostMinimum& m) {
  return static_cast<uint8_t>(std::clamp(m.rival > 0 ? 255 * (1 - m.best / m.rival) : 0.0f, 0.0f, 255.0f));
}

template <typename T>
void Append(const T& value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string BlockRecord(const ExecContext& ctx, const std::string& key, const PreparedImage& fixed,
                        const PreparedImage& moving, const Probed& probed) {
  const absl::StatusOr<ResidualProbe> probe = ProbeResidual(ctx, fixed, moving, {}, {}, *probed.transform);
  if (!probe.ok()) return "";
  const Int3 n = probe->blocks.size;
  const AffineMap to_physical = IndexToPhysical(probe->blocks);
  std::vector<double> mapped;
  for (int i = 0; i < BlockCount(ProbeGrid(fixed.geometry()).size); ++i) {
    const Vec3d p = to_physical({double(i % n.x), double(i / n.x % n.y), double(i / n.x / n.y)});
    mapped.insert(mapped.end(), {p.x, p.y, p.z});
  }
  const std::vector<double> centres = mapped;
  if (!MapPoints(ctx, *probed.transform, false, absl::MakeSpan(mapped)).ok()) return "";
  std::string out;
  out.push_back(static_cast<char>(key.size()));
  out += key;
  out.push_back(probed.kind);
  for (int a = 0; a < 3; ++a) Append(static_cast<uint16_t>(n[a]), out);
  Append(static_cast<float>(probe->node_mm.x), out);
  for (size_t i = 0; i < probe->matches.size(); ++i) {
    const BlockMatch& match = probe->matches[i];
    const bool has_minima = match.matched != 0;
    out.push_back(static_cast<char>(match.covered | match.matched << 1 | match.shown << 2));
    for (int a = 0; a < 3; ++a) Append(Steps(has_minima ? 32 * match.own.offset[a] : 0), out);
    for (int a = 0; a < 3; ++a) Append(Steps(has_minima ? 32 * match.smoothed.offset[a] : 0), out);
    Append(has_minima ? Distinctness(match.own) : uint8_t{0}, out);
    Append(has_minima ? Distinctness(match.smoothed) : uint8_t{0}, out);
    const Vec3d p{centres[3 * i], centres[3 * i + 1], centres[3 * i + 2]};
    const Vec3d u = Vec3d{mapped[3 * i], mapped[3 * i + 1], mapped[3 * i + 2]} - probed.transform->affine()(p);
    for (int a = 0; a < 3; ++a) Append(Steps(16 * u[a] / probe->node_mm.x), out);
  }
  return out;
}

// --- Running ---

class Runner {
 public:
  Runner(const Flags& flags, Device& device, std::vector<Case> cases)
      : flags_(flags), device_(device), cases_(std::move(cases)), sources_(fields::ReadSources(flags.data)) {
    out_ = std::fopen(flags.out.c_str(), "w");
    if (!flags.blocks.empty()) blocks_ = std::fopen(flags.blocks.c_str(), "wb");
    if (out_ == nullptr || (blocks_ == nullptr && !flags.blocks.empty())) {
      std::fprintf(stderr, "cannot write\n");
      std::exit(1);
    }
  }
  ~Runner() {
    std::fclose(out_);
    if (blocks_ != nullptr) std::fclose(blocks_);
  }

  void Run() {
    std::vector<std::thread> threads;
    for (int t = 0; t < flags_.threads; ++t) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Work() {
    for (size_t i = next_++; i < cases_.size(); i = next_++) {
      if (std::chrono::duration<double>(Clock::now() - begin_).count() > flags_.seconds) return;
      RunCase(cases_[i]);
    }
  }

  void Write(const std::string& line, const std::string& blocks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::fwrite(line.data(), 1, line.size(), out_);
    std::fflush(out_);
    if (blocks_ != nullptr) std::fwrite(blocks.data(), 1, blocks.size(), blocks_);
  }

  void RunCase(const Case& c) {
    const Pair pair = MakePair(flags_.data, sources_, c.side, c.number);
    Line line;
    line.Add("key", c.Key());
    line.Add("side", kSides[c.side]);
    line.Add("family", pair.family);
    line.Add("way", c.way->name);
    line.Add("field", pair.field_mm);
    line.Add("size", pair.fixed.grid.size.x);
    std::string blocks;
    const Clock::time_point begin = Clock::now();
    const absl::Status status = Register(c, pair, line, blocks);
    if (!status.ok()) {
      line.Add("verdict", "refused");
      line.Add("code", absl::StatusCodeToString(status.code()));
    }
    line.Add("seconds", std::chrono::duration<double>(Clock::now() - begin).count());
    Write(line.Text(), blocks);
  }

  absl::Status Register(const Case& c, const Pair& pair, Line& line, std::string& blocks) {
    OwnedContext prepare = Value(OwnedContext::Create(device_, size_t{256} << 20), "workspace");
    const auto prepared = [&](const fields::Image& image) {
      return PreparedImage::Prepare(prepare.context(), image.voxels.data(), PixelType::kFloat32, 1, 0, image.grid);
    };
    INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage fixed, prepared(pair.fixed));
    INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage moving, prepared(pair.moving));
    RegistrationInput input;
    input.fixed = &fixed;
    input.moving = &moving;
    input.stages = c.way->stages;
    input.automatic = c.way->automatic;
    const auto bytes = static_cast<size_t>(RegistrationJobBytes(device_, input));
    OwnedContext owned = Value(OwnedContext::Create(device_, bytes), "workspace");
    const Seams seams = SystemSeams();
    JobControl control(seams, std::nullopt);
    const RegistrationTask task{input, [](int64_t) { return std::make_shared<Grant>(); }, std::nullopt, false,
                                std::nullopt};
    LatencyBreakdown latency;
    INTRAWARP_ASSIGN_OR_RETURN(const RegistrationOutcome outcome,
                               RunRegistration(owned.context(), task, control, latency));
    AddQuality(outcome, line);
    if (!pair.places.empty()) AddTruth(prepare.context(), pair, outcome, line);
    if (blocks_ != nullptr) AddBlocks(prepare.context(), c.Key(), input, outcome, owned.context(), blocks);
    return absl::OkStatus();
  }

  static void AddTruth(const ExecContext& ctx, const Pair& pair, const RegistrationOutcome& outcome, Line& line) {
    const Errors errors = ErrorsOf(ctx, pair, outcome.result.transform);
    const double limit = LimitOf(pair);
    line.Add("mean", errors.mean);
    line.Add("p95", errors.p95);
    line.Add("max", errors.max);
    line.Add("limit", limit);
    line.Add("good", errors.mean <= limit && errors.p95 <= 3 * limit ? 1.0 : 0.0);
  }

  static void AddBlocks(const ExecContext& ctx, const std::string& key, const RegistrationInput& input,
                        const RegistrationOutcome& outcome, const ExecContext& again, std::string& blocks) {
    const Transform& transform = outcome.result.transform;
    blocks += BlockRecord(ctx, key, *input.fixed, *input.moving, {'d', &transform});
    if (transform.is_affine()) return;
    const Transform affine(transform.affine());
    blocks += BlockRecord(ctx, key, *input.fixed, *input.moving, {'a', &affine});
    if (!outcome.quality.rejected_gain || input.automatic) return;
    const absl::StatusOr<RegistrationResult> whole = intrawarp::Register(again, input);
    if (whole.ok()) blocks += BlockRecord(ctx, key, *input.fixed, *input.moving, {'u', &whole->transform});
  }

  const Flags& flags_;
  Device& device_;
  const std::vector<Case> cases_;
  const std::vector<fields::Source> sources_;
  const Clock::time_point begin_ = Clock::now();
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::FILE* out_ = nullptr;
  std::FILE* blocks_ = nullptr;
};

bool Take(absl::string_view argument, const char* name, std::string* value) {
  if (!absl::ConsumePrefix(&argument, absl::StrCat("--", name, "="))) return false;
  *value = std::string(argument);
  return true;
}

// False for a wrong command line.
bool ParseFlag(const std::string& argument, Flags& flags) {
  std::string value;
  if (Take(argument, "device", &flags.device) || Take(argument, "blocks", &flags.blocks)) return true;
  if (Take(argument, "pairs", &value)) return absl::SimpleAtoi(value, &flags.pairs);
  if (Take(argument, "threads", &value)) return absl::SimpleAtoi(value, &flags.threads);
  if (Take(argument, "seconds", &value)) return absl::SimpleAtod(value, &flags.seconds);
  if (Take(argument, "ways", &value)) {
    flags.ways = absl::StrSplit(value, ',');
    return true;
  }
  if (!Take(argument, "part", &value)) return false;
  const std::vector<std::string> numbers = absl::StrSplit(value, '/');
  return numbers.size() == 2 && absl::SimpleAtoi(numbers[0], &flags.part) &&
         absl::SimpleAtoi(numbers[1], &flags.parts) && flags.parts > 0 && flags.part >= 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  bool is_right = argc >= 3;
  if (is_right) flags.data = argv[1], flags.out = argv[2];
  for (int i = 3; i < argc; ++i) is_right = is_right && ParseFlag(argv[i], flags);
  if (!is_right) {
    std::fprintf(stderr,
                 "verdict_fields DATA OUT.jsonl [--device=cpu|cuda:0] [--pairs=500] [--seconds=N] [--threads=N] "
                 "[--part=K/N] [--ways=WAY,...] [--blocks=OUT.bin]\n");
    return 2;
  }
  const auto devices = AllDevices();
  Device* device = nullptr;
  for (const auto& each : devices) {
    if (each->name() == flags.device) device = each.get();
  }
  if (device == nullptr) {
    std::fprintf(stderr, "no device %s\n", flags.device.c_str());
    return 1;
  }
  const std::vector<Way> ways = WaysOf(flags);
  Runner(flags, *device, CasesOf(flags, ways)).Run();
  return 0;
}

}  // namespace
}  // namespace intrawarp::server

int main(int argc, char** argv) { return intrawarp::server::Main(argc, argv); }
