// SPDX-License-Identifier: Apache-2.0
#include "server/store/durable_objects.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "server/context/limits.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;

// How much of a time to live a crash may give back.
constexpr std::chrono::minutes kTimePeriod{5};

// The two clocks never agree to the nanosecond.
constexpr std::chrono::nanoseconds kSmallStep = std::chrono::seconds(1);

// No object lives longer, which keeps sums of times in their range.
constexpr std::chrono::nanoseconds kLongestLife = 2 * kMaxTtl;

// The disk works on one at a time; the others hide its latency.
constexpr int kThreads = 4;

const state::DurablePayload& OrNone(const state::DurablePayload* payload) {
  static const state::DurablePayload none;
  return payload == nullptr ? none : *payload;
}

}  // namespace

int64_t NanosecondsOf(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

absl::Status DurableObjects::Open(state::FileLayer& files, const std::string& directory, const Seams& seams) {
  seams_ = seams;
  opened_ = seams.steady_now();
  time_written_ = opened_;
  absl::StatusOr<std::unique_ptr<state::StateStore>> opened =
      state::StateStore::Open(files, directory, NanosecondsOf(seams.system_now()));
  if (!opened.ok()) {
    return absl::Status(opened.status().code(),
                        absl::StrCat("--state_dir=", directory, ": ", opened.status().message()));
  }
  state_ = *std::move(opened);
  workers_ = std::make_unique<WorkerPool>(kThreads);
  loader_ = std::make_unique<WorkerPool>(1);
  return absl::OkStatus();
}

void DurableObjects::Run(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(running_mutex_);
    if (workers_ != nullptr) return workers_->Submit(std::move(work));
  }
  work();
}

void DurableObjects::RunLoad(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(running_mutex_);
    if (loader_ != nullptr) return loader_->Submit(std::move(work));
  }
  work();
}

void DurableObjects::Shutdown() {
  // One after the other: a load that ends may have work for the others.
  for (std::unique_ptr<WorkerPool>* const pool : {&loader_, &workers_}) {
    std::unique_ptr<WorkerPool> ended;  // joined after the lock
    std::lock_guard<std::mutex> lock(running_mutex_);
    ended = std::move(*pool);
  }
  if (enabled() && !std::exchange(is_shut_down_, true)) (void)state_->Advance(DurableNow(seams_.steady_now()));
}

int64_t DurableObjects::DurableNow(steady_clock::time_point now) const {
  return state_->start_time() + std::chrono::nanoseconds(now - opened_).count();
}

// By the wall clock, so that clients are told the very time that they were told before, unless it has stepped.
int64_t DurableObjects::DurableTime(const Expiry& expiry) const {
  const int64_t by_steady = DurableNow(expiry.end);
  const int64_t by_wall = NanosecondsOf(expiry.time) + state_->ahead();
  return std::abs(by_wall - by_steady) < kSmallStep.count() ? by_wall : by_steady;
}

Expiry DurableObjects::ExpiryAt(int64_t durable_time) const {
  const std::chrono::nanoseconds life(std::max<int64_t>(durable_time, 0) - state_->start_time());
  const steady_clock::time_point end = opened_ + std::min(life, kLongestLife);
  const std::chrono::nanoseconds wall(DurableNow(end) - state_->ahead());
  return {std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(wall)),
          end};
}

void DurableObjects::WriteTime(steady_clock::time_point now) {
  if (!enabled() || now - time_written_.load() < kTimePeriod) return;
  time_written_ = now;
  (void)state_->Advance(DurableNow(now));  // a disk that does not take it is asked again
}

absl::StatusOr<std::shared_ptr<const state::DurablePayload>> DurableObjects::Keep(const std::string& digest,
                                                                                  absl::Span<const char> bytes) {
  if (!enabled()) return nullptr;
  absl::StatusOr<state::DurablePayload> kept = state_->Keep(digest, bytes);
  if (!kept.ok()) return StateError(kept.status());
  // Letting go may remove a file.
  return std::shared_ptr<const state::DurablePayload>(
      new state::DurablePayload(*std::move(kept)),
      [this](const state::DurablePayload* gone) { Run([gone] { delete gone; }); });
}

absl::Status DurableObjects::Read(const std::string& digest, absl::Span<char> to) const {
  const absl::Status read = state_->Read(digest, to);
  return read.ok() || absl::IsDataLoss(read) ? read : StateError(read);
}

absl::Status DurableObjects::CommitSession(state::SessionRow row, const state::DurablePayload* payload) {
  const absl::Status kept = state_->CommitSession(std::move(row), OrNone(payload));
  return kept.ok() ? kept : StateError(kept);
}

absl::Status DurableObjects::UpdateSession(state::SessionRow row, const state::DurablePayload* payload) {
  const absl::Status kept = state_->UpdateSession(std::move(row), OrNone(payload));
  return kept.ok() ? kept : StateError(kept);
}

absl::Status DurableObjects::RemoveSession(const state::SessionRow& row) {
  const absl::Status removed = state_->RemoveSession(row.id, row.owner, row.incarnation);
  return removed.ok() || absl::IsNotFound(removed) ? absl::OkStatus() : StateError(removed);
}

absl::Status DurableObjects::PutOperation(const state::OperationRow& row) {
  const absl::Status put = state_->PutOperation(row);
  return put.ok() ? put : StateError(put);
}

absl::Status DurableObjects::RemoveOperation(const std::string& id, const std::string& owner) {
  const absl::Status removed = state_->RemoveOperation(id, owner);
  return removed.ok() ? removed : StateError(removed);
}

absl::Status DurableObjects::StateError(const absl::Status& status) const {
  if (absl::IsResourceExhausted(status)) {
    const state::Orphans::Amount orphans = state_->CountOrphans().value_or(state::Orphans::Amount());
    std::string message = "the disk of the state directory is full";
    if (orphans.files > 0) {
      absl::StrAppend(&message, "; ", orphans.bytes, " bytes of it are payloads in orphaned/, which no object needs");
    }
    return WithReason(
        absl::ResourceExhaustedError(message), v1::STATE_FULL,
        {{"available_bytes", absl::StrCat(state_->FreeBytes())}, {"orphaned_bytes", absl::StrCat(orphans.bytes)}});
  }
  return WithReason(absl::UnavailableError(absl::StrCat("state directory: ", status.message())), v1::STATE_UNAVAILABLE);
}

absl::Status DurableObjects::RemoveRow(state::ObjectKind kind, const std::string& id, const std::string& owner) {
  const absl::Status removed = state_->Remove(kind, id, owner);
  return removed.ok() || absl::IsNotFound(removed) ? absl::OkStatus() : StateError(removed);
}

}  // namespace intrawarp::server
