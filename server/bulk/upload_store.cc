// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/upload_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/base/seams.h"
#include "server/bulk/received_chunk.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {
namespace {

absl::Status TakenOver() {
  return WithReason(absl::AbortedError("another stream has taken over this upload"), v1::UPLOAD_TAKEN_OVER);
}

std::string KeyOf(const ObjectSpec& spec) { return OwnedKey(spec.upload_id, spec.owner); }

}  // namespace

void UploadWorkspace::Take(ReadyFn ready) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The caller lets go of the old task after the lock.
    if (taken_) return next_.swap(ready);
    taken_ = true;
  }
  ready(Hand());
}

std::shared_ptr<const Grant> UploadWorkspace::Hand() {
  return std::shared_ptr<const Grant>(&grant_, [self = shared_from_this()](const Grant*) { self->PassOn(); });
}

void UploadWorkspace::PassOn() {
  ReadyFn next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    next.swap(next_);
    taken_ = next != nullptr;
  }
  if (next) next(Hand());
}

UploadWriter::~UploadWriter() {
  if (upload_ == nullptr) return;
  const std::shared_ptr<UploadRecord> kept = upload_;  // let go after the lock
  std::lock_guard<std::mutex> lock(store_->mutex_);
  if (!IsCurrent()) return;
  if (upload_->received == 0) store_->Remove(upload_);
  upload_->has_writer = false;
  upload_->ended = nullptr;
  upload_->last_written = store_->seams_.steady_now();
}

int64_t UploadWriter::received() const {
  std::lock_guard<std::mutex> lock(store_->mutex_);
  return upload_->received;
}

absl::StatusOr<int64_t> UploadWriter::CurrentlyReceived() const {
  std::lock_guard<std::mutex> lock(store_->mutex_);
  if (!IsCurrent()) return TakenOver();
  return upload_->received;
}

absl::Status UploadWriter::Append(const wire::ReceivedChunk& chunk, int64_t max_bytes) {
  std::lock_guard<std::mutex> writing(upload_->writing);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t received, CurrentlyReceived());
  const bool goes_back = next_ < 0 && chunk.offset() >= 0 && chunk.offset() <= received;
  const int64_t offset = goes_back ? chunk.offset() : (next_ < 0 ? received : next_);
  INTRAWARP_RETURN_IF_ERROR(ValidatePlace(chunk, {offset, upload_->spec.total_bytes, max_bytes}));
  const int64_t known = std::min(received - offset, chunk.size());
  const int64_t fresh = chunk.size() - known;
  char* to = upload_->memory.data() + received;
  INTRAWARP_RETURN_IF_ERROR(CopyPayload(chunk, to, known));
  next_ = offset + chunk.size();
  if (fresh == 0) return absl::OkStatus();
  upload_->hash.Update(to, fresh);
  std::lock_guard<std::mutex> lock(store_->mutex_);
  upload_->received += fresh;
  upload_->last_written = store_->seams_.steady_now();
  return absl::OkStatus();
}

absl::Status UploadWriter::Verify() {
  std::lock_guard<std::mutex> writing(upload_->writing);
  INTRAWARP_RETURN_IF_ERROR(CurrentlyReceived().status());
  upload_->verified = upload_->verified || upload_->hash.Finish() == upload_->spec.content_digest;
  if (upload_->verified) return absl::OkStatus();
  return WithReason(FieldError(absl::StatusCode::kDataLoss, "header.sha256", "is not that of the bytes received"),
                    v1::DIGEST_MISMATCH);
}

absl::StatusOr<Grant> UploadWriter::Claim() {
  std::lock_guard<std::mutex> lock(store_->mutex_);
  if (!IsCurrent()) return TakenOver();
  store_->Remove(upload_);
  return TakeReservation(upload_->grant, upload_->spec);
}

void UploadWriter::Drop() {
  const std::shared_ptr<UploadRecord> dropped = std::move(upload_);  // freed after the lock
  std::lock_guard<std::mutex> lock(store_->mutex_);
  if (dropped->generation == generation_) store_->Remove(dropped);
}

void UploadStore::Remove(const Record& upload) {
  const auto it = uploads_.find(KeyOf(upload->spec));
  if (it != uploads_.end() && it->second == upload) uploads_.erase(it);
}

absl::StatusOr<UploadStore::Opened> UploadStore::FindOrAdd(const ObjectSpec& spec, EndedFn ended, Record& dropped) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = uploads_.find(KeyOf(spec));
  Record upload;
  if (it != uploads_.end() && !(it->second->spec == spec)) {
    dropped = std::move(it->second);
    ++dropped->generation;
    uploads_.erase(it);
    return WithReason(InvalidField("header", "is not the one that this upload began with"), v1::INVALID_FIELD);
  }
  if (it != uploads_.end()) {
    upload = it->second;
  } else {
    upload = std::make_shared<UploadRecord>();
    upload->spec = spec;
    uploads_.emplace(KeyOf(spec), upload);
  }
  upload->has_writer = true;
  upload->last_written = seams_.steady_now();
  return Opened{upload, ++upload->generation, std::exchange(upload->ended, std::move(ended))};
}

absl::Status UploadStore::ReserveMemory(UploadRecord& upload, int device) {
  const ObjectSpec& spec = upload.spec;
  Claim claim = ObjectClaim(spec, device);
  claim.uploads = 1;
  INTRAWARP_ASSIGN_OR_RETURN(upload.grant, ledger_.Admit(claim));
  upload.workspace = std::make_shared<UploadWorkspace>(upload.grant.Split({.workspace_bytes = spec.workspace_bytes}));
  if (spec.total_bytes == 0) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(upload.memory, StagingMemory::Reserve(spec.total_bytes));
  return absl::OkStatus();
}

absl::StatusOr<UploadWriter> UploadStore::Open(const ObjectSpec& spec, EndedFn ended, int device) {
  Record dropped;  // freed after the lock
  absl::StatusOr<Opened> opened = FindOrAdd(spec, std::move(ended), dropped);
  if (dropped != nullptr && dropped->ended) dropped->ended(TakenOver());
  INTRAWARP_RETURN_IF_ERROR(opened.status());
  if (opened->tell_before) opened->tell_before(TakenOver());
  UploadRecord& upload = *opened->upload;
  UploadWriter writer(this, opened->upload, opened->generation);
  absl::Status reserved;
  {
    std::lock_guard<std::mutex> writing(upload.writing);
    if (!std::exchange(upload.prepared, true)) upload.reserved = ReserveMemory(upload, device);
    reserved = upload.reserved;
  }
  if (reserved.ok()) return writer;
  writer.Drop();
  return reserved;
}

absl::StatusOr<UploadProgress> UploadStore::Progress(const std::string& upload_id, const std::string& owner) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = uploads_.find(OwnedKey(upload_id, owner));
  if (it == uploads_.end()) {
    return WithReason(absl::NotFoundError("there is no unfinished upload with this upload_id"), v1::RESOURCE_NOT_FOUND);
  }
  return UploadProgress{it->second->received, it->second->spec.total_bytes};
}

void UploadStore::Expire() {
  DropIdle(seams_.steady_now() - std::chrono::duration_cast<std::chrono::steady_clock::duration>(ttl_));
  slabs_.Retry();
}

void UploadStore::Clear() {
  slabs_.Clear();
  DropIdle(std::chrono::steady_clock::time_point::max());
}

// Drops uploads that were last written then or before.
void UploadStore::DropIdle(std::chrono::steady_clock::time_point last_written) {
  std::vector<Record> dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    const bool expired = !it->second->has_writer && it->second->last_written <= last_written;
    if (expired) dropped.push_back(std::move(it->second));
    it = expired ? uploads_.erase(it) : std::next(it);
  }
}

int64_t UploadStore::size(const Identity& caller) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(uploads_.begin(), uploads_.end(),
                       [&](const auto& entry) { return caller.MaySee(entry.second->spec.owner); });
}

}  // namespace intrawarp::server
