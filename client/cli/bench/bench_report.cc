// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_report.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace intrawarp::cli::bench {
namespace {

Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json ValueOrNull(const std::optional<double>& value) { return value ? Finite(*value) : Json(nullptr); }

const char* KindName(LoadKind kind) {
  switch (kind) {
    case LoadKind::kNavigate:
      return "navigate";
    case LoadKind::kRegister:
      return "register";
    default:
      return "none";
  }
}

Json PercentilesToJson(const Percentiles& percentiles) {
  return {{"count", percentiles.count},          {"mean", ValueOrNull(percentiles.mean)},
          {"p50", ValueOrNull(percentiles.p50)}, {"p90", ValueOrNull(percentiles.p90)},
          {"p99", ValueOrNull(percentiles.p99)}, {"p99_9", ValueOrNull(percentiles.p999)},
          {"max", ValueOrNull(percentiles.max)}};
}

Json TallyToJson(const Tally& tally) {
  Json json = Json::object();
  for (const auto& [name, count] : tally) json[name] = count;
  return json;
}

Json FatesToJson(const Summary& summary) {
  Json json = {{"due", summary.due}};
  for (int i = 0; i < kFates; ++i) json[FateName(static_cast<Fate>(i))] = summary.fates[i];
  return json;
}

Json TransfersToJson(const std::optional<client::Transfers>& transfers) {
  if (!transfers) return nullptr;
  return {{"frames_shared", transfers->frames_shared},
          {"frames_in_chunks", transfers->frames_in_chunks},
          {"fields_shared", transfers->fields_shared},
          {"fields_in_chunks", transfers->fields_in_chunks}};
}

Json SummaryToJson(const Summary& summary, double limit_ms) {
  Json phases = Json::object();
  for (int i = 0; i < kPhases; ++i) phases[PhaseNames()[i]] = PercentilesToJson(summary.phases[i]);
  return {{"clients", summary.clients},
          {"not_opened", TallyToJson(summary.not_opened)},
          {"calls", FatesToJson(summary)},
          {"limit_ms", limit_ms > 0 ? Json(limit_ms) : Json(nullptr)},
          {"in_time", summary.in_time()},
          {"late", summary.late},
          {"late_by_server", summary.late_by_server},
          {"refused", TallyToJson(summary.refused)},
          {"failed", TallyToJson(summary.failed)},
          {"verdicts", {{"ok", summary.verdicts_ok}, {"review", summary.verdicts_review}}},
          {"causes", TallyToJson(summary.causes)},
          {"latency_ms", PercentilesToJson(summary.latency)},
          {"from_send_ms", PercentilesToJson(summary.from_send)},
          {"server_ms", phases},
          {"per_second", Finite(summary.per_second)},
          {"bytes_sent", summary.bytes_sent},
          {"bytes_received", summary.bytes_received},
          {"transfers", TransfersToJson(summary.transfers)}};
}

// A column for each number, a place in it for each call.
Json CallsToJson(const std::vector<ClientLog>& clients) {
  Json client = Json::array(), due = Json::array(), sent = Json::array(), answered = Json::array();
  Json server = Json::array(), fate = Json::array();
  for (size_t i = 0; i < clients.size(); ++i) {
    for (const CallRecord& call : clients[i].calls) {
      client.push_back(i);
      due.push_back(Finite(call.due));
      sent.push_back(Finite(call.sent));
      answered.push_back(Finite(call.answered));
      server.push_back(call.fate == Fate::kOk ? Finite(call.phases.back()) : Json(nullptr));
      fate.push_back(FateName(call.fate));
    }
  }
  return {{"client", client},       {"due_s", due},        {"sent_s", sent},
          {"answered_s", answered}, {"server_ms", server}, {"fate", fate}};
}

Json SessionsToJson(const std::vector<ClientLog>& clients) {
  Json sessions = Json::array();
  for (const ClientLog& client : clients)
    sessions.push_back(client.session ? SessionToJson(*client.session) : Json(nullptr));
  return sessions;
}

Json FloodToJson(const FloodResult& flood) {
  return {{"name", flood.name},
          {"clients", flood.clients},
          {"done", flood.done},
          {"refused", TallyToJson(flood.refused)},
          {"failed", TallyToJson(flood.failed)},
          {"per_second", Finite(flood.per_second)},
          {"operation_ms", PercentilesToJson(flood.milliseconds)},
          {"bytes_sent", flood.bytes_sent}};
}

Json DevicesToJson(const v1::ServerInfo& server) {
  Json devices = Json::array();
  for (const v1::Device& device : server.devices())
    devices.push_back({{"name", device.name()}, {"model", device.model()}});
  return devices;
}

std::string DeviceText(const v1::ServerInfo& server) {
  std::string text;
  for (const v1::Device& device : server.devices()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", device.name(), " (", device.model(), ")");
  }
  return text;
}

std::string Cell(const std::optional<double>& value) {
  return value ? absl::StrFormat("%9.1f", *value) : absl::StrFormat("%9s", "-");
}

std::string PercentilesLine(const std::string& name, const Percentiles& p) {
  return absl::StrFormat("%-24s%s%s%s%s%s%s\n", name, Cell(p.mean), Cell(p.p50), Cell(p.p90), Cell(p.p99), Cell(p.p999),
                         Cell(p.max));
}

std::string PercentilesTable(const Summary& summary) {
  std::string text = absl::StrFormat("%-24s%9s%9s%9s%9s%9s%9s\n", "ms", "mean", "p50", "p90", "p99", "p99.9", "max");
  absl::StrAppend(&text, PercentilesLine("client, from due", summary.latency),
                  PercentilesLine("client, from sent", summary.from_send),
                  PercentilesLine("server, total", summary.phases.back()));
  for (int i = 0; i + 1 < kPhases; ++i) {
    absl::StrAppend(&text, PercentilesLine(absl::StrCat("  ", PhaseNames()[i]), summary.phases[i]));
  }
  return text;
}

std::string FatesText(const Summary& summary, const BenchOptions& options) {
  std::string text = absl::StrCat("calls: ", summary.due, " due");
  for (int i = 0; i < kFates; ++i) {
    absl::StrAppend(&text, ", ", summary.fates[i], " ",
                    i == static_cast<int>(Fate::kNotSent) ? "not sent" : FateName(static_cast<Fate>(i)));
  }
  absl::StrAppend(&text, "\n");
  if (options.load.limit_ms > 0) {
    absl::StrAppendFormat(&text, "late: %d of those ok after %g ms; %d in time\n", summary.late, options.load.limit_ms,
                          summary.in_time());
  }
  if (summary.late_by_server > 0) absl::StrAppend(&text, "late by the server: ", summary.late_by_server, "\n");
  if (!summary.refused.empty()) absl::StrAppend(&text, "refused: ", TallyText(summary.refused), "\n");
  if (!summary.failed.empty()) absl::StrAppend(&text, "failed: ", TallyText(summary.failed), "\n");
  if (!summary.not_opened.empty())
    absl::StrAppend(&text, "clients that never began: ", TallyText(summary.not_opened), "\n");
  absl::StrAppend(&text, "verdicts: ", summary.verdicts_ok, " ok, ", summary.verdicts_review, " review");
  if (!summary.causes.empty()) absl::StrAppend(&text, " (", TallyText(summary.causes), ")");
  absl::StrAppend(&text, "\n");
  return text;
}

// The sums of the counts that the sessions had at their end.
std::string SessionsText(const std::vector<ClientLog>& clients) {
  v1::SessionStatistics sum;
  int ended = 0;
  std::optional<double> load;
  for (const ClientLog& client : clients) {
    if (!client.session) continue;
    ++ended;
    const v1::SessionStatistics& s = client.session->statistics();
    sum.set_frames_ok(sum.frames_ok() + s.frames_ok());
    sum.set_frames_late(sum.frames_late() + s.frames_late());
    sum.set_frames_missed(sum.frames_missed() + s.frames_missed());
    sum.set_frames_superseded(sum.frames_superseded() + s.frames_superseded());
    sum.set_frames_refused(sum.frames_refused() + s.frames_refused());
    sum.set_frames_failed(sum.frames_failed() + s.frames_failed());
    sum.set_frames_dropped(sum.frames_dropped() + s.frames_dropped());
    if (client.session->has_load()) load = std::max(load.value_or(0), client.session->load());
  }
  if (ended == 0) return "";
  std::string text = absl::StrFormat(
      "sessions, by the server: %d ended; frames %d ok, %d late, %d missed, %d superseded, %d refused, %d failed, %d "
      "dropped",
      ended, sum.frames_ok(), sum.frames_late(), sum.frames_missed(), sum.frames_superseded(), sum.frames_refused(),
      sum.frames_failed(), sum.frames_dropped());
  if (load) absl::StrAppendFormat(&text, "; largest load %.2f", *load);
  return text + "\n";
}

std::string FloodText(const FloodResult& flood) {
  const auto cell = [](const std::optional<double>& value) {
    return value ? absl::StrFormat("%.1f", *value) : std::string("-");
  };
  std::string text =
      absl::StrFormat("flood %s: %d clients, %d done, %.2f a second, p50 %s ms, p99 %s ms", flood.name, flood.clients,
                      flood.done, flood.per_second, cell(flood.milliseconds.p50), cell(flood.milliseconds.p99));
  if (flood.bytes_sent > 0)
    absl::StrAppendFormat(&text, ", %.1f MB sent", 1e-6 * static_cast<double>(flood.bytes_sent));
  if (!flood.refused.empty()) absl::StrAppend(&text, "; refused ", TallyText(flood.refused));
  if (!flood.failed.empty()) absl::StrAppend(&text, "; failed ", TallyText(flood.failed));
  return text + "\n";
}

std::string TaskText(const BenchOptions& options) {
  const LoadOptions& load = options.load;
  const Task& task = options.tasks.front();
  std::string rate = load.rate_hz > 0 ? absl::StrFormat("open loop at %g Hz each", load.rate_hz) : "closed loop";
  if (load.shared_memory) rate += ", through shared memory";
  if (options.find_capacity) {
    return absl::StrFormat("sessions of frames: field %s, %s, %g s for each number of them\n", load.encoding, rate,
                           options.seconds);
  }
  return absl::StrFormat("%s: %d clients, %d^3 voxels, %s, field %s, %s, %g s\n", KindName(load.kind), load.clients,
                         task.size, task.method, load.encoding, rate, options.seconds);
}

}  // namespace

Json HeaderToJson(const v1::ServerInfo& server, const BenchOptions& options) {
  const LoadOptions& load = options.load;
  const FloodOptions& floods = options.floods;
  Json tasks = Json::array();
  for (const Task& task : options.tasks) tasks.push_back({{"size", task.size}, {"method", task.method}});
  return {
      {"schema", kBenchSchema},
      {"server", {{"version", server.version()}, {"revision", server.revision()}, {"devices", DevicesToJson(server)}}},
      {"options",
       {{"load", KindName(load.kind)},
        {"clients", load.clients},
        {"tasks", tasks},
        {"field_encoding", load.encoding},
        {"rate_hz", load.rate_hz > 0 ? Json(load.rate_hz) : Json(nullptr)},
        {"limit_ms", load.limit_ms > 0 ? Json(load.limit_ms) : Json(nullptr)},
        {"deadline_ms", load.deadline_ms > 0 ? Json(load.deadline_ms) : Json(nullptr)},
        {"latest", load.latest_wins},
        {"shared_memory", load.shared_memory},
        {"seconds", options.seconds},
        {"warmup", options.warmup},
        {"grace", options.grace},
        {"seed", options.seed},
        {"fem_products", floods.fem_products},
        {"random_products", floods.random_products},
        {"matrix_rows", floods.matrix_rows},
        {"uploads", floods.uploads},
        {"upload_bytes", floods.upload_bytes},
        {"registrations", floods.registrations},
        {"registration_method", floods.registration_method},
        {"max_sessions", options.find_capacity ? Json(options.capacity.max_sessions) : Json(nullptr)},
        {"late_percent", options.find_capacity ? Json(options.capacity.late_percent) : Json(nullptr)}}}};
}

Json LoadToJson(const LoadResult& result, double limit_ms, bool calls) {
  Json load = nullptr;
  if (!result.clients.empty()) {
    load = SummaryToJson(result.summary, limit_ms);
    load["sessions"] = SessionsToJson(result.clients);
    if (calls) load["each"] = CallsToJson(result.clients);
  }
  Json floods = Json::array();
  for (const FloodResult& flood : result.floods) floods.push_back(FloodToJson(flood));
  return {{"interrupted", result.interrupted}, {"load", load}, {"floods", floods}};
}

Json CapacityToJson(const Capacity& capacity) {
  Json steps = Json::array();
  for (const CapacityStep& step : capacity.steps) {
    Json json = {{"sessions", step.sessions}, {"passed", step.passed}};
    json.update(SummaryToJson(step.summary, 0));
    json.erase("limit_ms");
    steps.push_back(json);
  }
  return {{"size", capacity.task.size},
          {"method", capacity.task.method},
          {"sessions", capacity.sessions()},
          {"open", capacity.is_open()},
          {"steps", steps}};
}

std::string HeaderText(const v1::ServerInfo& server, const BenchOptions& options) {
  std::string text =
      absl::StrCat("server ", server.version(), " (", server.revision(), ") on ", DeviceText(server), "\n");
  if (options.load.kind != LoadKind::kNone) absl::StrAppend(&text, TaskText(options));
  return text;
}

std::string LoadText(const LoadResult& result, const BenchOptions& options) {
  std::string text;
  if (!result.clients.empty()) {
    const Summary& summary = result.summary;
    absl::StrAppend(&text, PercentilesTable(summary), FatesText(summary, options), SessionsText(result.clients));
    absl::StrAppendFormat(&text, "%.2f a second; payload %.1f MB sent, %.1f MB received\n", summary.per_second,
                          1e-6 * static_cast<double>(summary.bytes_sent),
                          1e-6 * static_cast<double>(summary.bytes_received));
    if (summary.transfers) {
      absl::StrAppendFormat(&text, "shared memory: %d frames and %d fields; in chunks: %d frames and %d fields\n",
                            summary.transfers->frames_shared, summary.transfers->fields_shared,
                            summary.transfers->frames_in_chunks, summary.transfers->fields_in_chunks);
    }
  }
  for (const FloodResult& flood : result.floods) absl::StrAppend(&text, FloodText(flood));
  return text;
}

}  // namespace intrawarp::cli::bench
