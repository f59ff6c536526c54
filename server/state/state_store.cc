// SPDX-License-Identifier: Apache-2.0
#include "server/state/state_store.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::state {
namespace {

std::string LockPath(const std::string& directory) { return directory + "/lock"; }
std::string CataloguePath(const std::string& directory) { return directory + "/catalogue.db"; }
std::string GenerationPath(const std::string& directory) { return directory + "/generation"; }

// Times and numbers beyond it are damaged.
constexpr int64_t kLargest = int64_t{1} << 62;

bool IsSound(const CatalogueClock& clock) {
  return clock.seen >= 0 && clock.seen < kLargest && clock.ahead > -kLargest && clock.ahead < kLargest &&
         clock.generation >= 0 && clock.generation < kLargest;
}

// 0 where there is no number.
absl::StatusOr<int64_t> ReadGeneration(FileLayer& files, const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<File>> file = files.Open(GenerationPath(directory), OpenMode::kRead);
  if (absl::IsNotFound(file.status())) return 0;
  INTRAWARP_RETURN_IF_ERROR(file.status());
  char text[24];
  INTRAWARP_ASSIGN_OR_RETURN(const size_t size, (*file)->ReadAt(0, text, sizeof(text)));
  int64_t generation = 0;
  const bool is_number = absl::SimpleAtoi(absl::string_view(text, size), &generation);
  return is_number && generation >= 0 && generation < kLargest ? generation : 0;
}

absl::Status WriteGeneration(FileLayer& files, const std::string& directory, int64_t generation) {
  const std::string path = GenerationPath(directory), temporary = path + ".new";
  const std::string text = absl::StrCat(generation, "\n");
  {
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(temporary, OpenMode::kWrite));
    INTRAWARP_RETURN_IF_ERROR(file->Truncate(0));
    INTRAWARP_RETURN_IF_ERROR(file->WriteAt(0, text.data(), text.size()));
    INTRAWARP_RETURN_IF_ERROR(file->Sync());
  }
  INTRAWARP_RETURN_IF_ERROR(files.Rename(temporary, path));
  return files.SyncDirectory(directory);
}

// The digests of the payloads that rows of objects or sessions need; also those of damaged rows, which a backup of the
// catalogue may mend.
template <typename Row>
void AddPayloads(const std::vector<Row>& rows, std::set<std::string>& payloads) {
  for (const Row& row : rows) {
    if (row.payload_bytes != 0) payloads.insert(row.payload);
  }
}

template <typename Row>
void VerifyPayload(const PayloadSpool& spool, const Row& row, const std::string& name, StateReport& report) {
  if (row.payload_bytes == 0) return;
  if (row.payload_bytes < 0 || __builtin_add_overflow(report.payload_bytes, row.payload_bytes, &report.payload_bytes)) {
    report.errors.push_back(absl::StrCat(name, ": its size is damaged"));
    return;
  }
  const absl::Status verified = spool.Verify(row.payload, row.payload_bytes);
  if (!verified.ok()) report.errors.push_back(absl::StrCat(name, ": ", std::string(verified.message())));
}

}  // namespace

DurablePayload::~DurablePayload() {
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
  INTRAWARP_ASSIGN_OR_RETURN(const PayloadSpool::Contents contents, spool_.List());
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
  INTRAWARP_RETURN_IF_ERROR(SetTime(now));
  INTRAWARP_RETURN_IF_ERROR(SortPayloads());
  INTRAWARP_RETURN_IF_ERROR(ExpireRows());
  (void)WriteClock();  // a disk that does not take it is asked again by Advance
  return absl::OkStatus();
}

// What has passed since the last start, as far as it can be believed.
absl::Status StateStore::SetTime(int64_t now) {
  INTRAWARP_ASSIGN_OR_RETURN(clock_, catalogue_->Clock());
  if (!IsSound(clock_)) return absl::DataLossError("catalogue: its clock is damaged");
  INTRAWARP_ASSIGN_OR_RETURN(written_generation_, ReadGeneration(files_, directory_));
  findings_.catalogue_generation = clock_.generation;
  findings_.spool_generation = written_generation_;
  clock_.generation = std::max(clock_.generation, written_generation_) + 1;
  const int64_t passed = now + clock_.ahead - clock_.seen;
  if (clock_.seen > 0 && (passed < 0 || passed > kLongestStop)) {
    findings_.clock_step = passed;
    clock_.ahead = clock_.seen - now;
  }
  ahead_ = clock_.ahead;
  clock_.seen = start_time_ = now + ahead_;
  return absl::OkStatus();
}

absl::Status StateStore::WriteClock() {
  const absl::Status written = catalogue_->SetClock(clock_);
  AfterTransaction(written.ok());
  INTRAWARP_RETURN_IF_ERROR(written);
  // The spool's number is never ahead of its own catalogue's.
  if (written_generation_ == clock_.generation) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(WriteGeneration(files_, directory_, clock_.generation));
  written_generation_ = clock_.generation;
  return absl::OkStatus();
}

absl::Status StateStore::Advance(int64_t time) {
  std::lock_guard<std::mutex> lock(mutex_);
  clock_.seen = std::max(clock_.seen, time);
  INTRAWARP_RETURN_IF_ERROR(WriteClock());
  return orphans_.RemoveOld(clock_.seen, kOrphanAge).status();
}

absl::StatusOr<Orphans::Amount> StateStore::CountOrphans() {
  std::lock_guard<std::mutex> lock(mutex_);
  return orphans_.Count();
}

absl::Status StateStore::ExpireRows() {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<ObjectRow> rows, catalogue_->List());
  for (const ObjectRow& row : rows) {
    if (!row.expire_time) continue;
    ++findings_.expiring;
    if (*row.expire_time <= start_time_) expired_.emplace(row.kind, row.id, row.owner);
  }
  findings_.expired = static_cast<int64_t>(expired_.size());
  findings_.expiring -= findings_.expired;
  const absl::Status removed = RemoveExpired();
  // A full disk takes no removal either; what is not expired can be served.
  return absl::IsResourceExhausted(removed) ? absl::OkStatus() : removed;
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

// Each payload where it belongs: in the spool when a row needs it, and otherwise with the orphans.
absl::Status StateStore::SortPayloads() {
  INTRAWARP_ASSIGN_OR_RETURN(const std::set<std::string> used, UsedPayloads());
  INTRAWARP_RETURN_IF_ERROR(spool_.RemoveTemporary().status());
  INTRAWARP_ASSIGN_OR_RETURN(const PayloadSpool::Contents contents, spool_.List());
  const std::set<std::string> there(contents.digests.begin(), contents.digests.end());
  std::vector<std::string> missing, unused;
  std::set_difference(used.begin(), used.end(), there.begin(), there.end(), std::back_inserter(missing));
  std::set_difference(there.begin(), there.end(), used.begin(), used.end(), std::back_inserter(unused));
  INTRAWARP_ASSIGN_OR_RETURN(findings_.brought_back, orphans_.BringBack(missing));
  // What cannot be moved, removed or counted does no harm where it is.
  if (orphans_.Take(unused, start_time_).ok()) findings_.orphaned = static_cast<int64_t>(unused.size());
  findings_.removed = orphans_.RemoveOld(start_time_, kOrphanAge).value_or(Orphans::Amount());
  findings_.orphans = orphans_.Count().value_or(Orphans::Amount());
  return absl::OkStatus();
}

bool StateStore::IsInUse(const std::string& digest) {
  if (handles_.count(digest) != 0 || doubtful_.count(digest) != 0) return true;
  const absl::StatusOr<bool> used = catalogue_->UsesPayload(digest);
  return !used.ok() || *used;
}

void StateStore::RemoveUnused(const std::string& digest) {
  if (!IsInUse(digest)) (void)spool_.Remove(digest);  // what it leaves, the next start moves
}

void StateStore::Release(const std::string& digest) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = handles_.find(digest);
  if (--it->second > 0) return;
  handles_.erase(it);
  RemoveUnused(digest);
}

absl::StatusOr<DurablePayload> StateStore::Keep(const std::string& digest, absl::Span<const char> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0) return DurablePayload(this, digest, 0);
  bool is_durable = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_ASSIGN_OR_RETURN(is_durable, catalogue_->UsesPayload(digest));
    ++handles_[digest];
  }
  DurablePayload payload(this, digest, size);
  // A payload that was damaged since is written again.
  if (is_durable && spool_.Verify(digest, size).ok()) return payload;
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

absl::Status StateStore::Commit(ObjectRow row, const DurablePayload& payload) {
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

absl::Status StateStore::CommitSession(SessionRow row, const DurablePayload& payload) {
  row.payload = payload.digest();
  row.payload_bytes = payload.bytes();
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_RETURN_IF_ERROR(RemoveExpired());
  INTRAWARP_ASSIGN_OR_RETURN(const std::string before, catalogue_->SessionPayload(row.id, row.owner));
  return ChangeSession(row, catalogue_->InsertSession(row), before);
}

absl::Status StateStore::UpdateSession(SessionRow row, const DurablePayload& payload) {
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
  INTRAWARP_ASSIGN_OR_RETURN(const CatalogueClock clock, catalogue->Clock());
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t generation, ReadGeneration(files, directory));
  if (clock.generation < generation) {
    report.errors.push_back(absl::StrCat("catalogue.db is an older copy: it has generation ", clock.generation,
                                         ", and spool/ has generation ", generation));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<ObjectRow> rows, catalogue->List());
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<SessionRow> sessions, catalogue->ListSessions());
  report.objects = static_cast<int64_t>(rows.size());
  report.sessions = static_cast<int64_t>(sessions.size());
  INTRAWARP_RETURN_IF_ERROR(catalogue->ListOperations().status());
  const PayloadSpool spool(files, directory + "/spool");
  for (const ObjectRow& row : rows) VerifyPayload(spool, row, ObjectName(row.kind, row.id), report);
  for (const SessionRow& row : sessions) VerifyPayload(spool, row, "sessions/" + row.id, report);
  INTRAWARP_ASSIGN_OR_RETURN(const PayloadSpool::Contents contents, spool.List());
  std::set<std::string> used;
  AddPayloads(rows, used);
  AddPayloads(sessions, used);
  report.leftover_files = static_cast<int64_t>(contents.others.size());
  for (const std::string& digest : contents.digests) report.leftover_files += used.count(digest) == 0 ? 1 : 0;
  INTRAWARP_ASSIGN_OR_RETURN(report.orphans, Orphans(files, spool, directory + "/orphaned").Count());
  return report;
}

}  // namespace intrawarp::state
