// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/holdings.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/bench/breath.h"
#include "client/cli/bench/call_record.h"

namespace intrawarp::cli::bench {
namespace {

// Cleaning up is not cancelled by Ctrl-C, so it must end by itself.
constexpr std::chrono::milliseconds kDeleteTimeout(10000);

absl::Status DeleteName(const std::string& name, client::Client& client) {
  const client::CallOptions options = {.timeout = kDeleteTimeout};
  if (absl::StartsWith(name, "volumes/")) return client.DeleteVolume(name, options);
  if (absl::StartsWith(name, "transforms/")) return client.DeleteTransform(name, options);
  return client.DeleteSparseMatrix(name, options);
}

bool DoesNotAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

Holdings::Holdings(client::Client* client, std::string run) : client_(client), run_(std::move(run)) {}

std::string Holdings::New(const std::string& collection) {
  std::lock_guard<std::mutex> lock(mutex_);
  return *names_.insert(absl::StrCat(collection, "bench-", run_, "-", ++last_)).first;
}

absl::Status Holdings::Delete(const std::string& name, client::Client& client) {
  const absl::Status status = DeleteName(name, client);
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  std::lock_guard<std::mutex> lock(mutex_);
  names_.erase(name);
  return absl::OkStatus();
}

absl::Status Holdings::Release(const std::string& name, const absl::Status& made, client::Client& client) {
  if (made.ok()) return Delete(name, client);
  if (FateOf(made) != Fate::kRefused) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  names_.erase(name);
  return absl::OkStatus();
}

absl::Status Holdings::DeleteAll() {
  std::set<std::string> names;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    names = names_;
  }
  absl::Status first;
  for (const std::string& name : names) {
    const absl::Status status = Delete(name, *client_);
    if (first.ok()) first = status;
    if (DoesNotAnswer(status)) break;
  }
  return first;
}

int64_t Holdings::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(names_.size());
}

std::string IdOf(const std::string& name) { return name.substr(name.find('/') + 1); }

absl::Status UploadVolumeAs(const std::string& name, const io::HostVolume& volume, client::Client& client,
                            const client::CallOptions& options) {
  client::VolumeUpload upload;
  upload.id = IdOf(name);
  upload.geometry = volume.geometry;
  upload.pixel_type = volume.pixel_type;
  upload.bytes = BytesOf(volume);
  return client.UploadVolume(upload, options).status();
}

absl::Status UploadMatrixAs(const std::string& name, const client::SparseMatrix& matrix, client::Client& client,
                            const client::CallOptions& options) {
  client::SparseMatrixUpload upload;
  upload.id = IdOf(name);
  upload.matrix = &matrix;
  return client.UploadSparseMatrix(upload, options).status();
}

}  // namespace intrawarp::cli::bench
