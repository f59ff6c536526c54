// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_state.h"

#include "absl/strings/str_cat.h"
#include "engine/schedule/scheduler.h"
#include "server/base/version.h"
#include "server/device/device_set.h"
#include "server/ledger/ledger.h"
#include "server/monitor/device_probe.h"
#include "server/monitor/watchdog.h"
#include "server/page/viewer_hub.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"

namespace intrawarp::server {
namespace {

constexpr int kMostSessions = 64;
constexpr const char* kFates[kFrameFates] = {"ok", "late", "missed", "superseded", "refused", "failed", "dropped"};

const char* StateName(WatchdogState state) {
  switch (state) {
    case WatchdogState::kWell:
      return "well";
    case WatchdogState::kHung:
      return "hung";
    case WatchdogState::kLost:
      break;
  }
  return "lost";
}

const char* StateName(NavigateSession::State state) {
  switch (state) {
    case NavigateSession::State::kOpening:
      return "OPENING";
    case NavigateSession::State::kActive:
      return "ACTIVE";
    case NavigateSession::State::kDetached:
      return "DETACHED";
    case NavigateSession::State::kClosed:
      break;
  }
  return "CLOSED";
}

Json FrameJson(const AnsweredFrame& frame) {
  Json phases = Json::object();
  for (int i = 0; i < kPhases; ++i) {
    phases[kPhaseNames[i]] = MillisecondsOf(frame.latency.phase(static_cast<Phase>(i)));
  }
  Json json = {{"number", frame.number},
               {"answered", SecondsOf(frame.answered)},
               {"total_ms", MillisecondsOf(frame.latency.total())},
               {"limit_ms", nullptr},
               {"fate", kFates[static_cast<int>(frame.fate)]},
               {"verdict", frame.needs_review || frame.fate == FrameFate::kLate ? "review" : "ok"},
               {"phases_ms", std::move(phases)}};
  if (frame.limit) json["limit_ms"] = MillisecondsOf(*frame.limit);
  return json;
}

Json CountsJson(const v1::SessionStatistics& from) {
  return {{"ok", from.frames_ok()},           {"late", from.frames_late()},
          {"missed", from.frames_missed()},   {"superseded", from.frames_superseded()},
          {"refused", from.frames_refused()}, {"failed", from.frames_failed()},
          {"dropped", from.frames_dropped()}};
}

Json TipJson(const std::optional<ViewerHub::Tip>& tip, std::chrono::steady_clock::time_point now) {
  if (!tip) return nullptr;
  return {{"point", {tip->point.x, tip->point.y, tip->point.z}}, {"age_s", SecondsOf(now) - SecondsOf(tip->time)}};
}

std::string MethodOf(const SessionSetup& setup) {
  if (setup.plan.automatic) return "auto";
  std::string method;
  for (const v1::Stage& stage : setup.resolved.options().stages()) {
    const auto* const field = v1::Stage::descriptor()->FindFieldByNumber(stage.method_case());
    absl::StrAppend(&method, method.empty() ? "" : ", ", field == nullptr ? "" : field->name());
  }
  return method;
}

}  // namespace

Json PageState::DevicesJson(const Identity& caller) const {
  Json devices = Json::array();
  for (int i = 0; i < context_.devices.size(); ++i) {
    const DeviceContext& from = context_.devices[i];
    const DeviceMemory memory = from.probe.memory();
    Json device = {{"name", from.device.name()},
                   {"model", from.device.model()},
                   {"state", StateName(from.watchdog.state())},
                   {"memory_total", memory.total_bytes},
                   {"waiting", from.jobs.pending()}};
    if (caller.is_admin()) device["memory_free"] = memory.free_bytes;
    devices.push_back(std::move(device));
  }
  return devices;
}

// The own use, and an admin's is all.
Json PageState::MemoryJson(const Identity& caller) const {
  const Amounts own = context_.ledger.owner_use(caller.name);
  Json memory = Json::array();
  for (const auto& [resource, name] :
       {std::pair{Resource::kResident, "resident"}, std::pair{Resource::kWorkspace, "workspace"},
        std::pair{Resource::kPinned, "pinned"}}) {
    const ResourceUse use = context_.ledger.use(resource);
    memory.push_back(
        {{"name", name}, {"in_use", caller.is_admin() ? use.in_use : own[resource]}, {"capacity", use.capacity}});
  }
  return memory;
}

Json PageState::SessionJson(const std::shared_ptr<NavigateSession>& session) {
  const SessionSetup& setup = session->setup();
  const v1::SessionStatistics statistics = session->Describe().statistics();
  int64_t& told = told_[session];
  Json frames = Json::array();
  for (const AnsweredFrame& frame : session->AnsweredSince(told)) {
    frames.push_back(FrameJson(frame));
    told = frame.sequence;
  }
  Json json = {{"id", session->id()},
               {"owner", session->owner()},
               {"state", StateName(session->state())},
               {"device", session->context().device.name()},
               {"method", MethodOf(setup)},
               {"resident", VolumeName(setup.resident->id)},
               {"resident_is_fixed", setup.resident_is_fixed},
               {"rate_hz", nullptr},
               {"counts", CountsJson(statistics)},
               {"p50_ms", statistics.has_latency_p50_ms() ? Json(statistics.latency_p50_ms()) : Json()},
               {"p99_ms", statistics.has_latency_p99_ms() ? Json(statistics.latency_p99_ms()) : Json()},
               {"frames", std::move(frames)},
               {"tip", TipJson(hub_.TipOf(session), context_.seams.steady_now())}};
  if (setup.rate_hz) json["rate_hz"] = *setup.rate_hz;
  return json;
}

std::string PageState::NextLine(const Identity& caller) {
  for (auto it = told_.begin(); it != told_.end();) it = it->first.expired() ? told_.erase(it) : std::next(it);
  Json sessions = Json::array();
  for (const auto& session : context_.sessions.List("", kMostSessions, caller)) {
    sessions.push_back(SessionJson(session));
  }
  const Json line = {{"now", SecondsOf(context_.seams.steady_now())},
                     {"version", ThisBuild().version},
                     {"caller", caller.name},
                     {"devices", DevicesJson(caller)},
                     {"memory", MemoryJson(caller)},
                     {"sessions", std::move(sessions)}};
  return JsonText(line) + "\n";
}

}  // namespace intrawarp::server
