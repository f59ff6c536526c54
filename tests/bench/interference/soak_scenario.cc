// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/bench/interference/flood.h"
#include "tests/bench/interference/scenarios.h"
#include "tests/bench/interference/soak_client.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

// Without an interval the samples hang together too closely to tell a trend from a swing.
const char* Verdict(const Slope& slope) {
  if (!std::isfinite(slope.confidence)) return "undecided";
  return slope.rises() ? "yes" : "no";
}

// Seconds in which the server ends what a client has given up.
constexpr double kGivenUp = 5;

// A quantity once a second.
struct Series {
  std::string name;
  double unit = 1;  // printed in these
  std::vector<double> values;
};

// What the ledger has granted. On the CPU, whose device memory is the host's, this is the server's part of it.
double ReservedBytes(const v1::Resources& resources) {
  return static_cast<double>(resources.resident_memory().in_use() + resources.pinned_memory().in_use() +
                             resources.upload_memory().in_use());
}

class SoakScenario {
 public:
  explicit SoakScenario(Site& site)
      : site_(site),
        series_{{"resident MB", 1e6, {}},
                {"device MB", 1e6, {}},
                {"reserved MB", 1e6, {}},
                {"descriptors", 1, {}},
                {"threads", 1, {}}} {}

  absl::Status Run() {
    INTRAWARP_RETURN_IF_ERROR(PrepareFloods(site_, "registrations"));
    INTRAWARP_RETURN_IF_ERROR(site_.PutMatrix(site_.options().fem));
    INTRAWARP_ASSIGN_OR_RETURN(const BreathSequence* images, site_.Images(site_.options().size));
    std::vector<std::thread> threads;
    for (int i = 0; i < site_.options().soak_clients; ++i) {
      clients_.push_back(std::make_unique<SoakClient>(site_, *images, site_.options().seed * 1000 + i));
      threads.emplace_back([this, client = clients_.back().get()] {
        while (!stop_) {
          client->Act();
          ++actions_;
        }
      });
    }
    const absl::Status sampled = Sample();
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    INTRAWARP_RETURN_IF_ERROR(sampled);
    PrintSlopes();
    PrintActions();
    SleepUntil(Now() + kGivenUp);
    for (const auto& client : clients_) client->Tidy();
    clients_.clear();
    return PrintLeft();
  }

 private:
  absl::Status Sample() {
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, site_.Connect());
    const double begin = Now();
    for (int second = 0; second < static_cast<int>(site_.options().seconds); ++second) {
      SleepUntil(begin + second);
      const ProcessUsage usage = site_.server().Usage();
      INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, client->GetServerInfo());
      double device = 0;
      for (const v1::Device& each : info.devices()) {
        device += static_cast<double>(each.memory_total_bytes() - each.memory_free_bytes());
      }
      times_.push_back(Now() - begin);
      actions_by_then_.push_back(static_cast<double>(actions_));
      series_[0].values.push_back(usage.resident_bytes);
      series_[1].values.push_back(device);
      series_[2].values.push_back(ReservedBytes(info.resources()));
      series_[3].values.push_back(usage.descriptors);
      series_[4].values.push_back(usage.threads);
    }
    return absl::OkStatus();
  }

  // A leak grows with what clients do, and how much they do in a second varies with the machine's load; the line is
  // therefore fitted against actions.
  void PrintSlopes() {
    const auto warm =
        std::count_if(times_.begin(), times_.end(), [this](double t) { return t < site_.options().warmup; });
    if (warm == static_cast<std::ptrdiff_t>(times_.size())) return;
    const std::vector<double> x(actions_by_then_.begin() + warm, actions_by_then_.end());
    const double actions_an_hour = 3600 * (x.back() - x.front()) / std::max(1.0, times_.back() - times_[warm]);
    for (const Series& series : series_) {
      const std::vector<double> y(series.values.begin() + warm, series.values.end());
      const Slope slope = FitSlope(x, y);
      Row row;
      row.Add("series", series.name).Add("samples", static_cast<double>(y.size()), 0);
      row.Add("first", y.front() / series.unit, 1).Add("last", y.back() / series.unit, 1);
      row.Add("largest", *std::max_element(y.begin(), y.end()) / series.unit, 1);
      row.Add("1000 actions", 1000 * slope.per_unit / series.unit, 3);
      row.Add("+-", 1000 * slope.confidence / series.unit, 3);
      row.Add("an hour", actions_an_hour * slope.per_unit / series.unit, 2).Add("rises", Verdict(slope));
      site_.report().Print("soak", row);
    }
  }

  void PrintActions() {
    std::map<std::string, int64_t> done, errors;
    for (const auto& client : clients_) {
      for (const auto& [name, count] : client->done()) done[name] += count;
      for (const auto& [name, count] : client->errors()) errors[name] += count;
    }
    Row row;
    row.Add("planted leak", static_cast<double>(site_.options().leak_bytes), 0);
    row.Add("done", Tally(done)).Add("errors", Tally(errors));
    site_.report().Print("soak-actions", row);
  }

  // What the server holds when its clients have been gone for some seconds: the volumes and the matrix of the bench.
  absl::Status PrintLeft() {
    constexpr double kSettle = 15;
    constexpr int64_t kOwnObjects = 3;  // two volumes and a matrix
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, site_.Connect());
    v1::Usage usage;
    const double begin = Now();
    do {
      SleepUntil(Now() + 0.5);
      INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, client->GetServerInfo());
      usage = info.usage();
    } while (Now() < begin + kSettle && usage.jobs() + usage.streams() + usage.uploads() + usage.transforms() +
                                                usage.volumes() + usage.sparse_matrices() >
                                            kOwnObjects);
    Row row;
    row.Add("volumes", static_cast<double>(usage.volumes()), 0);
    row.Add("matrices", static_cast<double>(usage.sparse_matrices()), 0);
    row.Add("transforms", static_cast<double>(usage.transforms()), 0);
    row.Add("uploads", static_cast<double>(usage.uploads()), 0);
    row.Add("streams", static_cast<double>(usage.streams()), 0).Add("jobs", static_cast<double>(usage.jobs()), 0);
    site_.report().Print("soak-left", row);
    return absl::OkStatus();
  }

  Site& site_;
  std::vector<double> times_;            // seconds
  std::vector<double> actions_by_then_;  // by all clients
  std::vector<Series> series_;
  std::vector<std::unique_ptr<SoakClient>> clients_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> actions_{0};
};

}  // namespace

absl::Status RunSoakScenario(Site& site) { return SoakScenario(site).Run(); }

}  // namespace intrawarp::bench
