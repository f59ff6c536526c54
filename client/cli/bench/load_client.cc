// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/load_client.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "client/cli/bench/arrival_schedule.h"

namespace intrawarp::cli::bench {

bool LoadClock::SleepUntil(double time) const {
  const auto due = begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time));
  // The wait that can be interrupted is one of whole milliseconds.
  const auto most = std::chrono::floor<std::chrono::milliseconds>(due - Clock::now());
  if (most.count() > 0 && interrupt_->WaitFor(most)) return false;
  std::this_thread::sleep_until(due);
  return !interrupt_->cancelled();
}

std::unique_ptr<LoadClient> MakeLoadClient(const LoadContext& context, const ClientImages& images, double phase) {
  return context.load.kind == LoadKind::kRegister ? MakeRegistrationClient(context, images, phase)
                                                  : MakeNavigationClient(context, images, phase);
}

std::vector<CallRecord> ScheduledCalls(const LoadContext& context, double phase) {
  const ArrivalSchedule schedule(context.load.rate_hz, phase, context.seconds);
  std::vector<CallRecord> calls(static_cast<size_t>(schedule.count()));
  for (int64_t n = 0; n < schedule.count(); ++n) calls[static_cast<size_t>(n)].due = schedule.Due(n);
  return calls;
}

void Settle(double end, std::vector<CallRecord>* calls) {
  for (CallRecord& call : *calls) {
    if (call.fate == Fate::kNotSent && !std::isnan(call.sent)) call.fate = Fate::kUnanswered;
  }
  const auto was_not_due = [end](const CallRecord& call) { return call.fate == Fate::kNotSent && call.due > end; };
  calls->erase(std::remove_if(calls->begin(), calls->end(), was_not_due), calls->end());
}

client::GridSink CountingSink(v1::FieldEncoding encoding, client::GridData* data, int64_t* bytes) {
  const bool is_half = encoding == v1::FIELD_ENCODING_FLOAT16 || encoding == v1::FIELD_ENCODING_INT16;
  return [is_half, sink = client::SinkInto(data), bytes](const Geometry& geometry, int64_t values) {
    *bytes += values * (is_half ? 2 : 4);
    return sink(geometry, values);
  };
}

}  // namespace intrawarp::cli::bench
