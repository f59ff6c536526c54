// SPDX-License-Identifier: Apache-2.0
// File layers for tests: a disk in memory that loses what was not synced, and a layer whose n-th operation fails.
#ifndef INTRAWARP_TESTS_SERVER_STATE_TEST_FILES_H_
#define INTRAWARP_TESTS_SERVER_STATE_TEST_FILES_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/state/file_layer.h"

namespace intrawarp::state {

// A disk in memory. LosePower leaves what was synced, and of each write, cut and change of a name since then either all
// or nothing, by a coin. Names of folders are kept at once. Thread-compatible.
class MemoryDisk final : public FileLayer {
 public:
  // Seed 0: everything that was not synced is lost.
  void LosePower(int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto survives = [&] { return seed != 0 && random() % 2 == 0; };
    std::map<std::string, std::shared_ptr<Inode>> names = synced_;
    for (const auto& [path, inode] : names_) {
      if (names.count(path) != 0 && names[path] == inode) continue;
      if (survives()) names[path] = inode;
    }
    for (const auto& [path, inode] : synced_) {
      if (names_.count(path) == 0 && survives()) names.erase(path);
    }
    for (const auto& [path, inode] : names) inode->LosePower(survives);
    names_ = synced_ = std::move(names);
    locked_ = std::make_shared<bool>(false);
  }
  void FlipBit(const std::string& path, size_t at) {
    names_.at(path)->now.at(at) ^= 1;
    names_.at(path)->synced.at(at) ^= 1;
  }
  void Cut(const std::string& path, size_t size) {
    names_.at(path)->now.resize(size);
    names_.at(path)->synced.resize(size);
  }
  // The files whose names begin with `prefix`.
  std::vector<std::string> Paths(const std::string& prefix) const {
    std::vector<std::string> paths;
    for (const auto& [path, inode] : names_) {
      if (absl::StartsWith(path, prefix)) paths.push_back(path);
    }
    return paths;
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    auto it = names_.find(path);
    if (it == names_.end() && mode != OpenMode::kWrite) return absl::NotFoundError("file: cannot be opened");
    if (it == names_.end()) it = names_.emplace(path, std::make_shared<Inode>()).first;
    return std::make_unique<MemoryFile>(it->second);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    const auto it = names_.find(from);
    if (it == names_.end()) return absl::NotFoundError("file: cannot be renamed");
    names_[to] = it->second;
    names_.erase(from);
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& path) override {
    return names_.erase(path) == 1 ? absl::OkStatus() : absl::NotFoundError("file: cannot be removed");
  }
  absl::Status MakeDirectory(const std::string&) override { return absl::OkStatus(); }
  absl::Status SyncDirectory(const std::string& folder) override {
    std::erase_if(synced_, [&](const auto& name) { return IsIn(folder, name.first); });
    for (const auto& [path, inode] : names_) {
      if (IsIn(folder, path)) synced_[path] = inode;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> list;
    for (const auto& [path, inode] : names_) {
      if (IsIn(folder, path)) list.push_back(path.substr(folder.size() + 1));
    }
    return list;
  }
  absl::StatusOr<bool> Exists(const std::string& path) override { return names_.count(path) != 0; }
  absl::StatusOr<int64_t> FreeBytes(const std::string&) override { return int64_t{1} << 20; }
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string&) override {
    if (*locked_) return absl::FailedPreconditionError("file: another process uses this state directory");
    return std::make_unique<MemoryLock>(locked_);
  }

 private:
  struct Change {
    bool cuts = false;
    size_t offset = 0;
    std::string data;
  };
  struct Inode {
    std::string now;
    std::string synced;
    std::vector<Change> changes;  // since the last sync

    static void Apply(const Change& change, std::string& to) {
      if (change.cuts) return to.resize(change.offset);
      to.resize(std::max(to.size(), change.offset + change.data.size()));
      to.replace(change.offset, change.data.size(), change.data);
    }
    void Do(Change change) {
      Apply(change, now);
      changes.push_back(std::move(change));
    }
    template <typename Coin>
    void LosePower(const Coin& survives) {
      for (const Change& change : changes) {
        if (survives()) Apply(change, synced);
      }
      changes.clear();
      now = synced;
    }
  };
  class MemoryFile final : public File {
   public:
    explicit MemoryFile(std::shared_ptr<Inode> inode) : inode_(std::move(inode)) {}
    absl::StatusOr<size_t> ReadAt(int64_t offset, void* to, size_t size) override {
      const auto begin = static_cast<size_t>(offset);
      if (begin >= inode_->now.size()) return size_t{0};
      const size_t read = std::min(size, inode_->now.size() - begin);
      std::memcpy(to, inode_->now.data() + begin, read);
      return read;
    }
    absl::Status WriteAt(int64_t offset, const void* from, size_t size) override {
      inode_->Do({false, static_cast<size_t>(offset), std::string(static_cast<const char*>(from), size)});
      return absl::OkStatus();
    }
    absl::Status Truncate(int64_t size) override {
      inode_->Do({true, static_cast<size_t>(size), ""});
      return absl::OkStatus();
    }
    absl::Status Sync() override {
      inode_->synced = inode_->now;
      inode_->changes.clear();
      return absl::OkStatus();
    }
    absl::StatusOr<int64_t> Size() override { return static_cast<int64_t>(inode_->now.size()); }

   private:
    const std::shared_ptr<Inode> inode_;
  };
  class MemoryLock final : public DirectoryLock {
   public:
    explicit MemoryLock(std::shared_ptr<bool> locked) : locked_(std::move(locked)) { *locked_ = true; }
    ~MemoryLock() override { *locked_ = false; }

   private:
    const std::shared_ptr<bool> locked_;
  };

  static bool IsIn(const std::string& folder, const std::string& path) {
    return absl::StartsWith(path, folder + "/") && path.find('/', folder.size() + 1) == std::string::npos;
  }

  std::map<std::string, std::shared_ptr<Inode>> names_;
  std::map<std::string, std::shared_ptr<Inode>> synced_;
  std::shared_ptr<bool> locked_ = std::make_shared<bool>(false);
};

enum class Fault {
  kFull,        // the operation does nothing: RESOURCE_EXHAUSTED
  kBroken,      // the operation does nothing: UNKNOWN
  kShortWrite,  // a write does its first half, others nothing: RESOURCE_EXHAUSTED
  kTwice,       // the operation and the next one do nothing: UNKNOWN
  kGone,        // the operation and all after it do nothing: UNKNOWN
};

// A layer over another one, whose operation number `at`, counted from 1, fails; 0: none. Thread-safe.
class FaultyFiles final : public FileLayer {
 public:
  enum class Counts { kAll, kChanges };
  // kChanges: only operations that change the disk are counted and fail.
  FaultyFiles(FileLayer& inner, Fault fault, int at = 0, Counts counts = Counts::kAll)
      : inner_(inner), fault_(fault), at_(at), counts_(counts) {}
  bool has_failed() const { return has_failed_; }
  // The operations that were counted.
  int done() const { return done_; }
  // From now on every operation fails, until Replug.
  void Unplug() { is_unplugged_ = true; }
  void Replug() { is_unplugged_ = false; }
  // True: all writes fail.
  void set_fails_writes(bool fails) { fails_writes_ = fails; }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (Fails(mode == OpenMode::kWrite)) return Error();
    auto file = inner_.Open(path, mode);
    if (!file.ok()) return file.status();
    return std::make_unique<FaultyFile>(*this, *std::move(file));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Fails(true) ? Error() : inner_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return Fails(true) ? Error() : inner_.Remove(path); }
  absl::Status MakeDirectory(const std::string& path) override {
    return Fails(true) ? Error() : inner_.MakeDirectory(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return Fails(true) ? Error() : inner_.SyncDirectory(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    if (Fails(false)) return Error();
    return inner_.List(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override {
    if (Fails(false)) return Error();
    return inner_.Exists(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    if (Fails(false)) return Error();
    return inner_.FreeBytes(path);
  }
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& path) override {
    if (Fails(true)) return Error();
    return inner_.Lock(path);
  }

 private:
  class FaultyFile final : public File {
   public:
    FaultyFile(FaultyFiles& layer, std::unique_ptr<File> inner) : layer_(layer), inner_(std::move(inner)) {}
    absl::StatusOr<size_t> ReadAt(int64_t offset, void* to, size_t size) override {
      if (layer_.Fails(false)) return layer_.Error();
      return inner_->ReadAt(offset, to, size);
    }
    absl::Status WriteAt(int64_t offset, const void* from, size_t size) override {
      if (!layer_.Fails(true) && !layer_.fails_writes_) return inner_->WriteAt(offset, from, size);
      if (layer_.fault_ == Fault::kShortWrite) (void)inner_->WriteAt(offset, from, size / 2);
      return layer_.Error();
    }
    absl::Status Truncate(int64_t size) override {
      return layer_.Fails(true) ? layer_.Error() : inner_->Truncate(size);
    }
    absl::Status Sync() override { return layer_.Fails(true) ? layer_.Error() : inner_->Sync(); }
    absl::StatusOr<int64_t> Size() override {
      if (layer_.Fails(false)) return layer_.Error();
      return inner_->Size();
    }

   private:
    FaultyFiles& layer_;
    const std::unique_ptr<File> inner_;
  };

  bool Fails(bool changes) {
    if (is_unplugged_) return true;
    if (!changes && counts_ == Counts::kChanges) return false;
    const int number = ++done_;
    if (at_ == 0 || number < at_) return false;
    const bool fails = number == at_ || fault_ == Fault::kGone || (fault_ == Fault::kTwice && number == at_ + 1);
    if (fails) has_failed_ = true;
    return fails;
  }
  absl::Status Error() const {
    const bool is_full = fault_ == Fault::kFull || fault_ == Fault::kShortWrite;
    return is_full ? absl::ResourceExhaustedError("file: the disk is full") : absl::UnknownError("file: broken");
  }

  FileLayer& inner_;
  const Fault fault_;
  const int at_;
  const Counts counts_;
  std::atomic<int> done_{0};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_unplugged_{false};
  std::atomic<bool> fails_writes_{false};
};

// A layer over another one that does one operation at a time, so that a server can use a disk in memory. Thread-safe.
class LockedFiles final : public FileLayer {
 public:
  explicit LockedFiles(FileLayer& inner) : inner_(inner) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto file = inner_.Open(path, mode);
    if (!file.ok()) return file.status();
    return std::make_unique<LockedFile>(mutex_, *std::move(file));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.Remove(path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.MakeDirectory(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.SyncDirectory(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.List(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.Exists(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.FreeBytes(path);
  }
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& path) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return inner_.Lock(path);
  }

 private:
  class LockedFile final : public File {
   public:
    LockedFile(std::mutex& mutex, std::unique_ptr<File> inner) : mutex_(mutex), inner_(std::move(inner)) {}
    ~LockedFile() override {
      std::lock_guard<std::mutex> lock(mutex_);
      inner_.reset();
    }
    absl::StatusOr<size_t> ReadAt(int64_t offset, void* to, size_t size) override {
      std::lock_guard<std::mutex> lock(mutex_);
      return inner_->ReadAt(offset, to, size);
    }
    absl::Status WriteAt(int64_t offset, const void* from, size_t size) override {
      std::lock_guard<std::mutex> lock(mutex_);
      return inner_->WriteAt(offset, from, size);
    }
    absl::Status Truncate(int64_t size) override {
      std::lock_guard<std::mutex> lock(mutex_);
      return inner_->Truncate(size);
    }
    absl::Status Sync() override {
      std::lock_guard<std::mutex> lock(mutex_);
      return inner_->Sync();
    }
    absl::StatusOr<int64_t> Size() override {
      std::lock_guard<std::mutex> lock(mutex_);
      return inner_->Size();
    }

   private:
    std::mutex& mutex_;
    std::unique_ptr<File> inner_;
  };

  FileLayer& inner_;
  std::mutex mutex_;
};

}  // namespace intrawarp::state

#endif  // INTRAWARP_TESTS_SERVER_STATE_TEST_FILES_H_
