// SPDX-License-Identifier: Apache-2.0
// The phases of a frame's life, the same words in the latency breakdown, the Prometheus label and the NVTX range.
#ifndef INTRAWARP_ENGINE_SCHEDULE_LATENCY_H_
#define INTRAWARP_ENGINE_SCHEDULE_LATENCY_H_

#include <array>
#include <chrono>
#include <optional>

namespace intrawarp {

enum class Phase { kReceive, kAdmit, kQueue, kUpload, kPrepare, kOptimise, kAssess, kEncode, kDownload, kSend };
inline constexpr int kPhases = 10;
inline constexpr std::array<const char*, kPhases> kPhaseNames = {"receive",  "admit",  "queue",  "upload",   "prepare",
                                                                 "optimise", "assess", "encode", "download", "send"};

// Wall time per phase and in all. A plain value; thread-compatible.
class LatencyBreakdown {
 public:
  using Duration = std::chrono::nanoseconds;

  void Add(Phase phase, Duration elapsed) { phases_[static_cast<int>(phase)] += elapsed; }
  // A phase was interrupted for so long: that was queueing.
  void Held(Phase phase, Duration held) {
    Add(phase, -held);
    Add(Phase::kQueue, held);
  }
  // The same for the phase whose PhaseTimer runs; between two phases it is queueing that no phase has counted.
  void Held(Duration held) {
    if (timed_) Add(*timed_, -held);
    Add(Phase::kQueue, held);
  }
  Duration phase(Phase phase) const { return phases_[static_cast<int>(phase)]; }
  void set_total(Duration total) { total_ = total; }
  Duration total() const { return total_; }

 private:
  friend class PhaseTimer;
  std::array<Duration, kPhases> phases_{};
  Duration total_{};
  std::optional<Phase> timed_;  // of the innermost timer
};

// Adds the time until its destruction to a phase. Meanwhile the thread has an NVTX range of the phase's name, in a
// build with CUDA whose toolkit has NVTX: a profiler shows it, otherwise it costs a call through a null pointer. Begun
// and ended by one thread. Phases that wait (receive, queue, send) are added by hand, and have no range.
class PhaseTimer {
 public:
  PhaseTimer(LatencyBreakdown& latency, Phase phase);
  PhaseTimer(const PhaseTimer&) = delete;
  ~PhaseTimer();

 private:
  LatencyBreakdown& latency_;
  const Phase phase_;
  const std::optional<Phase> before_;
  const std::chrono::steady_clock::time_point begin_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_LATENCY_H_
