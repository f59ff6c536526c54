// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/instance_spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
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

// In the folder of a series: none of its instances is missing; it is settled, with volumes or without.
constexpr char kWhole[] = "whole";
constexpr char kMade[] = "made";
constexpr char kUnmade[] = "unmade";
// Instances of series that have gone, which are remembered.
constexpr int64_t kMaxGone = 100000;
constexpr size_t kCompareStep = 256 << 10;

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
struct DurableFile {
  std::string path;
  std::string instance;
  int64_t number = 0;
  int64_t bytes = 0;
};

std::vector<DurableFile> DurableFilesOf(const std::string& folder) {
  std::vector<DurableFile> files;
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

// False where either cannot be read.
bool AreEqual(const std::string& a, const std::string& b) {
  std::ifstream left(a, std::ios::binary), right(b, std::ios::binary);
  std::string x(kCompareStep, '\0'), y(kCompareStep, '\0');
  while (left && right) {
    left.read(x.data(), static_cast<std::streamsize>(x.size()));
    right.read(y.data(), static_cast<std::streamsize>(y.size()));
    if (left.gcount() != right.gcount() || !std::equal(x.begin(), x.begin() + left.gcount(), y.begin())) return false;
    if (left.gcount() == 0) return left.eof() && right.eof();
  }
  return left.eof() && right.eof();
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
    if (put < 0) {
      const absl::Status error = DiskError();
      if (absl::IsResourceExhausted(error) && spool_.MakeRoom(nullptr)) continue;
      return error;
    }
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
    // The mark goes first, also on the disk: the files that a crash leaves are not whole series.
    unlink(absl::StrCat(folder, "/", kWhole).c_str());
    (void)SyncFolder(folder);
  }
  if (settled_ != nullptr && !stays) unlink(absl::StrCat(folder, "/", settled_).c_str());
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
    if (options_.keep && !name.key.series.empty()) {
      const DicomPeer* const peer = options_.peer ? options_.peer(name.key.peer) : nullptr;
      if (peer == nullptr) CountSeries(path);
      if (peer != nullptr) RecoverSeries(path, name.key, *peer);
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
  for (const char* mark : {kMade, kUnmade}) {
    if (std::filesystem::exists(absl::StrCat(folder, "/", mark), error)) series->settled_ = mark;
  }
  std::map<std::string, int64_t> numbers;
  for (const DurableFile& kept : DurableFilesOf(folder)) {
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
  const char* const settled = series->settled_;
  const bool is_marked = series->is_marked_;
  const auto it = gatherings_.find(key);
  if (settled != nullptr && it == gatherings_.end()) return Settle(std::move(series), settled == kMade);
  if (settled != nullptr) MarkSettled(*series, nullptr);
  const bool was_marked = it == gatherings_.end() || it->second.series->is_marked_;
  PutBack(std::move(series), options_.now());
  Gathering& gathering = gatherings_[key];
  gathering.series->was_put_back = false;
  gathering.incomplete = !is_marked || !was_marked;
  if (gathering.incomplete) Unmark(*gathering.series);
}

void InstanceSpool::CountSeries(const std::string& folder) {
  for (const DurableFile& kept : DurableFilesOf(folder)) {
    for (Use* use : {&use_, &unknown_}) use->bytes += kept.bytes, ++use->instances;
  }
}

absl::Status InstanceSpool::Take(const DicomPeer& peer, int64_t bytes, int64_t instances) {
  for (;;) {
    bool is_of_peer = false;
    absl::Status taken;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      taken = TryTake(peer, bytes, instances, &is_of_peer);
    }
    if (taken.ok() || !MakeRoom(is_of_peer ? &peer.ae_title : nullptr)) return taken;
  }
}

// The files of the series go outside of the mutex, which they take.
bool InstanceSpool::MakeRoom(const std::string* peer) {
  std::unique_ptr<GatheredSeries> gone;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto now = options_.now();
    auto first = gatherings_.end();
    const auto goes_before = [](const Gathering& a, const Gathering& b) {
      return std::tuple(!a.has_volumes, a.settled_at) < std::tuple(!b.has_volumes, b.settled_at);
    };
    for (auto it = gatherings_.begin(); it != gatherings_.end(); ++it) {
      const Gathering& gathering = it->second;
      const bool may_go = gathering.is_settled && (peer == nullptr || it->first.peer == *peer) &&
                          (gathering.has_volumes || now - gathering.settled_at >= options_.unmade_stays);
      if (may_go && (first == gatherings_.end() || goes_before(gathering, first->second))) first = it;
    }
    if (first == gatherings_.end()) return false;
    if (!first->second.has_volumes) dropped_ += static_cast<int64_t>(first->second.series->files.size());
    gone = std::move(first->second.series);
    Remember(*gone);
    gatherings_.erase(first);
  }
  return true;
}

absl::Status InstanceSpool::TryTake(const DicomPeer& peer, int64_t bytes, int64_t instances, bool* is_of_peer) {
  Use& own = peers_[peer.ae_title];
  *is_of_peer = bytes > peer.max_bytes - own.bytes || instances > peer.max_instances - own.instances;
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

// With the mutex held: the files of the instance that the peer has sent, in whichever series.
std::vector<std::string> InstanceSpool::PathsOf(const std::string& peer, const std::string& instance) const {
  std::vector<std::string> paths;
  for (auto it = gatherings_.lower_bound({peer, ""}); it != gatherings_.end() && it->first.peer == peer; ++it) {
    const auto found = it->second.series->files.find(instance);
    if (found != it->second.series->files.end()) paths.push_back(found->second->path());
  }
  for (auto it = taken_.lower_bound({peer, ""}); it != taken_.end() && it->first.peer == peer; ++it) {
    const auto found = it->second.find(instance);
    if (found != it->second.end()) paths.push_back(found->second);
  }
  return paths;
}

// Files are compared without the mutex. One that has gone meanwhile is none. A file of another series or patient is
// another file.
absl::Status InstanceSpool::CheckInstance(const std::string& peer, const std::string& instance,
                                          const SpooledFile& file) const {
  std::vector<std::string> paths;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    paths = PathsOf(peer, instance);
  }
  for (const std::string& path : paths) {
    if (!AreEqual(path, file.path()) && access(path.c_str(), F_OK) == 0) {
      return absl::AlreadyExistsError("the instance is there, with other content");
    }
  }
  return absl::OkStatus();
}

// More of a settled series has come.
void InstanceSpool::Awaken(Gathering& gathering, bool is_new) {
  GatheredSeries& series = *gathering.series;
  if (is_new && std::exchange(series.was_settled_, false)) ++series.rounds_;
  gathering.is_settled = false;
  gathering.series->made.clear();
  gathering.series->given_up = false;
  gathering.series->was_put_back = false;
  MarkSettled(*gathering.series, nullptr);
}

absl::Status InstanceSpool::Add(const SeriesKey& key, const std::string& instance, std::unique_ptr<SpooledFile> file,
                                int64_t association, int64_t announced) {
  std::unique_ptr<SpooledFile> replaced;  // goes after the lock, which it takes
  std::string folder;
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::vector<std::string> compared = PathsOf(key.peer, instance);
    lock.unlock();
    INTRAWARP_RETURN_IF_ERROR(CheckInstance(key.peer, instance, *file));
    lock.lock();
    // Another association has brought the instance meanwhile, or its file has moved.
    if (PathsOf(key.peer, instance) != compared) continue;
    const absl::StatusOr<Gathering*> found = Find(key);
    if (!found.ok()) {
      lock.unlock();
      if (absl::IsResourceExhausted(found.status()) && MakeRoom(nullptr)) continue;
      return found.status();
    }
    Gathering& gathering = **found;
    GatheredSeries& series = *gathering.series;
    INTRAWARP_RETURN_IF_ERROR(MoveInto(series, instance, *file));
    Unmark(series);
    Awaken(gathering, /*is_new=*/!series.files.contains(instance));
    replaced = std::exchange(series.files[instance], std::move(file));
    expected_[key.peer].Erase(instance);
    gathering.open.insert(association);
    gathering.last = options_.now();
    gathering.announced = std::max(gathering.announced, announced);
    folder = series.folder;
    break;
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
  const auto there = series.files.find(instance);
  if (there != series.files.end()) {
    if (AreEqual(there->second->path(), file->path())) return absl::OkStatus();
    return absl::AlreadyExistsError("the instance is there, with other content");
  }
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
  return gathering.open.empty() && !gathering.incomplete && !may_miss && !MayLack(key, gathering);
}

// Whether images are missing by what others say: fewer are here than they announce, or some of a series that was here.
bool InstanceSpool::MayLack(const SeriesKey& key, const Gathering& gathering) const {
  const auto count = static_cast<int64_t>(gathering.series->files.size());
  if (count < gathering.announced) return true;
  const bool is_counted = gathering.announced > 1 && count == gathering.announced;
  const auto gone = gone_.find(key);
  if (gone == gone_.end() || is_counted) return false;
  const auto& files = gathering.series->files;
  return !std::all_of(gone->second.begin(), gone->second.end(),
                      [&](const std::string& instance) { return files.contains(instance); });
}

// With the mutex held. The files of a settled series go, and its instances are known.
void InstanceSpool::Remember(const GatheredSeries& series) {
  std::set<std::string>& instances = gone_[series.key];
  if (instances.empty()) gone_order_.push_back(series.key);
  for (const auto& [instance, file] : series.files) gone_instances_ += instances.insert(instance).second ? 1 : 0;
  while (gone_instances_ > kMaxGone && gone_order_.size() > 1) {
    const auto oldest = gone_.find(gone_order_.front());
    gone_instances_ -= static_cast<int64_t>(oldest->second.size());
    gone_.erase(oldest);
    gone_order_.pop_front();
  }
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

void InstanceSpool::MarkSettled(GatheredSeries& series, const char* mark) {
  if (!options_.keep || series.settled_ == mark) return;
  const std::string before = series.settled_ == nullptr ? "" : absl::StrCat(series.folder, "/", series.settled_);
  if (mark != nullptr) {
    const int fd = open(absl::StrCat(series.folder, "/", mark).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    close(fd);
  }
  if (!before.empty()) unlink(before.c_str());
  series.settled_ = mark;
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
        const bool is_of_it = key.peer == peer && (series.empty() || key.series == series);
        if (!is_of_it || gathering.is_settled) continue;
        gathering.incomplete = true;
        Unmark(*gathering.series);
      }
    }
  }
}

std::chrono::nanoseconds InstanceSpool::QuietOf(const GatheredSeries& series) const {
  std::chrono::nanoseconds quiet = options_.quiet;
  for (int round = 1; round < series.rounds_ && quiet < options_.patience; ++round) quiet *= 2;
  return std::max(options_.quiet, std::min(quiet, options_.patience));
}

std::unique_ptr<GatheredSeries> InstanceSpool::TakeReady() {
  std::vector<std::unique_ptr<GatheredSeries>> old;  // their files go after the lock, which they take
  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = options_.now();
  DropOverdue(now);
  old = TakeOld(now);
  for (auto it = gatherings_.begin(); it != gatherings_.end(); ++it) {
    Gathering& gathering = it->second;
    if (gathering.is_settled || !gathering.open.empty() || now < gathering.not_before) continue;
    const bool lacks = gathering.incomplete || MayLack(it->first, gathering);
    const bool given_up = lacks && now - gathering.last >= options_.patience;
    const bool is_whole = IsWhole(it->first, gathering);
    if (is_whole) Mark(*gathering.series);
    const bool is_counted =
        static_cast<int64_t>(gathering.series->files.size()) == gathering.announced && gathering.announced > 1;
    const bool is_ready = is_whole && (is_counted || now - gathering.last >= QuietOf(*gathering.series));
    if (!given_up && !is_ready) continue;
    std::unique_ptr<GatheredSeries> series = std::move(gathering.series);
    series->given_up = given_up;
    std::map<std::string, std::string>& paths = taken_[it->first];
    paths.clear();
    for (const auto& [instance, file] : series->files) paths[instance] = file->path();
    gatherings_.erase(it);
    return series;
  }
  return nullptr;
}

// With the mutex held: settled series whose time is over.
std::vector<std::unique_ptr<GatheredSeries>> InstanceSpool::TakeOld(std::chrono::steady_clock::time_point now) {
  std::vector<std::unique_ptr<GatheredSeries>> old;
  for (auto it = gatherings_.begin(); it != gatherings_.end();) {
    Gathering& gathering = it->second;
    const auto age = gathering.has_volumes ? options_.made_age : options_.unmade_age;
    if (!gathering.is_settled || now - gathering.settled_at < age) {
      ++it;
      continue;
    }
    if (!gathering.has_volumes) dropped_ += static_cast<int64_t>(gathering.series->files.size());
    Remember(*gathering.series);
    old.push_back(std::move(gathering.series));
    it = gatherings_.erase(it);
  }
  return old;
}

void InstanceSpool::Settle(std::unique_ptr<GatheredSeries> series, bool has_volumes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!gatherings_.contains(series->key)) {
      taken_.erase(series->key);
      MarkSettled(*series, has_volumes ? kMade : kUnmade);
      Gathering& gathering = gatherings_[series->key];
      gathering.is_settled = true;
      gathering.has_volumes = has_volumes;
      gathering.settled_at = options_.now();
      series->was_settled_ = true;
      gathering.series = std::move(series);
      return;
    }
  }
  // More of it has come meanwhile: all together are the series.
  PutBack(std::move(series), options_.now());
}

void InstanceSpool::PutBack(std::unique_ptr<GatheredSeries> series, std::chrono::steady_clock::time_point not_before) {
  series->was_put_back = true;
  std::lock_guard<std::mutex> lock(mutex_);
  taken_.erase(series->key);
  Gathering& gathering = gatherings_[series->key];
  gathering.not_before = not_before;
  if (gathering.series == nullptr) {
    gathering.last = options_.now();
    gathering.series = std::move(series);
    return;
  }
  GatheredSeries& there = *gathering.series;
  if (gathering.is_settled) Awaken(gathering, /*is_new=*/true);
  for (auto& [instance, file] : series->files) {
    if (there.files.contains(instance) || !MoveInto(there, instance, *file).ok()) continue;
    there.files[instance] = std::move(file);
  }
  std::erase_if(series->files, [](const auto& file) { return file.second == nullptr; });
  there.rounds_ = std::max(there.rounds_, series->rounds_ + 1);
  // What was made of a part is not a volume of the whole.
  there.made.clear();
  there.was_put_back = true;
  if (options_.keep) (void)SyncFolder(there.folder);
}

InstanceSpool::Use InstanceSpool::Settled(bool has_volumes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  Use settled;
  for (const auto& [key, gathering] : gatherings_) {
    if (!gathering.is_settled || gathering.has_volumes != has_volumes) continue;
    settled.instances += static_cast<int64_t>(gathering.series->files.size());
    for (const auto& [instance, file] : gathering.series->files) settled.bytes += file->bytes();
  }
  return settled;
}

InstanceSpool::Use InstanceSpool::InUse() const {
  const Use made = Settled(true), unmade = Settled(false);
  std::lock_guard<std::mutex> lock(mutex_);
  return {use_.bytes - made.bytes - unmade.bytes, use_.instances - made.instances - unmade.instances};
}

int64_t InstanceSpool::unknown_instances() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return unknown_.instances;
}

int64_t InstanceSpool::series() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(gatherings_.begin(), gatherings_.end(),
                       [](const auto& entry) { return !entry.second.is_settled; });
}

}  // namespace intrawarp::server
