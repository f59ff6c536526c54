// SPDX-License-Identifier: Apache-2.0
#include "server/state/state_store.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::state {
namespace {

std::string LockPath(const std::string& directory) { return directory + "/lock"; }
std::string CataloguePath(const std::string& directory) { return directory + "/catalogue.db"; }

// The digests of the payloads that rows of objects or sessions need; also those of damaged rows, which a backup of the
// catalogue may mend.
template <typename Row>
void AddPayloads(const std::vector<Row>& rows, std::set<std::string>& payloads) {
  for (const Row& row : rows) {
    if (row.payload_bytes != 0) payloads.insert(row.payload);
  }
}

template <typename Row>
void VerifyPayload(const Spool& spool, const Row& row, const std::string& name, StateReport& report) {
  if (row.payload_bytes == 0) return;
  if (row.payload_bytes < 0 || __builtin_add_overflow(report.payload_bytes, row.payload_bytes, &report.payload_bytes)) {
    report.errors.push_back(absl::StrCat(name, ": its size is damaged"));
    return;
  }
  const absl::Status verified = spool.Verify(row.payload, row.payload_bytes);
  if (!verified.ok()) report.errors.push_back(absl::StrCat(name, ": ", std::string(verified.message())));
}

}  // namespace

KeptPayload::~KeptPayload() {
  if (store_ != nullptr && bytes_ > 0) store_->Release(digest_);
}

absl::StatusOr<std::unique_ptr<StateStore>> StateStore::Open(FileLayer& files, const std::string& directory,
                                                             int64_t now) {
  std::unique_ptr<StateStore> store(new StateStore(files, directory));
  INTRAWARP_RETURN_IF_ERROR(store->Start(now));
  return store;
}

// A new catalogue knows no payload: the sweep would remove them all.
absl::Status StateStore::CheckCatalogueIsThere() {
  const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(CataloguePath(directory_), OpenMode::kRead);
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  int64_t bytes = 0;
  if (file.ok()) {
    INTRAWARP_ASSIGN_OR_RETURN(bytes, (*file)->Size());
  }
  if (bytes > 0) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(const Spool::Contents contents, spool_.List());
  if (contents.digests.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("catalogue.db is missing or empty, and spool/ holds ", contents.digests.size(),
                   " payloads: bring the catalogue back, or empty spool/ to begin anew"));
}

absl::Status StateStore::Start(int64_t now) {
  INTRAWARP_ASSIGN_OR_RETURN(lock_, files_.Lock(LockPath(directory_)));
  INTRAWARP_RETURN_IF_ERROR(spool_.Create());
  INTRAWARP_RETURN_IF_ERROR(CheckCatalogueIsThere());
  INTRAWARP_ASSIGN_OR_RETURN(catalogue_, Catalogue::Open(files_, CataloguePath(directory_)));
  // The names of the catalogue and of the spool folder.
  INTRAWARP_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<ObjectRow> rows, catalogue_->List());
  for (const ObjectRow& row : rows) {
    if (row.expire_time && *row.expire_time <= now) expired_.emplace(row.kind, row.id, row.owner);
  }
  const absl::Status removed = RemoveExpired();
  // A full disk takes no removal either; what is not expired can be served.
  if (!removed.ok() && !absl::IsResourceExhausted(removed)) return removed;
  return SweepSpool();
}

absl::Status StateStore::RemoveExpired() {
  while (!expired_.empty()) {
    const auto& [kind, id, owner] = *expired_.begin();
    const absl::Status removed = RemoveRow(kind, id, owner);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    expired_.erase(expired_.begin());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> StateStore::UsedPayloads() {
  std::set<std::string> used;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<ObjectRow> rows, catalogue_->List());
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<SessionRow> sessions, catalogue_->ListSessions());
  AddPayloads(rows, used);
  AddPayloads(sessions, used);
  return used;
}

absl::Status StateStore::SweepSpool() {
  INTRAWARP_ASSIGN_OR_RETURN(const std::set<std::string> used, UsedPayloads());
  return spool_.Sweep([&](const std::string& digest) { return used.count(digest) != 0; }).status();
}

bool StateStore::IsInUse(const std::string& digest) {
  if (handles_.count(digest) != 0 || doubtful_.count(digest) != 0) return true;
  const absl::StatusOr<bool> used = catalogue_->UsesPayload(digest);
  return !used.ok() || *used;
}

void StateStore::RemoveUnused(const std::string& digest) {
  if (!IsInUse(digest)) (void)spool_.Remove(digest);  // what it leaves, the next start removes
}

void StateStore::Release(const std::string& digest) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = handles_.find(digest);
  if (--it->second > 0) return;
  handles_.erase(it);
  RemoveUnused(digest);
}

absl::StatusOr<KeptPayload> StateStore::Keep(const std::string& digest, absl::Span<const char> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0) return KeptPayload(this, digest, 0);
  bool is_kept = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_ASSIGN_OR_RETURN(is_kept, catalogue_->UsesPayload(digest));
    ++handles_[digest];
  }
  KeptPayload payload(this, digest, size);
  // A payload that was damaged since is written again.
  if (is_kept && spool_.Verify(digest, size).ok()) return payload;
  INTRAWARP_RETURN_IF_ERROR(spool_.Write(digest, bytes));
  return payload;
}

// The next transaction that succeeds takes the place of one that failed.
void StateStore::AfterTransaction(bool succeeded) {
  in_doubt_ = !succeeded;
  if (in_doubt_ && catalogue_->Settle().ok()) in_doubt_ = false;
  if (in_doubt_) return;
  for (const std::string& digest : std::exchange(doubtful_, {})) RemoveUnused(digest);
}

absl::Status StateStore::Commit(ObjectRow row, const KeptPayload& payload) {
  row.payload = payload.digest();
  row.payload_bytes = payload.bytes();
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_RETURN_IF_ERROR(RemoveExpired());
  const absl::Status inserted = catalogue_->Insert(row);
  if (absl::IsAlreadyExists(inserted)) return inserted;
  if (!inserted.ok() && row.payload_bytes > 0) doubtful_.insert(row.payload);
  AfterTransaction(inserted.ok());
  return inserted;
}

absl::Status StateStore::CommitSession(SessionRow row, const KeptPayload& payload) {
  row.payload = payload.digest();
  row.payload_bytes = payload.bytes();
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_RETURN_IF_ERROR(RemoveExpired());
  INTRAWARP_ASSIGN_OR_RETURN(const std::string before, catalogue_->SessionPayload(row.id, row.owner));
  return ChangeSession(row, catalogue_->InsertSession(row), before);
}

absl::Status StateStore::UpdateSession(SessionRow row, const KeptPayload& payload) {
  row.payload = payload.digest();
  row.payload_bytes = payload.bytes();
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_ASSIGN_OR_RETURN(const std::string before, catalogue_->SessionPayload(row.id, row.owner));
  return ChangeSession(row, catalogue_->UpdateSession(row), before);
}

absl::Status StateStore::RemoveSession(const std::string& id, const std::string& owner,
                                       const std::string& incarnation) {
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_ASSIGN_OR_RETURN(const std::string before, catalogue_->SessionPayload(id, owner));
  return ChangeSession({}, catalogue_->RemoveSession(id, owner, incarnation), before);
}

// After a transaction that gave the session the payload of `row`.
absl::Status StateStore::ChangeSession(const SessionRow& row, const absl::Status& changed,
                                       const std::string& payload_before) {
  if (absl::IsNotFound(changed)) return changed;
  if (!changed.ok() && row.payload_bytes > 0) doubtful_.insert(row.payload);
  AfterTransaction(changed.ok());
  if (changed.ok() && !payload_before.empty()) RemoveUnused(payload_before);
  return changed;
}

absl::Status StateStore::PutOperation(const OperationRow& row) {
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_RETURN_IF_ERROR(RemoveExpired());
  const absl::Status put = catalogue_->PutOperation(row);
  AfterTransaction(put.ok());
  return put;
}

absl::Status StateStore::RemoveOperation(const std::string& id, const std::string& owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status removed = catalogue_->RemoveOperation(id, owner);
  AfterTransaction(removed.ok());
  return removed;
}

absl::Status StateStore::Remove(ObjectKind kind, const std::string& id, const std::string& owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  return RemoveRow(kind, id, owner);
}

absl::Status StateStore::RemoveRow(ObjectKind kind, const std::string& id, const std::string& owner) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string payload, catalogue_->PayloadOf(kind, id, owner));
  const absl::Status removed = catalogue_->Remove(kind, id, owner);
  AfterTransaction(removed.ok());
  if (removed.ok() && !payload.empty()) RemoveUnused(payload);
  return removed;
}

absl::StatusOr<std::vector<ObjectRow>> StateStore::List() {
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<ObjectRow> rows, catalogue_->List());
  std::erase_if(rows, [&](const ObjectRow& row) { return expired_.count({row.kind, row.id, row.owner}) != 0; });
  return rows;
}

absl::StatusOr<std::vector<SessionRow>> StateStore::ListSessions() {
  std::lock_guard<std::mutex> lock(mutex_);
  return catalogue_->ListSessions();
}

absl::StatusOr<std::vector<OperationRow>> StateStore::ListOperations() {
  std::lock_guard<std::mutex> lock(mutex_);
  return catalogue_->ListOperations();
}

absl::Status StateStore::Read(const std::string& digest, absl::Span<char> to) {
  return to.empty() ? absl::OkStatus() : spool_.Read(digest, to);
}

int64_t StateStore::FreeBytes() const { return files_.FreeBytes(directory_).value_or(0); }

absl::StatusOr<StateReport> CheckState(FileLayer& files, const std::string& directory) {
  INTRAWARP_ASSIGN_OR_RETURN(const bool exists, files.Exists(CataloguePath(directory)));
  if (!exists) return absl::NotFoundError(absl::StrCat(directory, " holds no catalogue"));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<DirectoryLock> lock, files.Lock(LockPath(directory)));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Catalogue> catalogue,
                             Catalogue::Open(files, CataloguePath(directory)));
  StateReport report;
  const absl::Status sound = catalogue->CheckIntegrity();
  if (!sound.ok()) report.errors.push_back(std::string(sound.message()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<ObjectRow> rows, catalogue->List());
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<SessionRow> sessions, catalogue->ListSessions());
  report.objects = static_cast<int64_t>(rows.size());
  report.sessions = static_cast<int64_t>(sessions.size());
  INTRAWARP_RETURN_IF_ERROR(catalogue->ListOperations().status());
  const Spool spool(files, directory + "/spool");
  for (const ObjectRow& row : rows) VerifyPayload(spool, row, ObjectName(row.kind, row.id), report);
  for (const SessionRow& row : sessions) VerifyPayload(spool, row, "sessions/" + row.id, report);
  INTRAWARP_ASSIGN_OR_RETURN(const Spool::Contents contents, spool.List());
  std::set<std::string> used;
  AddPayloads(rows, used);
  AddPayloads(sessions, used);
  report.leftover_files = static_cast<int64_t>(contents.others.size());
  for (const std::string& digest : contents.digests) report.leftover_files += used.count(digest) == 0 ? 1 : 0;
  return report;
}

}  // namespace intrawarp::state
