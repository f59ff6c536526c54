// SPDX-License-Identifier: Apache-2.0
// The bridge's counters, as Prometheus' text: messages in, out and lost (and where), latencies. Thread-safe.
#ifndef INTRAWARP_CLIENT_IGTL_COUNTERS_H_
#define INTRAWARP_CLIENT_IGTL_COUNTERS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace intrawarp::igtl {

// Where a message or a frame was lost.
enum class Lost {
  kChecksum,  // a wrong CRC
  kContent,   // a content that cannot be read, or that the bridge cannot use
  kFrame,     // an image that a newer one replaced before it was sent to the server
  kServer,    // a frame that the server answered with an error, that a newer one superseded there, or whose session
              // ended before its answer
  kField,     // a tool pose or point without a field that may be used
  kConsumer,  // a message that a newer one of its device replaced before a consumer had taken it
  kConsumerQueue,  // a message of one device too many for a consumer's queue
};
inline constexpr int kLostPlaces = 7;

// Cumulative buckets of seconds.
class Histogram {
 public:
  void Observe(std::chrono::nanoseconds duration);
  std::string Text(const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array<double, 17> kBounds = {2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.5e-3,
                                                     2e-3, 3e-3, 5e-3, 7e-3, 1e-2, 5e-2, 0.2,  1};
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

struct Counters {
  std::atomic<int64_t> messages_in{0};
  std::atomic<int64_t> messages_out{0};
  std::atomic<int64_t> messages_ignored{0};
  std::atomic<int64_t> bytes_in{0};
  std::atomic<int64_t> bytes_out{0};
  std::atomic<int64_t> peers{0};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> disconnections{0};
  std::atomic<int64_t> frames_sent{0};
  std::atomic<int64_t> frames_in_place{0};
  std::atomic<int64_t> results_ok{0};
  std::atomic<int64_t> results_review{0};
  std::atomic<int64_t> sessions{0};
  std::atomic<int64_t> sessions_lost{0};
  std::atomic<int64_t> session_failures{0};
  std::array<std::atomic<int64_t>, kLostPlaces> lost{};
  // From the last byte of a pose to its mapped message in the queues of consumers.
  Histogram pose_seconds;
  // From the last byte of an image to the end of its sending to the server.
  Histogram frame_seconds;

  void Lose(Lost where, int64_t count = 1) { lost[static_cast<int>(where)] += count; }
  int64_t LostAt(Lost where) const { return lost[static_cast<int>(where)]; }
  std::string Text() const;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_COUNTERS_H_
