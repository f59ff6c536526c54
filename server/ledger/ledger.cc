// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/ledger.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/ledger/grant_pool.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr std::array<Resource, kResources> kAll = AllResources();

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
      return v1::TOO_MANY_SESSIONS;
    case Resource::kOperations:
      break;
  }
  return v1::TOO_MANY_OPERATIONS;
}

// The options with the one device of a server that names none.
LedgerOptions WithDevices(LedgerOptions options) {
  if (options.devices.empty()) options.devices.push_back({"", options.capacity, options.session_reserve});
  return options;
}

Amounts Least(const Amounts& a, const Amounts& b) {
  Amounts least;
  for (const Resource resource : kAll) least[resource] = std::max<int64_t>(0, std::min(a[resource], b[resource]));
  return least;
}

Amounts Difference(const Amounts& a, const Amounts& b) {
  Amounts difference = a;
  for (const Resource resource : kAll) difference[resource] -= b[resource];
  return difference;
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
      return sessions;
    case Resource::kOperations:
      break;
  }
  return operations;
}

Grant& Grant::operator=(Grant&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(share_, other.share_);
  std::swap(held_, other.held_);
  std::swap(pool_, other.pool_);
  return *this;
}

Grant::~Grant() { Shrink(Amounts()); }

void Grant::Shrink(const Amounts& amounts) {
  if (ledger_ == nullptr) return;
  Claim left = held_;
  static_cast<Amounts&>(left) = Least(held_, amounts);
  if (pool_ != nullptr) {
    Grant rest = Split(Difference(held_, left));
    rest.pool_ = nullptr;
    pool_->TakeBack(std::move(rest));
    return;
  }
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
  static_cast<Amounts&>(rest) = Difference(held_, part);
  std::lock_guard<std::mutex> lock(ledger_->mutex_);
  ledger_->Remove(held_, share_);
  ledger_->Add(rest, share_);
  ledger_->Add(part, share_);
  held_ = rest;
  Grant split(ledger_, share_, part);
  split.pool_ = pool_;
  return split;
}

void Grant::Merge(Grant other) {
  if (other.ledger_ == nullptr) return;
  Claim both = held_;
  for (const Resource resource : kAll) both[resource] += other.held_[resource];
  std::lock_guard<std::mutex> lock(ledger_->mutex_);
  ledger_->Remove(held_, share_);
  ledger_->Remove(other.held_, other.share_);
  ledger_->Add(both, share_);
  held_ = both;
  other.ledger_ = nullptr;
}

Ledger::Ledger(const LedgerOptions& options) : options_(WithDevices(options)), accounts_(1 + options_.devices.size()) {}

absl::StatusOr<Grant> Ledger::Admit(const Claim& claim, Share share) {
  absl::StatusOr<Grant> grant = TryAdmit(claim, share);
  const bool lacks_memory = claim.resident_bytes > 0 && ReasonOf(grant.status()) == v1::RESIDENT_MEMORY;
  if (!lacks_memory || !reclaim_) return grant;
  Reclaim(claim.resident_bytes, share, claim.device);
  return TryAdmit(claim, share);
}

void Ledger::Reclaim(int64_t bytes, Share share, int device) const {
  const int64_t missing = bytes - available(Resource::kResident, share, device);
  if (missing > 0 && reclaim_) reclaim_(device, missing);
}

absl::StatusOr<Grant> Ledger::TryAdmit(const Claim& claim, Share share) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Resource resource : kAll) INTRAWARP_RETURN_IF_ERROR(CheckCapacity(resource, claim, share));
  INTRAWARP_RETURN_IF_ERROR(CheckOwner(claim, share));
  for (const Resource resource : kAll) INTRAWARP_RETURN_IF_ERROR(CheckAvailable(resource, claim, share));
  Add(claim, share);
  return Grant(this, share, claim);
}

absl::Status Ledger::CheckCapacity(Resource resource, const Claim& claim, Share share) const {
  const int64_t most = capacity(resource, share, claim.device);
  if (claim[resource] >= 0 && claim[resource] <= most) return absl::OkStatus();
  return ExceedsCapacity(kResourceNames[static_cast<int>(resource)], claim[resource], most);
}

absl::Status Ledger::CheckAvailable(Resource resource, const Claim& claim, Share share) {
  const int64_t available = Available(resource, share, claim.device);
  if (claim[resource] == 0 || Increase(resource, claim, share) <= available) return absl::OkStatus();
  const int64_t most = capacity(resource, share, claim.device);
  const std::string message = absl::StrCat(NameOf(resource, claim.device), ": ", claim[resource], " asked, ",
                                           most - available, " of ", most, " in use");
  return WithReason(absl::ResourceExhaustedError(message), ExhaustedReason(resource),
                    InUse(claim[resource], most - available, most));
}

absl::Status Ledger::CheckOwner(const Claim& claim, Share share) {
  if (claim.owner.empty() || claim.is_durable) return absl::OkStatus();
  const auto it = owners_.find(claim.owner);
  Amounts used = it == owners_.end() ? Amounts() : it->second;
  used.workspace_bytes = OwnerWorkspace(claim.owner);
  for (const Resource resource : kAll) {
    const int64_t most = options_.owner_limit[resource];
    if (most == 0 || claim[resource] == 0) continue;
    if (OwnerIncrease(resource, claim, share) <= most - used[resource]) continue;
    const char* const name = kResourceNames[static_cast<int>(resource)];
    ErrorMetadata metadata = InUse(claim[resource], used[resource], most);
    metadata["resource"] = name;
    const std::string message = absl::StrCat(name, ": ", claim[resource], " asked, the caller has ", used[resource],
                                             " of the ", most, " that one owner may have");
    return WithReason(absl::ResourceExhaustedError(message), v1::OWNER_QUOTA, metadata);
  }
  return absl::OkStatus();
}

void Ledger::AddToOwner(const Claim& claim, int sign) {
  if (claim.owner.empty()) return;
  Amounts& used = owners_[claim.owner];
  for (const Resource resource : kAll) {
    if (resource != Resource::kWorkspace) used[resource] += sign * claim[resource];
  }
  if (used == Amounts()) owners_.erase(claim.owner);
}

Amounts Ledger::owner_use(const std::string& owner) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = owners_.find(owner);
  Amounts used = it == owners_.end() ? Amounts() : it->second;
  used.workspace_bytes = OwnerWorkspace(owner);
  return used;
}

int64_t Ledger::CapacityOf(Resource resource, int device) const {
  return IsPerDevice(resource) ? options_.devices[device].capacity[resource] : options_.capacity[resource];
}

int64_t Ledger::ReserveOf(Resource resource, int device) const {
  return IsPerDevice(resource) ? options_.devices[device].session_reserve[resource]
                               : options_.session_reserve[resource];
}

std::string Ledger::NameOf(Resource resource, int device) const {
  const char* const name = kResourceNames[static_cast<int>(resource)];
  const std::string& of = options_.devices[device].name;
  return IsPerDevice(resource) && !of.empty() ? absl::StrCat(name, " of ", of) : name;
}

int64_t Ledger::capacity(Resource resource, Share share, int device) const {
  const int64_t reserve = share == Share::kSession ? 0 : ReserveOf(resource, device);
  return CapacityOf(resource, device) - reserve;
}

int64_t Ledger::available(Resource resource, Share share, int device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Available(resource, share, device);
}

int64_t& Ledger::Used(Resource resource, Share share, int device) {
  return accounts_[AccountOf(resource, device)].used[static_cast<int>(share)][resource];
}

int64_t Ledger::Used(Resource resource, Share share, int device) const {
  return accounts_[AccountOf(resource, device)].used[static_cast<int>(share)][resource];
}

int64_t Ledger::Available(Resource resource, Share share, int device) const {
  const int64_t common = Used(resource, Share::kCommon, device);
  int64_t sessions = Used(resource, Share::kSession, device);
  if (share == Share::kCommon) sessions = std::max(sessions, ReserveOf(resource, device));
  return CapacityOf(resource, device) - sessions - common;
}

int64_t Ledger::Increase(Resource resource, const Claim& claim, Share share) {
  if (resource != Resource::kWorkspace) return claim[resource];
  return IncreaseOf(claim, share, [&] { return SumOfLargest(claim, share); });
}

int64_t Ledger::OwnerIncrease(Resource resource, const Claim& claim, Share share) {
  if (resource != Resource::kWorkspace) return claim[resource];
  return IncreaseOf(claim, share, [&] { return OwnerWorkspace(claim.owner); });
}

template <typename Reserved>
int64_t Ledger::IncreaseOf(const Claim& claim, Share share, const Reserved& reserved) {
  const int64_t before = reserved();
  AddWorkspace(claim, share);
  const int64_t after = reserved();
  RemoveWorkspace(claim, share);
  return after - before;
}

void Ledger::AddWorkspace(const Claim& claim, Share share) {
  WorkspacesOf(claim, share)[{claim.owner, claim.is_short}].insert(claim.workspace_bytes);
}

void Ledger::RemoveWorkspace(const Claim& claim, Share share) {
  Workspaces& workspaces = WorkspacesOf(claim, share);
  const auto own = workspaces.find({claim.owner, claim.is_short});
  own->second.erase(own->second.find(claim.workspace_bytes));
  if (own->second.empty()) workspaces.erase(own);
}

Ledger::Workspaces& Ledger::WorkspacesOf(const Claim& claim, Share share) {
  Account& account = accounts_[AccountOf(Resource::kWorkspace, claim.device)];
  return account.workspaces[static_cast<int>(share)][static_cast<int>(claim.job_class)];
}

size_t Ledger::AtOnce(int job_class) const {
  const int most = options_.at_once[job_class];
  return static_cast<size_t>(most > 0 ? most : options_.lanes[job_class]);
}

int64_t Ledger::SumOfLargest(const Claim& claim, Share share) const {
  const Account& account = accounts_[AccountOf(Resource::kWorkspace, claim.device)];
  const auto job_class = static_cast<int>(claim.job_class);
  const auto lanes = static_cast<size_t>(options_.lanes[job_class]);
  Largest all;
  for (const auto& [flow, own] : account.workspaces[static_cast<int>(share)][job_class]) {
    const size_t count = std::min({AtOnce(job_class), lanes, own.size()});
    all.insert(own.begin(), std::next(own.begin(), static_cast<int64_t>(count)));
  }
  const auto end = std::next(all.begin(), static_cast<int64_t>(std::min(lanes, all.size())));
  return std::accumulate(all.begin(), end, int64_t{0});
}

int64_t Ledger::OwnerWorkspace(const std::string& owner) const {
  int64_t sum = 0;
  for (size_t account = 1; account < accounts_.size(); ++account) {
    for (const auto& share : accounts_[account].workspaces) {
      for (int job_class = 0; job_class < kJobClasses; ++job_class) {
        for (const bool is_short : {false, true}) {
          const auto own = share[job_class].find({owner, is_short});
          if (own == share[job_class].end()) continue;
          const size_t count = std::min(AtOnce(job_class), own->second.size());
          sum = std::accumulate(own->second.begin(), std::next(own->second.begin(), static_cast<int64_t>(count)), sum);
        }
      }
    }
  }
  return sum;
}

void Ledger::Add(const Claim& claim, Share share) {
  AddToOwner(claim, 1);
  for (const Resource resource : kAll) {
    if (resource != Resource::kWorkspace) Used(resource, share, claim.device) += claim[resource];
  }
  if (claim.workspace_bytes > 0) {
    const int64_t before = SumOfLargest(claim, share);
    AddWorkspace(claim, share);
    Used(Resource::kWorkspace, share, claim.device) += SumOfLargest(claim, share) - before;
  }
  for (const Resource resource : kAll) {
    Account& account = accounts_[AccountOf(resource, claim.device)];
    account.peak[resource] = std::max(account.peak[resource], account.used[0][resource] + account.used[1][resource]);
  }
}

void Ledger::Remove(const Claim& claim, Share share) {
  AddToOwner(claim, -1);
  for (const Resource resource : kAll) {
    if (resource != Resource::kWorkspace) Used(resource, share, claim.device) -= claim[resource];
  }
  if (claim.workspace_bytes == 0) return;
  const int64_t before = SumOfLargest(claim, share);
  RemoveWorkspace(claim, share);
  Used(Resource::kWorkspace, share, claim.device) += SumOfLargest(claim, share) - before;
}

ResourceUse Ledger::Use(Resource resource, int device) const {
  const int64_t sessions = Used(resource, Share::kSession, device);
  return {Used(resource, Share::kCommon, device) + sessions, CapacityOf(resource, device), sessions,
          ReserveOf(resource, device), accounts_[AccountOf(resource, device)].peak[resource]};
}

ResourceUse Ledger::use(Resource resource, int device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Use(resource, device);
}

ResourceUse Ledger::use(Resource resource) const {
  std::lock_guard<std::mutex> lock(mutex_);
  ResourceUse all = Use(resource, 0);
  for (int device = 1; IsPerDevice(resource) && device < devices(); ++device) {
    const ResourceUse use = Use(resource, device);
    all.in_use += use.in_use;
    all.capacity += use.capacity;
    all.session_in_use += use.session_in_use;
    all.session_reserve += use.session_reserve;
    all.peak += use.peak;
  }
  return all;
}

}  // namespace intrawarp::server
