// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/bench/interference/frame_session.h"
#include "tests/bench/interference/loopback.h"
#include "tests/bench/interference/scenarios.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

// The phases in which the frame is on the device, or on its way to or from it.
double DeviceMs(const v1::LatencyBreakdown& latency) {
  return latency.upload_ms() + latency.prepare_ms() + latency.optimise_ms() + latency.assess_ms() +
         latency.encode_ms() + latency.download_ms();
}

template <typename Value>
std::vector<double> Each(const FrameLog& log, const Value& value) {
  std::vector<double> values;
  for (const FrameRecord& frame : log.frames) {
    if (frame.ok()) values.push_back(value(frame));
  }
  return values;
}

void PrintOverhead(Site& site, const FrameLoad& load, const FrameLog& log, const MovingFloors& floors) {
  const auto overhead = Each(log, [](const FrameRecord& f) { return f.milliseconds() - DeviceMs(f.latency); });
  const double receive = Median(Each(log, [](const FrameRecord& f) { return f.latency.receive_ms(); }));
  Row row;
  row.Add("method", load.method).Add("size", load.size, 0).Add("field", load.encoding);
  row.Add("n", static_cast<double>(log.frames.size()), 0).Add("failed", static_cast<double>(log.Failed()), 0);
  row.Add("client p50", Median(log.Milliseconds()), 2);
  row.Add("device p50", Median(Each(log, [](const FrameRecord& f) { return DeviceMs(f.latency); })), 2);
  row.Add("overhead p50", Median(overhead), 2).Add("overhead p90", Percentile(overhead, 0.9), 2);
  row.Add("receive", receive, 2);
  row.Add("admit", Median(Each(log, [](const FrameRecord& f) { return f.latency.admit_ms(); })), 2);
  row.Add("queue", Median(Each(log, [](const FrameRecord& f) { return f.latency.queue_ms(); })), 2);
  row.Add("send", Median(Each(log, [](const FrameRecord& f) { return f.latency.send_ms(); })), 2);
  row.Add("tcp", floors.tcp, 2).Add("crc32c", floors.crc32c, 2).Add("memcpy", floors.copy, 2);
  row.Add("receive/tcp", receive / floors.tcp, 2);
  site.report().Print("overhead", row);
}

// Every encoding that a method has; the native one of ffd beside those of log-demons.
std::vector<std::pair<std::string, std::string>> Forms(const BenchOptions& options) {
  std::vector<std::pair<std::string, std::string>> forms;
  for (const std::string& encoding : options.encodings) {
    if (encoding == "native") forms.emplace_back("ffd", encoding);
    forms.emplace_back("log-demons", encoding);
  }
  return forms;
}

}  // namespace

absl::Status RunOverheadScenario(Site& site) {
  for (const int size : site.options().sizes) {
    INTRAWARP_ASSIGN_OR_RETURN(const BreathSequence* images, site.Images(size));
    INTRAWARP_ASSIGN_OR_RETURN(const MovingFloors floors, MeasureFloors(BytesOf(images->resident())));
    for (const auto& [method, encoding] : Forms(site.options())) {
      FrameLoad load;
      load.method = method;
      load.encoding = encoding;
      load.size = size;
      load.rate = 0;
      INTRAWARP_ASSIGN_OR_RETURN(const FrameLog log, RunSession(site, load));
      PrintOverhead(site, load, log, floors);
    }
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::bench
