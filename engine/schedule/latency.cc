// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/latency.h"

#include <utility>

#if INTRAWARP_WITH_CUDA && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define INTRAWARP_WITH_NVTX 1
#endif

namespace intrawarp {
namespace {

#if INTRAWARP_WITH_NVTX
void BeginRange(const char* name) { nvtxRangePushA(name); }
void EndRange() { nvtxRangePop(); }
#else
void BeginRange(const char*) {}
void EndRange() {}
#endif

}  // namespace

PhaseTimer::PhaseTimer(LatencyBreakdown& latency, Phase phase)
    : latency_(latency),
      phase_(phase),
      before_(std::exchange(latency.timed_, phase)),
      begin_(std::chrono::steady_clock::now()) {
  BeginRange(kPhaseNames[static_cast<int>(phase)]);
}

PhaseTimer::~PhaseTimer() {
  EndRange();
  latency_.timed_ = before_;
  latency_.Add(phase_, std::chrono::steady_clock::now() - begin_);
}

}  // namespace intrawarp
