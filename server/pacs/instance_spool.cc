// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/instance_spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

constexpr size_t kMaxSeries = 4096;

absl::Status Full(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat("the DICOM spool is full: ", what));
}

absl::Status DiskError() {
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) return Full("the disk");
  return absl::UnavailableError("the DICOM spool cannot be written");
}

// The names that a spool gives.
bool IsOurs(const std::filesystem::path& path) {
  const std::string text = path.filename().string();
  absl::string_view name = text;
  if (!absl::ConsumePrefix(&name, "in") && !absl::ConsumePrefix(&name, "series")) return false;
  return !name.empty() && name.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Removes what an earlier spool has left; a folder with anything else was named by mistake.
absl::Status Empty(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) return absl::FailedPreconditionError("must be a folder that exists");
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!IsOurs(entry.path())) return absl::FailedPreconditionError("must hold nothing but a spool's files");
  }
  for (const auto& entry : entries) {
    std::filesystem::remove_all(entry.path(), error);
    if (error) return absl::FailedPreconditionError("holds what cannot be removed");
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("must be writable");
}

}  // namespace

SpooledFile::SpooledFile(InstanceSpool& spool, const DicomPeer& peer, std::string path, int fd)
    : spool_(spool), peer_(peer), path_(std::move(path)), fd_(fd) {}

SpooledFile::~SpooledFile() {
  if (fd_ >= 0) close(fd_);
  unlink(path_.c_str());
  spool_.Give(peer_, bytes_, 1);
}

absl::Status SpooledFile::Append(absl::string_view bytes) {
  INTRAWARP_RETURN_IF_ERROR(spool_.Take(peer_, static_cast<int64_t>(bytes.size()), 0));
  bytes_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t put = write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return DiskError();
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

absl::Status SpooledFile::Close() { return close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : DiskError(); }

GatheredSeries::~GatheredSeries() {
  files.clear();
  if (!folder.empty()) rmdir(folder.c_str());
}

absl::StatusOr<std::unique_ptr<InstanceSpool>> InstanceSpool::Open(SpoolOptions options) {
  INTRAWARP_RETURN_IF_ERROR(Empty(options.folder));
  return std::unique_ptr<InstanceSpool>(new InstanceSpool(std::move(options)));
}

absl::Status InstanceSpool::Take(const DicomPeer& peer, int64_t bytes, int64_t instances) {
  std::lock_guard<std::mutex> lock(mutex_);
  Use& own = peers_[peer.ae_title];
  if (bytes > options_.max_bytes - use_.bytes) return Full("its bytes");
  if (bytes > peer.max_bytes - own.bytes) return Full("the peer's bytes");
  if (instances > options_.max_instances - use_.instances) return Full("its instances");
  if (instances > peer.max_instances - own.instances) return Full("the peer's instances");
  for (Use* use : {&use_, &own}) {
    use->bytes += bytes;
    use->instances += instances;
  }
  return absl::OkStatus();
}

void InstanceSpool::Give(const DicomPeer& peer, int64_t bytes, int64_t instances) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Use* use : {&use_, &peers_[peer.ae_title]}) {
    use->bytes -= bytes;
    use->instances -= instances;
  }
}

absl::StatusOr<std::unique_ptr<SpooledFile>> InstanceSpool::NewFile(const DicomPeer& peer) {
  INTRAWARP_RETURN_IF_ERROR(Take(peer, 0, 1));
  std::string path;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    path = absl::StrCat(options_.folder, "/in", next_name_++);
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd >= 0) return std::make_unique<SpooledFile>(*this, peer, std::move(path), fd);
  const absl::Status error = DiskError();
  Give(peer, 0, 1);
  return error;
}

// With the mutex held.
absl::StatusOr<std::unique_ptr<GatheredSeries>> InstanceSpool::MakeSeries(const SeriesKey& key) {
  auto series = std::make_unique<GatheredSeries>();
  const std::string folder = absl::StrCat(options_.folder, "/series", next_name_++);
  if (mkdir(folder.c_str(), 0700) != 0) return DiskError();
  series->folder = folder;
  series->key = key;
  return series;
}

// With the mutex held.
absl::StatusOr<InstanceSpool::Gathering*> InstanceSpool::Find(const SeriesKey& key) {
  const auto it = gatherings_.find(key);
  if (it != gatherings_.end()) return &it->second;
  if (gatherings_.size() >= kMaxSeries) return Full("its series");
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<GatheredSeries> series, MakeSeries(key));
  Gathering& made = gatherings_[key];
  made.series = std::move(series);
  return &made;
}

// With the mutex held. A name of its own: the file that it replaces is removed by its name.
absl::Status InstanceSpool::MoveInto(GatheredSeries& series, SpooledFile& file) {
  const std::string path = absl::StrCat(series.folder, "/", next_name_++);
  if (rename(file.path_.c_str(), path.c_str()) != 0) return DiskError();
  file.path_ = path;
  return absl::OkStatus();
}

absl::Status InstanceSpool::Add(const SeriesKey& key, const std::string& instance, std::unique_ptr<SpooledFile> file,
                                int64_t association) {
  std::unique_ptr<SpooledFile> replaced;  // goes after the lock, which it takes
  std::lock_guard<std::mutex> lock(mutex_);
  INTRAWARP_ASSIGN_OR_RETURN(Gathering * gathering, Find(key));
  INTRAWARP_RETURN_IF_ERROR(MoveInto(*gathering->series, *file));
  replaced = std::exchange(gathering->series->files[instance], std::move(file));
  expected_[key.peer].erase(instance);
  gathering->open.insert(association);
  gathering->last = options_.now();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GatheredSeries>> InstanceSpool::NewSeries(const SeriesKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return MakeSeries(key);
}

absl::Status InstanceSpool::AddTo(GatheredSeries& series, const std::string& instance,
                                  std::unique_ptr<SpooledFile> file) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_RETURN_IF_ERROR(MoveInto(series, *file));
  }
  series.files[instance] = std::move(file);
  return absl::OkStatus();
}

absl::Status InstanceSpool::Expect(const DicomPeer& peer, const std::string& instance) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& expected = expected_[peer.ae_title];
  if (static_cast<int64_t>(expected.size()) >= peer.max_instances) return Full("the peer's instances");
  expected[instance] = options_.now();
  return absl::OkStatus();
}

void InstanceSpool::Unexpect(const DicomPeer& peer, const std::string& instance) {
  std::lock_guard<std::mutex> lock(mutex_);
  expected_[peer.ae_title].erase(instance);
}

void InstanceSpool::EndAssociation(int64_t association, bool complete, int64_t newest) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, gathering] : gatherings_) {
    if (gathering.open.erase(association) == 0) continue;
    gathering.last = options_.now();
    if (!complete) {
      gathering.incomplete = true;
      gathering.broken_at = newest;
    } else if (association > gathering.broken_at) {
      gathering.incomplete = false;
    }
  }
}

// With the mutex held.
void InstanceSpool::DropOverdue(std::chrono::steady_clock::time_point now) {
  for (auto& [peer, instances] : expected_) {
    const size_t overdue =
        std::erase_if(instances, [&](const auto& expected) { return now - expected.second >= options_.patience; });
    if (overdue == 0) continue;
    for (auto& [key, gathering] : gatherings_) gathering.incomplete |= key.peer == peer;
  }
}

std::unique_ptr<GatheredSeries> InstanceSpool::TakeReady() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = options_.now();
  DropOverdue(now);
  for (auto it = gatherings_.begin(); it != gatherings_.end(); ++it) {
    Gathering& gathering = it->second;
    if (!gathering.open.empty()) continue;
    const bool given_up = gathering.incomplete && now - gathering.last >= options_.patience;
    const bool is_whole = !gathering.incomplete && expected_[it->first.peer].empty();
    const bool is_quiet = is_whole && now - gathering.last >= options_.quiet;
    if (!given_up && !is_quiet) continue;
    std::unique_ptr<GatheredSeries> series = std::move(gathering.series);
    series->given_up = given_up;
    gatherings_.erase(it);
    return series;
  }
  return nullptr;
}

int64_t InstanceSpool::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_.bytes;
}

int64_t InstanceSpool::instances() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_.instances;
}

int64_t InstanceSpool::series() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(gatherings_.size());
}

}  // namespace intrawarp::server
