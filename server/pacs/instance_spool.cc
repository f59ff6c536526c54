// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/instance_spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "server/dimse/pdu.h"

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

// In the folder of a series: none of its instances is missing.
constexpr char kWhole[] = "whole";

// Takes the digits at the begin of a name; false when there are none.
bool ConsumeNumber(absl::string_view* name, int64_t* number) {
  const size_t digits = std::min(name->find_first_not_of("0123456789"), name->size());
  if (!absl::SimpleAtoi(name->substr(0, digits), number)) return false;
  name->remove_prefix(digits);
  return true;
}

// A name that a spool gives in its folder: "in7" for a file that comes, "series7-SERIES-AE_TITLE" for a series.
struct OwnName {
  int64_t number = 0;
  bool is_series = false;
  SeriesKey key;
};

std::optional<OwnName> ParseOwnName(const std::filesystem::path& path) {
  const std::string text = path.filename().string();
  absl::string_view name = text;
  OwnName own;
  own.is_series = absl::ConsumePrefix(&name, "series");
  if (!own.is_series && !absl::ConsumePrefix(&name, "in")) return std::nullopt;
  if (!ConsumeNumber(&name, &own.number)) return std::nullopt;
  if (name.empty()) return own;
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('-', 2));
  const bool is_key = own.is_series && parts.size() == 3 && parts[0].empty() && !parts[1].empty() &&
                      parts[1].find_first_not_of("0123456789abcdef") == std::string::npos && dimse::IsAeTitle(parts[2]);
  if (!is_key) return std::nullopt;
  own.key = {parts[2], parts[1]};
  return own;
}

// The instance and the number of "INSTANCE.7".
std::optional<std::pair<std::string, int64_t>> ParseInstanceName(const std::string& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string::npos || dot == 0) return std::nullopt;
  absl::string_view rest = absl::string_view(text).substr(dot + 1);
  int64_t number = 0;
  if (!ConsumeNumber(&rest, &number) || !rest.empty()) return std::nullopt;
  return std::pair(text.substr(0, dot), number);
}

// An instance that an earlier spool has left in the folder of its series.
struct KeptFile {
  std::string path;
  std::string instance;
  int64_t number = 0;
  int64_t bytes = 0;
};

std::vector<KeptFile> KeptFilesOf(const std::string& folder) {
  std::vector<KeptFile> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = ParseInstanceName(entry->path().filename().string());
    std::error_code unknown;
    const auto bytes = static_cast<int64_t>(entry->file_size(unknown));
    if (!name || unknown || !entry->is_regular_file(unknown)) continue;
    files.push_back({entry->path().string(), name->first, name->second, bytes});
  }
  return files;
}

absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return DiskError();
  const absl::Status synced = fsync(fd) == 0 || errno == EINVAL ? absl::OkStatus() : DiskError();
  close(fd);
  return synced;
}

// A folder with anything else was named by mistake.
absl::StatusOr<std::vector<std::pair<std::string, OwnName>>> OwnEntries(const std::string& folder) {
  std::error_code error;
  std::vector<std::pair<std::string, OwnName>> own;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::optional<OwnName> name = ParseOwnName(entry->path());
    if (!name) return absl::FailedPreconditionError("must hold nothing but a spool's files");
    own.emplace_back(entry->path().string(), *std::move(name));
  }
  if (error) return absl::FailedPreconditionError("must be a folder that exists");
  if (access(folder.c_str(), W_OK | X_OK) != 0) return absl::FailedPreconditionError("must be writable");
  return own;
}

}  // namespace

SpooledFile::SpooledFile(InstanceSpool& spool, const DicomPeer& peer, std::string path, int fd, bool keep)
    : spool_(spool), peer_(peer), path_(std::move(path)), fd_(fd), keep_(keep) {}

SpooledFile::~SpooledFile() {
  if (fd_ >= 0) close(fd_);
  if (!stays_) unlink(path_.c_str());
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

absl::Status SpooledFile::Close() {
  const absl::Status synced = keep_ && fsync(fd_) != 0 ? DiskError() : absl::OkStatus();
  const absl::Status closed = close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : DiskError();
  return synced.ok() ? closed : synced;
}

GatheredSeries::~GatheredSeries() {
  const bool stays = std::any_of(files.begin(), files.end(), [](const auto& file) { return file.second->stays_; });
  if (is_marked_ && !stays) {
    // The mark goes first, also on the disk: the files that a crash leaves are no whole series.
    unlink(absl::StrCat(folder, "/", kWhole).c_str());
    (void)SyncFolder(folder);
  }
  files.clear();
  if (!folder.empty() && !stays) rmdir(folder.c_str());
}

absl::StatusOr<std::unique_ptr<InstanceSpool>> InstanceSpool::Open(SpoolOptions options) {
  std::unique_ptr<InstanceSpool> spool(new InstanceSpool(std::move(options)));
  INTRAWARP_RETURN_IF_ERROR(spool->Recover());
  return spool;
}

InstanceSpool::~InstanceSpool() {
  if (!options_.keep) return;
  for (auto& [key, gathering] : gatherings_) {
    for (auto& [instance, file] : gathering.series->files) file->stays_ = true;
  }
}

// Nobody else has the spool yet.
absl::Status InstanceSpool::Recover() {
  INTRAWARP_ASSIGN_OR_RETURN(const auto entries, OwnEntries(options_.folder));
  for (const auto& [path, name] : entries) next_name_ = std::max(next_name_, name.number + 1);
  for (const auto& [path, name] : entries) {
    const bool has_key = options_.keep && !name.key.series.empty();
    if (has_key && !options_.peer) {
      CountSeries(path);
      continue;
    }
    if (const DicomPeer* const peer = has_key ? options_.peer(name.key.peer) : nullptr) {
      RecoverSeries(path, name.key, *peer);
      continue;
    }
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return absl::FailedPreconditionError("holds what cannot be removed");
  }
  return absl::OkStatus();
}

// One of two folders of a series, of which a stop came in between, is merged into the other.
void InstanceSpool::RecoverSeries(const std::string& folder, const SeriesKey& key, const DicomPeer& peer) {
  auto series = std::make_unique<GatheredSeries>();
  series->folder = folder;
  series->key = key;
  std::error_code error;
  series->is_marked_ = std::filesystem::exists(absl::StrCat(folder, "/", kWhole), error);
  std::map<std::string, int64_t> numbers;
  for (const KeptFile& kept : KeptFilesOf(folder)) {
    next_name_ = std::max(next_name_, kept.number + 1);
    auto file = std::make_unique<SpooledFile>(*this, peer, kept.path, -1, /*keep=*/true);
    file->bytes_ = kept.bytes;
    for (Use* use : {&use_, &peers_[peer.ae_title]}) use->bytes += kept.bytes, ++use->instances;
    // The later one of two, which was to replace the other, counts.
    std::unique_ptr<SpooledFile>& slot = series->files[kept.instance];
    if (slot == nullptr || numbers[kept.instance] < kept.number) {
      numbers[kept.instance] = kept.number;
      slot.swap(file);
    }
  }
  if (series->files.empty()) return;
  const bool is_marked = series->is_marked_;
  const auto it = gatherings_.find(key);
  const bool was_marked = it == gatherings_.end() || it->second.series->is_marked_;
  PutBack(std::move(series), options_.now());
  Gathering& gathering = gatherings_[key];
  gathering.series->was_put_back = false;
  gathering.incomplete = !is_marked || !was_marked;
  if (gathering.incomplete) Unmark(*gathering.series);
}

void InstanceSpool::CountSeries(const std::string& folder) {
  for (const KeptFile& kept : KeptFilesOf(folder)) {
    use_.bytes += kept.bytes;
    ++use_.instances;
  }
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

absl::StatusOr<std::unique_ptr<SpooledFile>> InstanceSpool::NewFile(const DicomPeer& peer, bool keep) {
  INTRAWARP_RETURN_IF_ERROR(Take(peer, 0, 1));
  std::string path;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    path = absl::StrCat(options_.folder, "/in", next_name_++);
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd >= 0) return std::make_unique<SpooledFile>(*this, peer, std::move(path), fd, keep);
  const absl::Status error = DiskError();
  Give(peer, 0, 1);
  return error;
}

// With the mutex held.
absl::StatusOr<std::unique_ptr<GatheredSeries>> InstanceSpool::MakeSeries(const SeriesKey& key, bool keep) {
  auto series = std::make_unique<GatheredSeries>();
  std::string folder = absl::StrCat(options_.folder, "/series", next_name_++);
  if (keep) absl::StrAppend(&folder, "-", key.series, "-", key.peer);
  if (mkdir(folder.c_str(), 0700) != 0) return DiskError();
  if (keep) INTRAWARP_RETURN_IF_ERROR(SyncFolder(options_.folder));
  series->folder = folder;
  series->key = key;
  return series;
}

// With the mutex held.
absl::StatusOr<InstanceSpool::Gathering*> InstanceSpool::Find(const SeriesKey& key) {
  const auto it = gatherings_.find(key);
  if (it != gatherings_.end()) return &it->second;
  if (gatherings_.size() >= kMaxSeries) return Full("its series");
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<GatheredSeries> series, MakeSeries(key, options_.keep));
  Gathering& made = gatherings_[key];
  made.series = std::move(series);
  return &made;
}

// A name of its own: the file that it replaces is removed by its name.
absl::Status InstanceSpool::MoveInto(GatheredSeries& series, const std::string& instance, SpooledFile& file) {
  const std::string path = absl::StrCat(series.folder, "/", instance, ".", next_name_++);
  if (rename(file.path_.c_str(), path.c_str()) != 0) return DiskError();
  file.path_ = path;
  return absl::OkStatus();
}

absl::Status InstanceSpool::Add(const SeriesKey& key, const std::string& instance, std::unique_ptr<SpooledFile> file,
                                int64_t association) {
  std::unique_ptr<SpooledFile> replaced;  // goes after the lock, which it takes
  std::string folder;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_ASSIGN_OR_RETURN(Gathering * gathering, Find(key));
    GatheredSeries& series = *gathering->series;
    INTRAWARP_RETURN_IF_ERROR(MoveInto(series, instance, *file));
    Unmark(series);
    replaced = std::exchange(series.files[instance], std::move(file));
    expected_[key.peer].Erase(instance);
    gathering->open.insert(association);
    gathering->last = options_.now();
    folder = series.folder;
  }
  // The association is open, so that nobody takes the series meanwhile.
  return options_.keep ? SyncFolder(folder) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GatheredSeries>> InstanceSpool::NewSeries(const SeriesKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return MakeSeries(key, /*keep=*/false);
}

absl::Status InstanceSpool::AddTo(GatheredSeries& series, const std::string& instance,
                                  std::unique_ptr<SpooledFile> file) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_RETURN_IF_ERROR(MoveInto(series, instance, *file));
  }
  series.files[instance] = std::move(file);
  return absl::OkStatus();
}

bool InstanceSpool::IsWhole(const SeriesKey& key, const Gathering& gathering) const {
  const auto expected = expected_.find(key.peer);
  const bool may_miss = expected != expected_.end() && expected->second.Holds(key.series);
  return gathering.open.empty() && !gathering.incomplete && !may_miss;
}

// Without the mark the series waits for its peer after a restart.
void InstanceSpool::Mark(GatheredSeries& series) {
  if (!options_.keep || series.is_marked_) return;
  const int fd = open(absl::StrCat(series.folder, "/", kWhole).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  close(fd);
  series.is_marked_ = true;
  (void)SyncFolder(series.folder);
}

void InstanceSpool::Unmark(GatheredSeries& series) {
  if (!series.is_marked_) return;
  unlink(absl::StrCat(series.folder, "/", kWhole).c_str());
  series.is_marked_ = false;
}

void InstanceSpool::Expected::Put(const std::string& instance, Missing missing) {
  Erase(instance);
  ++of_series[missing.series];
  instances[instance] = std::move(missing);
}

void InstanceSpool::Expected::Erase(const std::string& instance) {
  const auto it = instances.find(instance);
  if (it == instances.end()) return;
  const auto count = of_series.find(it->second.series);
  if (--count->second == 0) of_series.erase(count);
  instances.erase(it);
}

absl::Status InstanceSpool::Expect(const DicomPeer& peer, const std::string& instance) {
  std::lock_guard<std::mutex> lock(mutex_);
  Expected& expected = expected_[peer.ae_title];
  if (static_cast<int64_t>(expected.instances.size()) >= peer.max_instances) return Full("the peer's instances");
  expected.Put(instance, {options_.now(), ""});
  return absl::OkStatus();
}

void InstanceSpool::Attribute(const SeriesKey& key, const std::string& instance) {
  std::lock_guard<std::mutex> lock(mutex_);
  Expected& expected = expected_[key.peer];
  if (!expected.instances.contains(instance)) return;
  expected.Put(instance, {options_.now(), key.series});
  const auto it = gatherings_.find(key);
  if (it != gatherings_.end()) Unmark(*it->second.series);
}

void InstanceSpool::Unexpect(const DicomPeer& peer, const std::string& instance) {
  std::lock_guard<std::mutex> lock(mutex_);
  expected_[peer.ae_title].Erase(instance);
}

void InstanceSpool::Divert(const SeriesKey& key, const std::string& instance) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = gatherings_.find(key);
    const bool lacks = it != gatherings_.end() && !it->second.series->files.contains(instance);
    if (!lacks) return expected_[key.peer].Erase(instance);
  }
  Attribute(key, instance);
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
    if (IsWhole(key, gathering)) Mark(*gathering.series);
  }
}

// With the mutex held.
void InstanceSpool::DropOverdue(std::chrono::steady_clock::time_point now) {
  for (auto& [peer, expected] : expected_) {
    std::map<std::string, std::string> overdue;  // the series of each
    for (const auto& [instance, missing] : expected.instances) {
      if (now - missing.since >= options_.patience) overdue[instance] = missing.series;
    }
    for (const auto& [instance, series] : overdue) {
      expected.Erase(instance);
      for (auto& [key, gathering] : gatherings_) {
        if (key.peer != peer || !(series.empty() || key.series == series)) continue;
        gathering.incomplete = true;
        Unmark(*gathering.series);
      }
    }
  }
}

std::unique_ptr<GatheredSeries> InstanceSpool::TakeReady() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = options_.now();
  DropOverdue(now);
  for (auto it = gatherings_.begin(); it != gatherings_.end(); ++it) {
    Gathering& gathering = it->second;
    if (!gathering.open.empty() || now < gathering.not_before) continue;
    const bool given_up = gathering.incomplete && now - gathering.last >= options_.patience;
    const bool is_whole = IsWhole(it->first, gathering);
    if (is_whole) Mark(*gathering.series);
    const bool is_quiet = is_whole && now - gathering.last >= options_.quiet;
    if (!given_up && !is_quiet) continue;
    std::unique_ptr<GatheredSeries> series = std::move(gathering.series);
    series->given_up = given_up;
    gatherings_.erase(it);
    return series;
  }
  return nullptr;
}

void InstanceSpool::PutBack(std::unique_ptr<GatheredSeries> series, std::chrono::steady_clock::time_point not_before) {
  series->was_put_back = true;
  std::lock_guard<std::mutex> lock(mutex_);
  Gathering& gathering = gatherings_[series->key];
  gathering.not_before = not_before;
  if (gathering.series == nullptr) {
    gathering.last = options_.now();
    gathering.series = std::move(series);
    return;
  }
  GatheredSeries& there = *gathering.series;
  for (auto& [instance, file] : series->files) {
    if (there.files.contains(instance) || !MoveInto(there, instance, *file).ok()) continue;
    there.files[instance] = std::move(file);
  }
  std::erase_if(series->files, [](const auto& file) { return file.second == nullptr; });
  there.made.merge(series->made);
  there.was_put_back = true;
  if (options_.keep) (void)SyncFolder(there.folder);
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
