// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/timing.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"

namespace intrawarp::baselines {

absl::StatusOr<double> MedianSeconds(const ExecContext& ctx, int repeats, const Work& work) {
  return INTRAWARP_DISPATCH(ctx, MedianSeconds, repeats, work);
}

absl::Status Fill(const ExecContext& ctx, void* data, size_t bytes) {
  return INTRAWARP_DISPATCH(ctx, Fill, data, bytes);
}

absl::Status Copy(const ExecContext& ctx, void* to, const void* from, size_t bytes) {
  return INTRAWARP_DISPATCH(ctx, Copy, to, from, bytes);
}

namespace cpu {
namespace {

constexpr size_t kPiece = size_t{4} << 20;
constexpr double kLimitSeconds = 2;

// body(begin, bytes) for every piece.
template <typename Body>
void ForPieces(size_t bytes, const Body& body) {
  ParallelFor((bytes + kPiece - 1) / kPiece, [&](int64_t i) {
    const size_t begin = i * kPiece;
    body(begin, std::min(kPiece, bytes - begin));
  });
}

}  // namespace

absl::StatusOr<double> MedianSeconds(const ExecContext&, int repeats, const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  double total = 0;
  INTRAWARP_RETURN_IF_ERROR(work());
  while (seconds.size() < repeats && (seconds.size() < 3 || total < kLimitSeconds)) {
    const Clock::time_point begin = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(work());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += seconds.back();
  }
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

absl::Status Fill(const ExecContext&, void* data, size_t bytes) {
  ForPieces(bytes, [&](size_t begin, size_t count) { std::memset(static_cast<char*>(data) + begin, 1, count); });
  return absl::OkStatus();
}

absl::Status Copy(const ExecContext&, void* to, const void* from, size_t bytes) {
  ForPieces(bytes, [&](size_t begin, size_t count) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, count);
  });
  return absl::OkStatus();
}

}  // namespace cpu
}  // namespace intrawarp::baselines
