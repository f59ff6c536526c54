// SPDX-License-Identifier: Apache-2.0
// intrawarp bench: a load on a running server.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/bench_report.h"
#include "client/cli/bench/capacity.h"
#include "client/cli/bench/holdings.h"
#include "client/cli/bench/latency_plot.h"
#include "client/cli/bench/load_run.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files.h"
#include "client/cli/report_json.h"
#include "client/cpp/uuid.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::cli::bench {
namespace {

// The first error of what a load test did: what is refused or late is none.
absl::Status FirstFailure(const LoadResult& result, double seconds) {
  INTRAWARP_RETURN_IF_ERROR(UnexpectedFailure(result.clients, seconds, result.interrupted));
  for (const FloodResult& flood : result.floods) {
    INTRAWARP_RETURN_IF_ERROR(Annotate(
        flood.first_failure, absl::StrCat("flood ", flood.name, ": ", Total(flood.failed), " failed, the first")));
  }
  return absl::OkStatus();
}

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// What one run of the command writes, and how it went.
struct Output {
  Json json;
  absl::Status failure;
};

absl::Status RunOnce(const BenchOptions& options, LoadRun& run, const ParsedFlags& flags, Output* output) {
  const Task& task = options.tasks.front();
  INTRAWARP_ASSIGN_OR_RETURN(const LoadResult result, run.Run(task, options.load.clients));
  Print(LoadText(result, options));
  output->failure = FirstFailure(result, options.seconds);
  output->json.update(LoadToJson(result, options.load.limit_ms, /*calls=*/true));
  if (!flags.Has("plot")) return absl::OkStatus();
  const std::string title =
      absl::StrFormat("intrawarp bench: %d clients, %d^3, %s", options.load.clients, task.size, task.method);
  const std::string plot = LatencyPlot(title, result.clients, options.seconds, options.load.limit_ms);
  return Annotate(io::WriteSmallFile(flags.String("plot"), plot), flags.String("plot"));
}

absl::StatusOr<Summary> RunStep(const BenchOptions& options, const Task& task, int sessions, LoadRun& run,
                                CommandContext& context, Output* output) {
  ProgressLine progress;
  progress.Show(absl::StrFormat("%d^3, %s: %d sessions", task.size, task.method, sessions));
  INTRAWARP_ASSIGN_OR_RETURN(const LoadResult result, run.Run(task, sessions));
  INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
  if (output->failure.ok()) output->failure = FirstFailure(result, options.seconds);
  return result.summary;
}

absl::Status RunCapacity(const BenchOptions& options, LoadRun& run, CommandContext& context, Output* output) {
  Print(absl::StrCat("\n", CapacityHeader(options.load)));
  output->json["capacity"] = Json::array();
  for (const Task& task : options.tasks) {
    INTRAWARP_ASSIGN_OR_RETURN(const Capacity capacity, FindCapacity(task, options.capacity, [&](int sessions) {
                                 return RunStep(options, task, sessions, run, context, output);
                               }));
    Print(CapacityRow(capacity, options.load));
    output->json["capacity"].push_back(CapacityToJson(capacity));
  }
  return absl::OkStatus();
}

absl::Status Bench(const ParsedFlags& flags, CommandContext& context) {
  const absl::StatusOr<BenchOptions> options = ParseBenchFlags(flags);
  if (!options.ok()) return UsageError(options.status());
  INTRAWARP_RETURN_IF_ERROR(UsageError(CheckTarget(flags, context.target())));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "json", {".json"}));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "plot", {".svg"}));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo server, context.client().GetServerInfo(context.call()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string uuid, client::RandomUuid());
  Print(HeaderText(server, *options));

  Holdings holdings(&context.client(), uuid.substr(0, 8));
  LoadRun run(*options, context, &holdings);
  Output output = {.json = HeaderToJson(server, *options), .failure = absl::OkStatus()};
  const absl::Status status =
      options->find_capacity ? RunCapacity(*options, run, context, &output) : RunOnce(*options, run, flags, &output);
  const absl::Status deleted = holdings.DeleteAll();
  output.json["not_deleted"] = holdings.count();
  INTRAWARP_RETURN_IF_ERROR(status);
  if (flags.Has("json")) {
    const std::string out = flags.String("json");
    INTRAWARP_RETURN_IF_ERROR(Annotate(io::WriteSmallFile(out, JsonText(output.json)), out));
  }
  INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
  INTRAWARP_RETURN_IF_ERROR(output.failure);
  return Annotate(deleted, absl::StrCat(holdings.count(), " objects could not be deleted"));
}

}  // namespace
}  // namespace intrawarp::cli::bench

namespace intrawarp::cli {

std::vector<Command> BenchCommands() {
  return {{.name = "bench",
           .summary = "load a running server, and say how late its answers are",
           .syntax = {.flags = bench::BenchFlagSpecs()},
           .run = bench::Bench,
           .notes =
               "Sessions stream frames of breathing phantoms, each of its own seed. With --rate latencies count from\n"
               "when a frame was due, so that one that could not be sent in time counts in full. Refused, missed,\n"
               "superseded and late calls are counted; a call that fails otherwise makes the exit status 1. All\n"
               "that was made on the server is deleted at the end, after Ctrl-C too. It must not run beside\n"
               "patients' sessions. docs/operate/bench.md explains the figures, and the keys of --json.\n"}};
}

}  // namespace intrawarp::cli
