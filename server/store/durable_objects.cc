// SPDX-License-Identifier: Apache-2.0
#include "server/store/durable_objects.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/errors.h"

namespace intrawarp::server {
namespace {

// The disk works on one at a time; the others hide its latency.
constexpr int kThreads = 4;

const state::KeptPayload& OrNone(const state::KeptPayload* payload) {
  static const state::KeptPayload none;
  return payload == nullptr ? none : *payload;
}

}  // namespace

int64_t NanosecondsOf(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

absl::Status DurableObjects::Open(state::FileLayer& files, const std::string& directory,
                                  std::chrono::system_clock::time_point now) {
  absl::StatusOr<std::unique_ptr<state::StateStore>> opened =
      state::StateStore::Open(files, directory, NanosecondsOf(now));
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
}

absl::StatusOr<std::shared_ptr<const state::KeptPayload>> DurableObjects::Keep(const std::string& digest,
                                                                               absl::Span<const char> bytes) {
  if (!enabled()) return nullptr;
  absl::StatusOr<state::KeptPayload> kept = state_->Keep(digest, bytes);
  if (!kept.ok()) return StateError(kept.status());
  // Letting go may remove a file.
  return std::shared_ptr<const state::KeptPayload>(
      new state::KeptPayload(*std::move(kept)),
      [this](const state::KeptPayload* gone) { Run([gone] { delete gone; }); });
}

absl::Status DurableObjects::Read(const std::string& digest, absl::Span<char> to) const {
  const absl::Status read = state_->Read(digest, to);
  return read.ok() || absl::IsDataLoss(read) ? read : StateError(read);
}

absl::Status DurableObjects::CommitSession(state::SessionRow row, const state::KeptPayload* payload) {
  const absl::Status kept = state_->CommitSession(std::move(row), OrNone(payload));
  return kept.ok() ? kept : StateError(kept);
}

absl::Status DurableObjects::UpdateSession(state::SessionRow row, const state::KeptPayload* payload) {
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
    return WithReason(absl::ResourceExhaustedError("the disk of the state directory is full"), v1::STATE_FULL,
                      {{"available_bytes", absl::StrCat(state_->FreeBytes())}});
  }
  return WithReason(absl::UnavailableError(absl::StrCat("state directory: ", status.message())), v1::STATE_UNAVAILABLE);
}

absl::Status DurableObjects::RemoveRow(state::ObjectKind kind, const std::string& id, const std::string& owner) {
  const absl::Status removed = state_->Remove(kind, id, owner);
  return removed.ok() || absl::IsNotFound(removed) ? absl::OkStatus() : StateError(removed);
}

}  // namespace intrawarp::server
