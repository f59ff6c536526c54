// SPDX-License-Identifier: Apache-2.0
#include "server/operation/operation_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "engine/base/status_macros.h"
#include "server/base/seams.h"
#include "server/status/errors.h"
#include "server/store/request_table.h"

namespace intrawarp::server {
namespace {

absl::Status Restarted() {
  return WithReason(absl::UnavailableError("the server restarted while the work ran"), v1::SERVER_RESTARTED);
}

// ALREADY_EXISTS when the operation is that of another request.
absl::Status CheckSameRequest(const Operation& operation, OperationKind kind, const RequestKey& key) {
  const bool same = operation.kind == kind && IsRepetition(operation.key.fingerprint, key.fingerprint);
  return same ? absl::OkStatus() : RequestIdReused();
}

bool BeginsAnew(const Operation& operation) { return operation.state == OperationState::kFailed; }

}  // namespace

absl::string_view NameOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kRegister:
      return "register";
    case OperationKind::kMultiply:
      return "multiply";
    case OperationKind::kImport:
      break;
  }
  return "import";
}

absl::string_view NameOf(OperationState state) {
  switch (state) {
    case OperationState::kQueued:
      return "queued";
    case OperationState::kRunning:
      return "running";
    case OperationState::kDone:
      return "done";
    case OperationState::kFailed:
      break;
  }
  return "failed";
}

OperationWork::~OperationWork() { Failed(absl::InternalError("the work was given up")); }

absl::Status OperationWork::Keep() { return table_->Keep(key_); }

Operation OperationWork::operation() const {
  std::lock_guard<std::mutex> lock(table_->mutex_);
  const OperationTable::Entry* const entry = table_->EntryOf(*this);
  return entry == nullptr ? Operation() : entry->operation;
}

void OperationWork::set_on_cancel(std::function<void()> cancel) {
  {
    std::lock_guard<std::mutex> lock(table_->mutex_);
    OperationTable::Entry* const entry = table_->EntryOf(*this);
    if (entry == nullptr || entry->operation.has_ended()) return;
    if (!entry->cancelled) {
      entry->on_cancel = std::move(cancel);
      return;
    }
  }
  cancel();
}

bool OperationWork::cancelled() const {
  std::lock_guard<std::mutex> lock(table_->mutex_);
  const OperationTable::Entry* const entry = table_->EntryOf(*this);
  return entry == nullptr || entry->cancelled;
}

void OperationWork::Started() {
  std::lock_guard<std::mutex> lock(table_->mutex_);
  OperationTable::Entry* const entry = table_->EntryOf(*this);
  if (entry == nullptr || entry->operation.state != OperationState::kQueued) return;
  entry->operation.state = OperationState::kRunning;
  entry->operation.start_time = table_->seams_.system_now();
}

void OperationWork::Progressed(OperationProgress progress) {
  std::lock_guard<std::mutex> lock(table_->mutex_);
  OperationTable::Entry* const entry = table_->EntryOf(*this);
  if (entry == nullptr || entry->operation.has_ended()) return;
  entry->operation.progress = std::move(progress);
}

void OperationWork::Done(std::vector<std::string> results) {
  table_->End(*this, OperationState::kDone, absl::OkStatus(), std::move(results));
}

void OperationWork::Failed(const absl::Status& error) { table_->End(*this, OperationState::kFailed, error, {}); }

void OperationWork::Drop() { table_->Drop(*this); }

OperationTable::OperationTable(Ledger& ledger, const Seams& seams, const OperationOptions& options)
    : ledger_(ledger), seams_(seams), options_(options) {}

OperationTable::~OperationTable() = default;

void OperationTable::KeepWith(KeepFn keep, RunFn run) {
  keep_ = std::move(keep);
  run_ = std::move(run);
}

absl::Status OperationTable::Restore(std::vector<Operation> operations, const ResultsFn& results_of) {
  std::vector<std::string> changed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Operation& operation : operations) {
      const std::string key = OwnedKey(operation.key.id, operation.key.owner);
      if (!operation.has_ended()) {
        operation.results = results_of(operation.kind, operation.key);
        operation.state = operation.results.empty() ? OperationState::kFailed : OperationState::kDone;
        if (operation.results.empty()) operation.error = ToRpcStatusProto(Restarted());
        operation.end_time = seams_.system_now();
        SetExpiry(operation);
        changed.push_back(key);
      }
      entries_[key].operation = std::move(operation);
    }
  }
  for (const std::string& key : changed) INTRAWARP_RETURN_IF_ERROR(Keep(key));
  return absl::OkStatus();
}

void OperationTable::SetExpiry(Operation& operation) const { operation.expiry = ExpiryAfter(seams_, options_.ttl); }

absl::StatusOr<std::optional<Operation>> OperationTable::FindBegun(OperationKind kind, const RequestKey& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(OwnedKey(key.id, key.owner));
  if (it == entries_.end()) return std::nullopt;
  INTRAWARP_RETURN_IF_ERROR(CheckSameRequest(it->second.operation, kind, key));
  if (BeginsAnew(it->second.operation)) return std::nullopt;
  return it->second.operation;
}

absl::StatusOr<OperationTable::Begun> OperationTable::Begin(OperationKind kind, const RequestKey& key) {
  // Admission is not under the table's lock; a place that turns out to be needless goes at the end.
  Claim claim;
  claim.operations = 1;
  claim.owner = key.owner;
  absl::StatusOr<Grant> place = ledger_.Admit(claim);
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string owned = OwnedKey(key.id, key.owner);
  const auto it = entries_.find(owned);
  if (it != entries_.end()) {
    INTRAWARP_RETURN_IF_ERROR(CheckSameRequest(it->second.operation, kind, key));
    if (!BeginsAnew(it->second.operation)) return Begun{nullptr, it->second.operation};
  }
  if (!place.ok()) return place.status();
  Begun begun;
  begun.work.reset(new OperationWork(this, owned));
  begun.operation.kind = kind;
  begun.operation.key = key;
  begun.operation.create_time = seams_.system_now();
  Entry& entry = entries_[owned];
  entry = Entry();
  entry.operation = begun.operation;
  entry.place = *std::move(place);
  entry.work = begun.work.get();
  entry.cancelled = !stopping_.ok();
  ++active_;
  return begun;
}

OperationTable::Entry* OperationTable::EntryOf(const OperationWork& work) {
  const auto it = entries_.find(work.key_);
  return it == entries_.end() || it->second.work != &work ? nullptr : &it->second;
}

absl::StatusOr<std::string> OperationTable::KeyOf(const std::string& id, const Identity& caller) const {
  const std::string own = OwnedKey(id, caller.name);
  if (entries_.count(own) != 0) return own;
  const std::string first = OwnedKey(id, "");
  std::vector<std::string> keys;
  for (auto it = entries_.lower_bound(first); it != entries_.end() && absl::StartsWith(it->first, first); ++it) {
    if (caller.is_admin()) keys.push_back(it->first);
  }
  if (keys.empty()) return NotFound(OperationName(id));
  if (keys.size() > 1) return SeveralOwners(OperationName(id));
  return keys.front();
}

absl::StatusOr<Operation> OperationTable::Find(const std::string& id, const Identity& caller) const {
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_ASSIGN_OR_RETURN(const std::string key, KeyOf(id, caller));
  return entries_.at(key).operation;
}

std::vector<Operation> OperationTable::List(const std::string& after, int limit, const Identity& caller) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Operation> page;
  for (auto it = entries_.upper_bound(after); it != entries_.end() && static_cast<int>(page.size()) < limit; ++it) {
    if (caller.MaySee(it->second.operation.key.owner)) page.push_back(it->second.operation);
  }
  return page;
}

absl::StatusOr<Operation> OperationTable::Cancel(const std::string& id, const Identity& caller) {
  std::function<void()> on_cancel;
  std::string key;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_ASSIGN_OR_RETURN(key, KeyOf(id, caller));
    Entry& entry = entries_.at(key);
    if (entry.operation.has_ended()) return entry.operation;
    entry.cancelled = true;
    on_cancel = std::exchange(entry.on_cancel, nullptr);
  }
  if (on_cancel) on_cancel();
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return NotFound(OperationName(id));  // dropped meanwhile
  return it->second.operation;
}

absl::StatusOr<int64_t> OperationTable::Watch(const std::string& id, const Identity& caller, EndedFn ended) {
  Operation now;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_ASSIGN_OR_RETURN(const std::string key, KeyOf(id, caller));
    Entry& entry = entries_.at(key);
    if (!entry.operation.has_ended()) {
      watched_.emplace(next_watch_, key);
      entry.watchers.emplace(next_watch_, std::move(ended));
      return next_watch_++;
    }
    now = entry.operation;
  }
  ended(now);
  return 0;
}

void OperationTable::Unwatch(int64_t watch) {
  EndedFn unwatched;  // let go of after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = watched_.find(watch);
  if (it == watched_.end()) return;
  const auto entry = entries_.find(it->second);
  watched_.erase(it);
  if (entry == entries_.end()) return;
  const auto watcher = entry->second.watchers.find(watch);
  if (watcher == entry->second.watchers.end()) return;
  unwatched = std::move(watcher->second);
  entry->second.watchers.erase(watcher);
}

void OperationTable::End(const OperationWork& work, OperationState state, const absl::Status& error,
                         std::vector<std::string> results) {
  Operation operation;
  std::map<int64_t, EndedFn> watchers;
  std::function<void()> on_cancel;  // let go of after the lock
  std::vector<std::string> forgotten;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry* const entry = EntryOf(work);
    if (entry == nullptr || entry->operation.has_ended()) return;
    Operation& ended = entry->operation;
    ended.state = state;
    if (!error.ok()) ended.error = ToRpcStatusProto(absl::IsCancelled(error) && !stopping_.ok() ? stopping_ : error);
    ended.results = std::move(results);
    ended.end_time = seams_.system_now();
    SetExpiry(ended);
    entry->place = Grant();
    on_cancel = std::move(entry->on_cancel);
    watchers.swap(entry->watchers);
    for (const auto& [watch, watcher] : watchers) watched_.erase(watch);
    operation = ended;
    forgotten = ForgetOldest(ended.key.owner);
    --active_;
  }
  ended_.notify_all();
  KeepSoon(work.key_);
  for (const std::string& key : forgotten) KeepSoon(key);
  for (const auto& [watch, watcher] : watchers) watcher(operation);
}

void OperationTable::Drop(const OperationWork& work) {
  Entry dropped;  // let go of after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry* const entry = EntryOf(work);
    if (entry == nullptr || entry->operation.has_ended()) return;
    dropped = std::move(*entry);
    for (const auto& [watch, watcher] : dropped.watchers) watched_.erase(watch);
    entries_.erase(work.key_);
    --active_;
  }
  ended_.notify_all();
  KeepSoon(work.key_);
  dropped.operation.state = OperationState::kFailed;
  dropped.operation.error = ToRpcStatusProto(absl::CancelledError("the request was refused"));
  for (const auto& [watch, watcher] : dropped.watchers) watcher(dropped.operation);
}

std::vector<std::string> OperationTable::ForgetOldest(const std::string& owner) {
  std::vector<std::string> forgotten;
  const auto forget = [&](int most, const auto& counts) {
    const auto oldest = [](const auto& a, const auto& b) {
      return a->second.operation.end_time < b->second.operation.end_time;
    };
    std::vector<Entries::iterator> ended;
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.operation.has_ended() && counts(it->second.operation)) ended.push_back(it);
    }
    while (static_cast<int>(ended.size()) > most) {
      const auto it = std::min_element(ended.begin(), ended.end(), oldest);
      forgotten.push_back((*it)->first);
      entries_.erase(*it);
      ended.erase(it);
    }
  };
  forget(options_.ended_of_owner, [&](const Operation& operation) { return operation.key.owner == owner; });
  forget(options_.ended, [](const Operation&) { return true; });
  return forgotten;
}

void OperationTable::Expire(std::chrono::steady_clock::time_point now) {
  std::vector<std::string> expired;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      const std::optional<Expiry>& expiry = it->second.operation.expiry;
      const bool ends = expiry && expiry->end <= now;
      if (ends) expired.push_back(it->first);
      it = ends ? entries_.erase(it) : std::next(it);
    }
  }
  for (const std::string& key : expired) KeepSoon(key);
}

bool OperationTable::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_until(lock, deadline, [this] { return active_ == 0; });
}

void OperationTable::CancelAll(const absl::Status& why) {
  std::vector<std::function<void()>> on_cancel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = why;
    for (auto& [key, entry] : entries_) {
      if (entry.operation.has_ended()) continue;
      entry.cancelled = true;
      if (entry.on_cancel) on_cancel.push_back(std::exchange(entry.on_cancel, nullptr));
    }
  }
  for (const std::function<void()>& cancel : on_cancel) cancel();
}

OperationCounts OperationTable::counts() const {
  OperationCounts counts = {};
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, entry] : entries_) {
    ++counts[static_cast<size_t>(entry.operation.kind) - 1][static_cast<size_t>(entry.operation.state) - 1];
  }
  return counts;
}

// Always the latest state: writes that come out of order do no harm.
absl::Status OperationTable::Keep(const std::string& key) {
  if (!keep_) return absl::OkStatus();
  std::lock_guard<std::mutex> keeping(keeping_);
  std::optional<Operation> operation;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(key);
    if (it != entries_.end()) operation = it->second.operation;
  }
  return keep_(OwnerIn(key), IdIn(key), operation ? &*operation : nullptr);
}

// A row that cannot be written is one too old: a restart takes the work for interrupted, or finds its result.
void OperationTable::KeepSoon(const std::string& key) {
  if (!keep_) return;
  run_([this, key] { (void)Keep(key); });
}

}  // namespace intrawarp::server
