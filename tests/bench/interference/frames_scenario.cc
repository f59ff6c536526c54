// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/bench/interference/flood.h"
#include "tests/bench/interference/frame_session.h"
#include "tests/bench/interference/scenarios.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

std::string RateName(double rate) { return rate == 0 ? "max" : absl::StrCat(rate); }

// A flood's rates by its name.
using Rates = std::map<std::string, double>;

class FramesScenario {
 public:
  explicit FramesScenario(Site& site) : site_(site) {}

  absl::Status Run() {
    for (const FrameLoad& load : Loads()) {
      INTRAWARP_ASSIGN_OR_RETURN(const FrameLog log, RunSession(site_, load));
      alone_[Key(load)] = log;
      PrintFrames("none", load, log);
    }
    for (const std::string& flood : site_.options().floods) INTRAWARP_RETURN_IF_ERROR(Beside(flood));
    return absl::OkStatus();
  }

 private:
  std::vector<FrameLoad> Loads() const {
    std::vector<FrameLoad> loads;
    for (const std::string& method : site_.options().methods) {
      for (const double rate : site_.options().rates) {
        FrameLoad load;
        load.method = method;
        load.size = site_.options().size;
        load.rate = rate;
        loads.push_back(load);
      }
    }
    return loads;
  }
  static std::string Key(const FrameLoad& load) { return absl::StrCat(load.method, " ", load.rate); }

  absl::Status Beside(const std::string& flood) {
    INTRAWARP_RETURN_IF_ERROR(PrepareFloods(site_, flood));
    Rates undisturbed;
    {
      const auto floods = StartFloods(site_, flood);
      const double from = Now() + site_.options().warmup;
      SleepUntil(from + site_.options().seconds);
      undisturbed = StopAndPrint(flood, "none", floods, from, {});
    }
    for (const FrameLoad& load : Loads()) {
      const auto floods = StartFloods(site_, flood);
      SleepUntil(Now() + site_.options().warmup);
      const double from = Now();
      const absl::StatusOr<FrameLog> log = RunSession(site_, load);
      if (!log.ok()) SleepUntil(from + site_.options().seconds);
      PrintFrames(flood, load, log.ok() ? *log : Refused(log.status()));
      StopAndPrint(flood, Key(load), floods, log.ok() ? log->from : from, undisturbed);
    }
    return absl::OkStatus();
  }

  // Not even its first frame was answered.
  static FrameLog Refused(const absl::Status& status) {
    FrameRecord record;
    record.error = "session: " + ErrorName(status);
    return {0, 0, 0, {record}};
  }

  Rates StopAndPrint(const std::string& flood, const std::string& frames,
                     const std::vector<std::unique_ptr<Flood>>& floods, double from, const Rates& undisturbed) {
    Rates rates;
    for (const auto& each : floods) each->Stop();
    for (const auto& each : floods) {
      const double rate = rates[each->name()] = each->Rate(from, from + site_.options().seconds);
      const auto before = undisturbed.find(each->name());
      Row row;
      row.Add("flood", flood).Add("clients", each->name()).Add("beside frames", frames).Add("operations/s", rate, 2);
      row.Add("of undisturbed", before == undisturbed.end() ? std::nan("") : rate / before->second, 2);
      row.Add("refusals", Tally(each->errors()));
      site_.report().Print("flood", row);
    }
    return rates;
  }

  void PrintFrames(const std::string& flood, const FrameLoad& load, const FrameLog& log) {
    const FrameLog& alone = alone_[Key(load)];
    const auto ratio = [&](double part) {
      return Percentile(log.Milliseconds(), part) / Percentile(alone.Milliseconds(), part);
    };
    Row row;
    row.Add("flood", flood).Add("method", load.method).Add("size", load.size, 0).Add("Hz", RateName(load.rate));
    AddFrames(log, &row);
    row.Add("p50/alone", ratio(0.5), 2).Add("p99/alone", ratio(0.99), 2);
    site_.report().Print("frames", row);
    for (const auto& [name, part] : {std::pair("all", 1.0), std::pair("slowest 2 %", 0.02)}) {
      Row phases;
      phases.Add("flood", flood).Add("method", load.method).Add("Hz", RateName(load.rate)).Add("frames", name);
      AddPhases(log, part, &phases);
      site_.report().Print("phases", phases);
    }
  }

  Site& site_;
  std::map<std::string, FrameLog> alone_;
};

// The sessions' phases are spread at random, as those of clients who do not know each other.
absl::StatusOr<FrameLog> RunSessions(Site& site, const FrameLoad& load, int count) {
  std::mt19937 random(site.options().seed);
  std::vector<std::unique_ptr<FrameSession>> sessions;
  for (int i = 0; i < count; ++i) {
    FrameLoad own = load;
    own.phase = std::uniform_real_distribution<double>(0, 1)(random);
    INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<FrameSession> session, FrameSession::Open(site, own));
    sessions.push_back(std::move(session));
  }
  const double from = Now() + 0.2;
  for (const auto& session : sessions) session->Start(from, from + site.options().seconds);
  FrameLog all;
  for (const auto& session : sessions) all.Append(session->Finish());
  return all;
}

std::vector<FrameLoad> CapacityLoads(const BenchOptions& options) {
  std::vector<FrameLoad> loads;
  for (const int size : options.sizes) {
    for (const std::string& method : options.methods) {
      for (const double rate : options.rates) {
        FrameLoad& load = loads.emplace_back();
        load.method = method;
        load.size = size;
        load.rate = rate;
      }
    }
  }
  return loads;
}

absl::Status FindCapacity(Site& site, const FrameLoad& load) {
  int in_time = 0;
  bool none_late = true;
  for (int count = 1; count <= site.options().max_sessions; ++count) {
    INTRAWARP_ASSIGN_OR_RETURN(const FrameLog log, RunSessions(site, load, count));
    none_late = none_late && log.Late() == 0;
    if (none_late) in_time = count;
    const double late = static_cast<double>(log.Late()) / static_cast<double>(log.frames.size());
    Row row;
    row.Add("method", load.method).Add("size", load.size, 0).Add("Hz", RateName(load.rate)).Add("sessions", count, 0);
    AddFrames(log, &row);
    row.Add("late %", 100 * late, 2).Add("sessions with none late", in_time, 0);
    site.report().Print("capacity", row);
    if (late > 0.01) break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunFramesScenario(Site& site) { return FramesScenario(site).Run(); }

absl::Status RunCapacityScenario(Site& site) {
  for (const FrameLoad& load : CapacityLoads(site.options())) {
    INTRAWARP_RETURN_IF_ERROR(FindCapacity(site, load));
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::bench
