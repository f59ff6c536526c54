// SPDX-License-Identifier: Apache-2.0
// A breathing phantom through Navigate: each frame's error and latency with the stream's warm start, beside the same
// frames registered from scratch (a stream of its own for each). A server in this process, over loopback.
//
//   navigate_bench [--device=auto|cpu|cuda:N] [--size=128] [--frames=20] [--breaths=5] [--amplitude=15]
//                  [--warm_levels=N]
//                  [options of `intrawarp navigate`: --method, --levels, --iterations, --field_encoding, ...; none that
//                  names an image, a transform or points]
//
// The resident (moving) volume is the anatomy of the phantom at rest, SIZE^3 voxels over 320 mm. Frame n of a breath is
// the same anatomy with the abdominal wall moved by amplitude * (1 - cos(2 pi n / frames)) / 2 mm, noise of its own
// (breathing out shows the frames of breathing in again, made once). The truth is the phantom's map; errors are
// distances from it in mm at 4000 points inside the body, by MapPoints, which no latency counts. Frames follow each
// other without overlap. --warm_levels: pyramid levels of the warm-started stream's last stage, where they are to
// differ from those of frames from scratch (the frame before is a better start than a coarse level; the default of
// log-demons is 2). Latencies are of all breaths, after one frame that is not counted; p99 by nearest rank, phases as
// in LatencyBreakdown, `client` from the first byte sent to the answer (the field, where --field_encoding asks for it,
// included). Errors per frame are those of the last breath.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/field_flags.h"
#include "client/cli/registration_flags.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "server/server.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/breath_sequence.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string device;
  int size, frames, breaths, warm_levels;
  double amplitude;
  v1::RegistrationOptions registration;
  std::string method;
  bool wants_field = false;
  v1::FieldRequest field;
};

CommandSyntax Syntax() {
  std::vector<FlagSpec> specs = {
      {.name = "device", .placeholder = "D", .help = "auto, cpu or cuda:N; auto: CUDA where there is one"},
      {.name = "size", .type = FlagType::kInteger, .placeholder = "N", .help = "128", .minimum = 32, .maximum = 512},
      {.name = "frames", .type = FlagType::kInteger, .placeholder = "N", .help = "20", .minimum = 2, .maximum = 200},
      {.name = "breaths", .type = FlagType::kInteger, .placeholder = "N", .help = "5", .minimum = 1, .maximum = 100},
      {.name = "warm_levels", .type = FlagType::kInteger, .placeholder = "N", .help = "as --levels", .minimum = 1},
      {.name = "amplitude", .type = FlagType::kNumber, .placeholder = "MM", .help = "15", .minimum = 0, .maximum = 60},
  };
  for (FlagSpec& spec : cli::RegistrationFlagSpecs()) {
    if (!cli::NamesAnInput(spec.name)) specs.push_back(std::move(spec));
  }
  for (FlagSpec& spec : cli::FieldFlagSpecs()) specs.push_back(std::move(spec));
  return {specs};
}

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  INTRAWARP_ASSIGN_OR_RETURN(const cli::RegistrationFlags registration, cli::ParseRegistrationFlags(flags));
  BenchOptions options;
  options.device = flags.String("device", "auto");
  options.size = static_cast<int>(flags.Integer("size", 128));
  options.frames = static_cast<int>(flags.Integer("frames", 20));
  options.breaths = static_cast<int>(flags.Integer("breaths", 5));
  options.warm_levels = static_cast<int>(flags.Integer("warm_levels", 0));
  options.amplitude = flags.Number("amplitude", 15);
  options.registration = registration.options;
  options.method = registration.method;
  if (options.warm_levels > 0 && options.registration.stages().empty()) {
    return absl::InvalidArgumentError("--warm_levels: only a named --method uses it");
  }
  if (options.warm_levels > 0 && cli::EndsIn(v1::Stage::kSearch, options.registration)) {
    return absl::InvalidArgumentError("--warm_levels: search has no levels");
  }
  options.wants_field = flags.Has("field_encoding");
  INTRAWARP_ASSIGN_OR_RETURN(options.field, cli::ParseFieldFlags(flags, options.wants_field, "--field_encoding"));
  INTRAWARP_RETURN_IF_ERROR(cli::CheckFieldEncoding(flags, options.registration));
  return options;
}

// Nothing for search, which has none.
void SetLevels(int levels, v1::Stage& stage) {
  switch (stage.method_case()) {
    case v1::Stage::kRigid:
      return stage.mutable_rigid()->set_levels(levels);
    case v1::Stage::kAffine:
      return stage.mutable_affine()->set_levels(levels);
    case v1::Stage::kFfd:
      return stage.mutable_ffd()->set_levels(levels);
    case v1::Stage::kLogDemons:
      return stage.mutable_log_demons()->set_levels(levels);
    case v1::Stage::kSearch:
    case v1::Stage::METHOD_NOT_SET:
      return;
  }
}

struct Error {
  double mean = 0, max = 0;
};

Error Distances(const std::vector<Vec3d>& a, const std::vector<Vec3d>& b) {
  Error error;
  for (size_t i = 0; i < a.size(); ++i) {
    const Vec3d d = a[i] - b[i];
    const double length = std::sqrt(Dot(d, d));
    error.mean += length / static_cast<double>(a.size());
    error.max = std::max(error.max, length);
  }
  return error;
}

// One frame's answer.
struct Measured {
  Error error;
  double client_ms = 0;
  v1::LatencyBreakdown latency;
  v1::Verdict verdict = v1::VERDICT_UNSPECIFIED;
  double smallest_jacobian = NAN;
  int iterations = 0;
};

class Navigator {
 public:
  Navigator(const BenchOptions& options, const BreathSequence& sequence) : options_(options), sequence_(sequence) {}

  absl::Status Start() {
    server::ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http = "127.0.0.1:0";
    options.device = options_.device;
    INTRAWARP_ASSIGN_OR_RETURN(server_, server::Server::Start(options));
    INTRAWARP_ASSIGN_OR_RETURN(client_, client::Client::Connect(server_->grpc_address()));
    client::VolumeUpload upload;
    upload.id = "rest";
    upload.geometry = sequence_.geometry();
    upload.pixel_type = PixelType::kInt16;
    upload.bytes = BytesOf(sequence_.resident());
    return client_->UploadVolume(upload).status();
  }

  const std::string& device() const { return server_->device_name(); }

  // All breaths, in one stream or in one for each frame.
  absl::StatusOr<std::vector<Measured>> Run(bool warm) {
    std::unique_ptr<client::NavigateStream> stream = Open(warm);
    INTRAWARP_RETURN_IF_ERROR(Answer(*stream, sequence_.phases()[0]).status());
    std::vector<Measured> all;
    for (int breath = 0; breath < options_.breaths; ++breath) {
      for (const BreathPhase& phase : sequence_.phases()) {
        if (!warm) stream = Open(warm);
        INTRAWARP_ASSIGN_OR_RETURN(Measured measured, Answer(*stream, phase));
        all.push_back(std::move(measured));
      }
    }
    return all;
  }

 private:
  std::unique_ptr<client::NavigateStream> Open(bool warm) {
    v1::NavigateConfig config;
    config.set_moving("volumes/rest");
    *config.mutable_options() = options_.registration;
    if (warm && options_.warm_levels > 0) {
      SetLevels(options_.warm_levels, *config.mutable_options()->mutable_stages()->rbegin());
    }
    if (options_.wants_field) *config.mutable_field() = options_.field;
    return client_->Navigate(config);
  }

  absl::StatusOr<Measured> Answer(client::NavigateStream& stream, const BreathPhase& phase) {
    client::Frame frame;
    frame.number = ++number_;
    frame.geometry = sequence_.geometry();
    frame.pixel_type = PixelType::kInt16;
    frame.bytes = BytesOf(phase.voxels);
    const Clock::time_point begin = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(stream.Send(frame));
    INTRAWARP_ASSIGN_OR_RETURN(const std::optional<client::FrameAnswer> answer,
                               stream.Receive(client::SinkInto(&field_)));
    Measured measured;
    measured.client_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    if (!answer.has_value()) return absl::UnavailableError("the stream ended");
    INTRAWARP_RETURN_IF_ERROR(client::FromRpcStatus(answer->result.status()));
    const v1::Report& report = answer->result.report();
    measured.latency = report.latency();
    measured.verdict = report.verdict();
    measured.smallest_jacobian = report.jacobian().min();
    for (const v1::StageReport& stage : report.stages())
      for (const v1::LevelReport& level : stage.levels()) measured.iterations += level.iterations();
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Vec3d> mapped,
                               client_->MapPoints(answer->result.transform(), sequence_.points(), /*inverse=*/false));
    measured.error = Distances(mapped, phase.truth);
    return measured;
  }

  const BenchOptions& options_;
  const BreathSequence& sequence_;
  std::unique_ptr<server::Server> server_;
  std::unique_ptr<client::Client> client_;
  client::GridData field_;
  int64_t number_ = 0;
};

void PrintFrames(const BreathSequence& sequence, const std::vector<Measured>& warm, const std::vector<Measured>& cold) {
  std::printf(
      "\n| frame | amplitude, mm | before, mean / max mm | warm, mean / max mm | iterations | total ms | smallest det "
      "J "
      "| cold, mean / max mm | iterations | total ms | smallest det J "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  const size_t frames = sequence.phases().size(), first = warm.size() - frames;
  for (size_t n = 0; n < frames; ++n) {
    const BreathPhase& phase = sequence.phases()[n];
    const Error before = Distances(sequence.points(), phase.truth);
    std::printf("| %zu | %.1f | %.2f / %.2f ", n, phase.amplitude, before.mean, before.max);
    for (const Measured& m : {warm[first + n], cold[first + n]}) {
      std::printf("| %.2f / %.2f%s | %d | %.1f | %.2f ", m.error.mean, m.error.max,
                  m.verdict == v1::VERDICT_OK ? "" : " (review)", m.iterations, m.latency.total_ms(),
                  m.smallest_jacobian);
    }
    std::printf("|\n");
  }
}

// By nearest rank.
template <typename Value>
double Percentile(const std::vector<Measured>& all, double part, const Value& value) {
  std::vector<double> values;
  for (const Measured& m : all) values.push_back(value(m));
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(part * static_cast<double>(values.size()));
  return values[std::max<size_t>(1, static_cast<size_t>(rank)) - 1];
}

void PrintLatencies(const std::vector<Measured>& warm, const std::vector<Measured>& cold) {
  struct Row {
    const char* name;
    double (*value)(const Measured&);
  };
  const Row rows[] = {
      {"receive", [](const Measured& m) { return m.latency.receive_ms(); }},
      {"admit", [](const Measured& m) { return m.latency.admit_ms(); }},
      {"queue", [](const Measured& m) { return m.latency.queue_ms(); }},
      {"upload", [](const Measured& m) { return m.latency.upload_ms(); }},
      {"prepare", [](const Measured& m) { return m.latency.prepare_ms(); }},
      {"optimise", [](const Measured& m) { return m.latency.optimise_ms(); }},
      {"assess", [](const Measured& m) { return m.latency.assess_ms(); }},
      {"encode", [](const Measured& m) { return m.latency.encode_ms(); }},
      {"download", [](const Measured& m) { return m.latency.download_ms(); }},
      {"send", [](const Measured& m) { return m.latency.send_ms(); }},
      {"total", [](const Measured& m) { return m.latency.total_ms(); }},
      {"client", [](const Measured& m) { return m.client_ms; }},
  };
  std::printf("\n| ms, of %zu frames | warm p50 | warm p99 | cold p50 | cold p99 |\n|---|---|---|---|---|\n",
              warm.size());
  for (const Row& row : rows) {
    std::printf("| %s | %.2f | %.2f | %.2f | %.2f |\n", row.name, Percentile(warm, 0.5, row.value),
                Percentile(warm, 0.99, row.value), Percentile(cold, 0.5, row.value), Percentile(cold, 0.99, row.value));
  }
  const auto mean_error = [](const Measured& m) { return m.error.mean; };
  const auto max_error = [](const Measured& m) { return m.error.max; };
  std::printf("| mean error, mm | %.3f | %.3f | %.3f | %.3f |\n", Percentile(warm, 0.5, mean_error),
              Percentile(warm, 0.99, mean_error), Percentile(cold, 0.5, mean_error),
              Percentile(cold, 0.99, mean_error));
  std::printf("| largest error, mm | %.3f | %.3f | %.3f | %.3f |\n", Percentile(warm, 0.5, max_error),
              Percentile(warm, 0.99, max_error), Percentile(cold, 0.5, max_error), Percentile(cold, 0.99, max_error));
}

absl::Status Bench(const BenchOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const BreathSequence sequence,
                             BreathSequence::Create({options.size, options.frames, options.amplitude}));
  Navigator navigator(options, sequence);
  INTRAWARP_RETURN_IF_ERROR(navigator.Start());
  std::printf("%s, %d^3 voxels, %s, %d frames a breath of %.0f mm, %d breaths%s%s\n", navigator.device().c_str(),
              options.size, options.method.c_str(), options.frames, options.amplitude, options.breaths,
              options.warm_levels > 0 ? absl::StrCat(", warm with ", options.warm_levels, " levels").c_str() : "",
              options.wants_field ? ", with a field for each frame" : "");
  std::fflush(stdout);
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Measured> warm, navigator.Run(/*warm=*/true));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Measured> cold, navigator.Run(/*warm=*/false));
  PrintFrames(sequence, warm, cold);
  PrintLatencies(warm, cold);
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  return intrawarp::MainWithOptions(intrawarp::ParseOptions({argv + 1, argv + argc}),
                                    intrawarp::FlagHelp(intrawarp::Syntax()), intrawarp::Bench);
}
