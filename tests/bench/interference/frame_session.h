// SPDX-License-Identifier: Apache-2.0
// One navigation session as a load: frames on a clock that does not wait for answers.
//
// A latency runs from the moment that a frame is due to its answer, so that a frame that could not be sent in time
// counts in full (no coordinated omission). Where the rate is 0 the next frame is due when one is answered; then the
// server's slowness slows the load, and the latencies are those of a single client.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_FRAME_SESSION_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_FRAME_SESSION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "intrawarp/v1/registration.pb.h"
#include "tests/bench/interference/report.h"
#include "tests/bench/interference/site.h"

namespace intrawarp::bench {

struct FrameLoad {
  std::string method = "log-demons";
  // none, native (control points or velocity), int16, float16, float32.
  std::string encoding = "none";
  int size = 128;
  double rate = 10;
  // Frames that are due in [from, to) count. The session begins some seconds before.
  double from = 0;
  double to = 0;
  // Where in a period the first frame is due, 0 to 1.
  double phase = 0;
};

// The options of the session: everything that a client may ask of frames is asked here.
absl::StatusOr<v1::NavigateConfig> ConfigOf(const FrameLoad& load);

// One frame. Times in seconds; NaN: never.
struct FrameRecord {
  double due = 0;
  double answered = 0;
  // Empty: good. Otherwise the error's name, or "unanswered".
  std::string error;
  v1::LatencyBreakdown latency;

  bool ok() const { return error.empty(); }
  double milliseconds() const { return 1e3 * (answered - due); }
};

struct FrameLog {
  double period = 0;  // 0: none
  double from = 0, to = 0;
  std::vector<FrameRecord> frames;

  std::vector<double> Milliseconds() const;
  // Later than their period, failed and unanswered frames included; none without a period.
  int64_t Late() const;
  int64_t Failed() const;
  // Good frames a second, until the last of them was answered.
  double Rate() const;
  std::map<std::string, int64_t> Errors() const;
  void Append(const FrameLog& other);
};

// "n", "fps", percentiles, "late", "failed", "errors".
void AddFrames(const FrameLog& log, Row* row);
// The means of the phases of the `part` of the good frames that took longest, ms. "outside" is the time that the server
// did not see: from when a frame was due to its first byte, and from its last byte to the client.
void AddPhases(const FrameLog& log, double part, Row* row);

// Runs in threads of its own from construction until Finish.
class FrameSession {
 public:
  // Opens the stream and waits for one answer, which is not counted, so that sessions begin warm.
  static absl::StatusOr<std::unique_ptr<FrameSession>> Open(Site& site, const FrameLoad& load);
  ~FrameSession();

  // Begins to send. load.from and load.to are in the future.
  void Start(double from, double to);
  // Waits for the end of the load, and at most `kGrace` seconds longer for answers.
  FrameLog Finish();

  static constexpr double kGrace = 15;

 private:
  FrameSession(const BreathSequence& images, const FrameLoad& load) : images_(images), load_(load) {}
  absl::Status Warm();
  void SendLoop();
  void ReceiveLoop();
  client::Frame MakeFrame(int64_t number) const;
  absl::StatusOr<client::FrameAnswer> Exchange(int64_t number);
  void ExchangeLoop();
  void Record(const client::FrameAnswer& answer);

  const BreathSequence& images_;
  FrameLoad load_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::NavigateStream> stream_;
  client::GridData field_;
  std::vector<FrameRecord> frames_;  // by number - 2; what a thread writes there only it touches
  std::string end_;                  // the error that ended the stream, if any; the receiving thread's
  std::atomic<bool> received_{false};
  std::thread sender_, receiver_;
};

// One session alone: opened, run for the seconds of the options, finished.
absl::StatusOr<FrameLog> RunSession(Site& site, FrameLoad load);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_FRAME_SESSION_H_
