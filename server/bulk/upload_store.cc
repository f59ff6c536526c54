// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/upload_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {

absl::Status ValidateDigest(absl::string_view digest) {
  if (digest.size() == io::Sha256::kBytes) return absl::OkStatus();
  return InvalidField("digest", absl::StrCat("has ", digest.size(), " bytes, a SHA-256 has ", io::Sha256::kBytes));
}

absl::Status ValidateUploadId(absl::string_view upload_id, absl::string_view field) {
  constexpr int kMaxCharacters = 64;
  // protobuf has made sure that it is UTF-8; bytes that continue a character are 10xxxxxx.
  const auto characters = std::count_if(upload_id.begin(), upload_id.end(), [](char c) { return (c & 0xc0) != 0x80; });
  if (characters >= 1 && characters <= kMaxCharacters) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must have 1 to ", kMaxCharacters, " characters"));
}

UploadWriter::~UploadWriter() {
  if (upload_ == nullptr) return;
  std::lock_guard<std::mutex> lock(store_->mutex_);
  upload_->busy = false;
  upload_->last_written = store_->seams_.steady_now();
}

absl::Status UploadWriter::Append(const ReceivedChunk& chunk) {
  const int64_t received = upload_->received;
  if (chunk.offset() != received) {
    return FieldError(absl::StatusCode::kOutOfRange, "chunk.offset",
                      absl::StrCat("is ", chunk.offset(), ", the next chunk must begin at ", received));
  }
  if (chunk.size() > spec().total_bytes - received) {
    return FieldError(absl::StatusCode::kOutOfRange, "chunk.data",
                      absl::StrCat("passes the end of the ", spec().total_bytes, " bytes announced"));
  }
  char* to = upload_->memory->as<char>() + received;
  chunk.CopyTo(to);
  upload_->hash.Update(to, chunk.size());
  std::lock_guard<std::mutex> lock(store_->mutex_);
  upload_->received += chunk.size();
  return absl::OkStatus();
}

absl::Status UploadWriter::Verify() {
  upload_->verified = upload_->verified || upload_->hash.Finish() == spec().content_digest;
  if (upload_->verified) return absl::OkStatus();
  return WithReason(
      FieldError(absl::StatusCode::kDataLoss, "header.digest", "is not the SHA-256 of the bytes received"),
      v1::DIGEST_MISMATCH);
}

void UploadWriter::Drop() {
  {
    std::lock_guard<std::mutex> lock(store_->mutex_);
    store_->uploads_.erase(spec().upload_id);
  }
  upload_.reset();
}

absl::StatusOr<std::shared_ptr<Upload>> UploadStore::Resume(const UploadSpec& spec) {
  std::shared_ptr<Upload> dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = uploads_.find(spec.upload_id);
  if (it == uploads_.end()) {
    if (static_cast<int>(uploads_.size()) >= max_uploads_) {
      return WithReason(absl::ResourceExhaustedError(absl::StrCat(max_uploads_, " uploads are unfinished, the limit")),
                        v1::TOO_MANY_UPLOADS);
    }
    uploads_.emplace(spec.upload_id, nullptr);  // holds the place
    return nullptr;
  }
  if (it->second == nullptr || it->second->busy) {
    return WithReason(absl::AbortedError("another stream writes this upload"), v1::UPLOAD_TAKEN_OVER);
  }
  if (!(it->second->spec == spec)) {
    dropped = std::move(it->second);
    uploads_.erase(it);
    return WithReason(InvalidField("header", "is not the one that this upload began with"), v1::INVALID_FIELD);
  }
  it->second->busy = true;
  return it->second;
}

absl::StatusOr<UploadWriter> UploadStore::Open(const UploadSpec& spec) {
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<Upload> resumed, Resume(spec));
  if (resumed != nullptr) return UploadWriter(this, std::move(resumed));
  auto upload = std::make_shared<Upload>();
  upload->spec = spec;
  const auto reserve = [&]() -> absl::Status {
    INTRAWARP_ASSIGN_OR_RETURN(upload->reservation, budget_.Reserve(spec.resident_bytes));
    absl::StatusOr<std::shared_ptr<PinnedBuffer>> memory = pinned_.Lease(spec.total_bytes);
    if (!memory.ok()) return WithReason(memory.status(), v1::PINNED_MEMORY);
    upload->memory = *std::move(memory);
    return absl::OkStatus();
  };
  const absl::Status reserved = reserve();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!reserved.ok()) {
    uploads_.erase(spec.upload_id);
    return reserved;
  }
  uploads_[spec.upload_id] = upload;
  return UploadWriter(this, std::move(upload));
}

absl::StatusOr<UploadProgress> UploadStore::Progress(const std::string& upload_id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = uploads_.find(upload_id);
  if (it == uploads_.end() || it->second == nullptr) {
    return WithReason(absl::NotFoundError("there is no unfinished upload with this upload_id"), v1::RESOURCE_NOT_FOUND);
  }
  return UploadProgress{it->second->received, it->second->spec.total_bytes};
}

void UploadStore::Expire() {
  DropIdle(seams_.steady_now() - std::chrono::duration_cast<std::chrono::steady_clock::duration>(ttl_));
}
void UploadStore::Clear() { DropIdle(std::chrono::steady_clock::time_point::max()); }

// Those last written then or before.
void UploadStore::DropIdle(std::chrono::steady_clock::time_point last_written) {
  std::vector<std::shared_ptr<Upload>> dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    const bool expired = it->second != nullptr && !it->second->busy && it->second->last_written <= last_written;
    if (expired) dropped.push_back(std::move(it->second));
    it = expired ? uploads_.erase(it) : std::next(it);
  }
}

int64_t UploadStore::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(uploads_.size());
}

}  // namespace intrawarp::server
