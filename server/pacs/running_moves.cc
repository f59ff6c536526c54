// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/running_moves.h"

#include <algorithm>
#include <utility>

namespace intrawarp::server {
namespace {

constexpr size_t kMaxMoves = 1024;
constexpr size_t kMaxEnded = 1024;

}  // namespace

uint16_t RunningMoves::Begin(const std::string& ae_title, std::shared_ptr<SeriesIntake> intake) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (moves_.size() >= kMaxMoves) return 0;
  while (next_id_ == 0 || moves_.count(next_id_) != 0) ++next_id_;
  moves_[next_id_] = {ae_title, std::move(intake)};
  return next_id_++;
}

void RunningMoves::End(uint16_t id, int64_t newest) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = moves_.find(id);
  if (it == moves_.end()) return;
  ended_.push_back({it->second.ae_title, it->second.intake->hash(), newest});
  if (ended_.size() > kMaxEnded) ended_.pop_front();
  moves_.erase(it);
}

std::shared_ptr<SeriesIntake> RunningMoves::Named(uint16_t id, absl::string_view ae_title) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = moves_.find(id);
  if (it == moves_.end() || it->second.ae_title != ae_title || it->second.intake->cancelled()) return nullptr;
  return it->second.intake;
}

RunningMoves::Owner RunningMoves::Of(absl::string_view ae_title, absl::string_view series, int64_t association) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, move] : moves_) {
    if (move.ae_title != ae_title || move.intake->hash() != series) continue;
    return move.intake->cancelled() ? Owner{nullptr, true} : Owner{move.intake, false};
  }
  const bool is_late = std::any_of(ended_.begin(), ended_.end(), [&](const Ended& ended) {
    return ended.ae_title == ae_title && ended.series == series && association <= ended.newest;
  });
  return {nullptr, is_late};
}

}  // namespace intrawarp::server
