// SPDX-License-Identifier: Apache-2.0
// LoadClient: one client of a load, a session of frames or a caller of Register, with a connection and threads of its
// own.
//
// In an open loop calls are due on a schedule, whatever the server does, and latencies count from there. In a closed
// loop a call is due when the last one is answered; then the server's slowness slows the load. Calls that could not be
// begun by a second after the end of the load are not sent.
//
// Thread safety: one thread uses a client; the client's own threads run from Start to Finish.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_LOAD_CLIENT_H_
#define INTRAWARP_CLIENT_CLI_BENCH_LOAD_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/breath.h"
#include "client/cli/bench/call_record.h"
#include "client/cli/bench/holdings.h"
#include "client/cpp/client.h"

namespace intrawarp::cli::bench {

using ConnectFunction = std::function<absl::StatusOr<std::unique_ptr<client::Client>>()>;

// Seconds since the begin of a load.
class LoadClock {
 public:
  using Clock = std::chrono::steady_clock;

  LoadClock(Clock::time_point begin, const client::Cancellation* interrupt) : begin_(begin), interrupt_(interrupt) {}

  double Now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  // False when the wait was interrupted.
  bool SleepUntil(double time) const;

 private:
  Clock::time_point begin_;
  const client::Cancellation* interrupt_;
};

// The state that the clients of one load share, and that outlives them.
struct LoadContext {
  LoadOptions load;
  Task task;
  double seconds = 0;
  ConnectFunction connect;
  Holdings* holdings = nullptr;
  client::Cancellation* interrupt = nullptr;
  // A client in a closed loop ends after so many calls.
  int64_t max_calls = 0;
};

// The images of one client, and where they are resident. `fixed` is there for Register alone.
struct ClientImages {
  Breath breath;
  std::string rest;
  std::string fixed;
};

class LoadClient {
 public:
  virtual ~LoadClient() = default;
  // Connects, and waits for one answer, which is not counted, so that loads begin warm.
  virtual absl::Status Open() = 0;
  virtual void Start(const LoadClock& clock) = 0;
  // Whether nothing is due or under way any more.
  virtual bool finished() const = 0;
  // Ends the calls under way, which then have no answer.
  virtual void Cancel() = 0;
  // Waits for the threads. Whoever does not want to wait for long cancels before.
  virtual ClientLog Finish() = 0;
};

// A client of the context's kind. `phase`: where in a period its first call is due, in [0, 1). The images outlive it.
std::unique_ptr<LoadClient> MakeLoadClient(const LoadContext& context, const ClientImages& images, double phase);

// Internal to the load clients: calls that are due on the schedule of an open loop, none of them sent.
std::vector<CallRecord> ScheduledCalls(const LoadContext& context, double phase);
// Tells those that were sent and not answered, and drops those that were due after the client's end, where that came
// before the load's.
void Settle(double end, std::vector<CallRecord>* calls);
// How long after the end of the load a call that was due before may begin.
inline constexpr double kOverrunSeconds = 1;
// Counts the encoded bytes of a field on their way into `data`.
client::GridSink CountingSink(v1::FieldEncoding encoding, client::GridData* data, int64_t* bytes);

std::unique_ptr<LoadClient> MakeNavigationClient(const LoadContext& context, const ClientImages& images, double phase);
std::unique_ptr<LoadClient> MakeRegistrationClient(const LoadContext& context, const ClientImages& images,
                                                   double phase);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_LOAD_CLIENT_H_
