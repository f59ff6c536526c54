// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/ledger.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/rpc/errors.h"

namespace intrawarp::server {
namespace {

constexpr std::array<Resource, kResources> kAll = {Resource::kResident,   Resource::kWorkspace, Resource::kPinned,
                                                   Resource::kUploading,  Resource::kUploads,   Resource::kStreams,
                                                   Resource::kTransforms, Resource::kSessions};

v1::ErrorReason ExhaustedReason(Resource resource) {
  switch (resource) {
    case Resource::kResident:
    case Resource::kUploading:
      return v1::RESIDENT_MEMORY;
    case Resource::kWorkspace:
      return v1::WORKSPACE_MEMORY;
    case Resource::kPinned:
      return v1::PINNED_MEMORY;
    case Resource::kTransforms:
      return v1::TOO_MANY_TRANSFORMS;
    case Resource::kStreams:
      return v1::TOO_MANY_STREAMS;
    case Resource::kUploads:
      return v1::TOO_MANY_UPLOADS;
    case Resource::kSessions:
      break;
  }
  return v1::TOO_MANY_SESSIONS;
}

Amounts Least(const Amounts& a, const Amounts& b) {
  Amounts least;
  for (const Resource resource : kAll) least[resource] = std::max<int64_t>(0, std::min(a[resource], b[resource]));
  return least;
}

}  // namespace

int64_t& Amounts::operator[](Resource resource) {
  switch (resource) {
    case Resource::kResident:
      return resident_bytes;
    case Resource::kWorkspace:
      return workspace_bytes;
    case Resource::kPinned:
      return pinned_bytes;
    case Resource::kUploading:
      return uploading_bytes;
    case Resource::kTransforms:
      return transforms;
    case Resource::kStreams:
      return streams;
    case Resource::kUploads:
      return uploads;
    case Resource::kSessions:
      break;
  }
  return sessions;
}

Grant& Grant::operator=(Grant&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(share_, other.share_);
  std::swap(held_, other.held_);
  return *this;
}

Grant::~Grant() { Shrink(Amounts()); }

void Grant::Shrink(const Amounts& amounts) {
  if (ledger_ == nullptr) return;
  Claim left = held_;
  static_cast<Amounts&>(left) = Least(held_, amounts);
  std::lock_guard<std::mutex> lock(ledger_->mutex_);
  ledger_->Remove(held_, share_);
  ledger_->Add(left, share_);
  held_ = left;
}

void Grant::ShrinkResident(int64_t bytes) {
  Amounts amounts = held_;
  amounts.resident_bytes = bytes;
  Shrink(amounts);
}

Grant Grant::Split(const Amounts& amounts) {
  if (ledger_ == nullptr) return Grant();
  Claim part = held_, rest = held_;
  static_cast<Amounts&>(part) = Least(held_, amounts);
  for (const Resource resource : kAll) rest[resource] -= part[resource];
  std::lock_guard<std::mutex> lock(ledger_->mutex_);
  ledger_->Remove(held_, share_);
  ledger_->Add(rest, share_);
  ledger_->Add(part, share_);
  held_ = rest;
  return Grant(ledger_, share_, part);
}

absl::StatusOr<Grant> Ledger::Admit(const Claim& claim, Share share) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Resource resource : kAll) INTRAWARP_RETURN_IF_ERROR(CheckCapacity(resource, claim, share));
  for (const Resource resource : kAll) INTRAWARP_RETURN_IF_ERROR(CheckAvailable(resource, claim, share));
  Add(claim, share);
  return Grant(this, share, claim);
}

absl::Status Ledger::CheckCapacity(Resource resource, const Claim& claim, Share share) const {
  const int64_t most = capacity(resource, share);
  if (claim[resource] >= 0 && claim[resource] <= most) return absl::OkStatus();
  return ExceedsCapacity(kResourceNames[static_cast<int>(resource)], claim[resource], most);
}

absl::Status Ledger::CheckAvailable(Resource resource, const Claim& claim, Share share) {
  const int64_t available = Available(resource, share);
  if (claim[resource] == 0 || Increase(resource, claim, share) <= available) return absl::OkStatus();
  const int64_t most = capacity(resource, share);
  const std::string message = absl::StrCat(kResourceNames[static_cast<int>(resource)], ": ", claim[resource],
                                           " asked, ", most - available, " of ", most, " in use");
  return WithReason(absl::ResourceExhaustedError(message), ExhaustedReason(resource),
                    InUse(claim[resource], most - available, most));
}

int64_t Ledger::capacity(Resource resource, Share share) const {
  const int64_t reserve = share == Share::kSession ? 0 : options_.session_reserve[resource];
  return options_.capacity[resource] - reserve;
}

int64_t Ledger::available(Resource resource, Share share) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Available(resource, share);
}

int64_t Ledger::Available(Resource resource, Share share) const {
  const int64_t common = used_[static_cast<int>(Share::kCommon)][resource];
  int64_t sessions = used_[static_cast<int>(Share::kSession)][resource];
  if (share == Share::kCommon) sessions = std::max(sessions, options_.session_reserve[resource]);
  return options_.capacity[resource] - sessions - common;
}

int64_t Ledger::Increase(Resource resource, const Claim& claim, Share share) {
  if (resource != Resource::kWorkspace) return claim[resource];
  Workspaces& workspaces = WorkspacesOf(claim, share);
  const int64_t before = SumOfLargest(claim, share);
  const auto added = workspaces.insert(claim.workspace_bytes);
  const int64_t after = SumOfLargest(claim, share);
  workspaces.erase(added);
  return after - before;
}

Ledger::Workspaces& Ledger::WorkspacesOf(const Claim& claim, Share share) {
  return workspaces_[static_cast<int>(share)][static_cast<int>(claim.job_class)];
}

int64_t Ledger::SumOfLargest(const Claim& claim, Share share) const {
  const Workspaces& workspaces = workspaces_[static_cast<int>(share)][static_cast<int>(claim.job_class)];
  const auto lanes = static_cast<size_t>(options_.lanes[static_cast<int>(claim.job_class)]);
  const auto end = std::next(workspaces.begin(), static_cast<int64_t>(std::min(lanes, workspaces.size())));
  return std::accumulate(workspaces.begin(), end, int64_t{0});
}

void Ledger::Add(const Claim& claim, Share share) {
  Amounts& used = used_[static_cast<int>(share)];
  for (const Resource resource : kAll) {
    if (resource != Resource::kWorkspace) used[resource] += claim[resource];
  }
  if (claim.workspace_bytes > 0) {
    const int64_t before = SumOfLargest(claim, share);
    WorkspacesOf(claim, share).insert(claim.workspace_bytes);
    used.workspace_bytes += SumOfLargest(claim, share) - before;
  }
  for (const Resource resource : kAll) {
    const int64_t now = used_[0][resource] + used_[1][resource];
    peak_[resource] = std::max(peak_[resource], now);
  }
}

void Ledger::Remove(const Claim& claim, Share share) {
  Amounts& used = used_[static_cast<int>(share)];
  for (const Resource resource : kAll) {
    if (resource != Resource::kWorkspace) used[resource] -= claim[resource];
  }
  if (claim.workspace_bytes == 0) return;
  Workspaces& workspaces = WorkspacesOf(claim, share);
  const int64_t before = SumOfLargest(claim, share);
  workspaces.erase(workspaces.find(claim.workspace_bytes));
  used.workspace_bytes += SumOfLargest(claim, share) - before;
}

ResourceUse Ledger::use(Resource resource) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t sessions = used_[static_cast<int>(Share::kSession)][resource];
  return {used_[static_cast<int>(Share::kCommon)][resource] + sessions, options_.capacity[resource], sessions,
          options_.session_reserve[resource], peak_[resource]};
}

}  // namespace intrawarp::server
