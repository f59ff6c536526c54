// SPDX-License-Identifier: Apache-2.0
#include "server/state/sqlite_vfs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/state/test_files.h"

namespace intrawarp::state {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;

constexpr int kReadWrite = SQLITE_OPEN_READWRITE | SQLITE_OPEN_MAIN_DB;
constexpr int kCreate = kReadWrite | SQLITE_OPEN_CREATE;
constexpr char kPath[] = "d/a.db";

// A file of a file system, as SQLite opens one.
class VfsFile {
 public:
  VfsFile(sqlite3_vfs* vfs, const char* path, int flags)
      : memory_(static_cast<size_t>(vfs->szOsFile) / sizeof(std::max_align_t) + 1),
        file_(reinterpret_cast<sqlite3_file*>(memory_.data())),
        code_(vfs->xOpen(vfs, path, file_, flags, &out_flags_)) {}
  ~VfsFile() { Close(); }

  // The result of opening it.
  int code() const { return code_; }
  int out_flags() const { return out_flags_; }
  bool has_methods() const { return file_->pMethods != nullptr; }
  int Close() {
    if (code_ != SQLITE_OK || is_closed_) return SQLITE_OK;
    is_closed_ = true;
    return file_->pMethods->xClose(file_);
  }
  int Write(const std::string& bytes, int64_t offset = 0) {
    return file_->pMethods->xWrite(file_, bytes.data(), static_cast<int>(bytes.size()), offset);
  }
  int Read(std::string& to, int64_t offset = 0) {
    return file_->pMethods->xRead(file_, to.data(), static_cast<int>(to.size()), offset);
  }
  int Truncate(int64_t size) { return file_->pMethods->xTruncate(file_, size); }
  int Sync() { return file_->pMethods->xSync(file_, SQLITE_SYNC_FULL); }
  // Its size; -1 after an error, whose code is in `code`.
  int64_t Size(int* code = nullptr) {
    sqlite3_int64 size = -1;
    const int got = file_->pMethods->xFileSize(file_, &size);
    if (code != nullptr) *code = got;
    return size;
  }

 private:
  std::vector<std::max_align_t> memory_;
  sqlite3_file* const file_;
  int out_flags_ = 0;
  const int code_;
  bool is_closed_ = false;
};

class SqliteVfsTest : public testing::Test {
 protected:
  sqlite3_vfs* Find() { return sqlite3_vfs_find(vfs_.name()); }
  VfsFile Open(int flags = kCreate, const char* path = kPath) { return {Find(), path, flags}; }

  MemoryDisk disk_;
  SqliteVfs vfs_{disk_};
};

TEST(SqliteVfs, IsKnownToSqliteForAsLongAsItLives) {
  MemoryDisk disk;
  sqlite3_vfs* const usual = sqlite3_vfs_find(nullptr);
  std::string name;
  {
    const SqliteVfs first(disk), second(disk);
    name = first.name();
    EXPECT_STRNE(first.name(), second.name());
    EXPECT_NE(sqlite3_vfs_find(first.name()), nullptr);
    EXPECT_NE(sqlite3_vfs_find(second.name()), nullptr);
    EXPECT_EQ(sqlite3_vfs_find(nullptr), usual) << "other databases of the process stay where they are";
  }
  EXPECT_EQ(sqlite3_vfs_find(name.c_str()), nullptr);
}

TEST_F(SqliteVfsTest, ADatabaseIsOnTheLayersDiskAndNowhereElse) {
  const auto open = [&] {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open_v2(kPath, &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs_.name()), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
                           nullptr, nullptr, nullptr),
              SQLITE_OK);
    return database;
  };
  sqlite3* database = open();
  EXPECT_EQ(sqlite3_exec(database, "CREATE TABLE t(a TEXT); INSERT INTO t VALUES ('kept'), ('too');", nullptr, nullptr,
                         nullptr),
            SQLITE_OK);
  EXPECT_THAT(disk_.Paths("d/"), IsSupersetOf({std::string(kPath), std::string("d/a.db-wal")}));
  // What was committed is synced, with the names of the files.
  disk_.LosePower(0);
  sqlite3_close(database);
  database = open();
  std::vector<std::string> rows;
  const auto add = [](void* to, int, char** texts, char**) {
    static_cast<std::vector<std::string>*>(to)->push_back(texts[0]);
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(database, "SELECT a FROM t", add, &rows, nullptr), SQLITE_OK);
  EXPECT_THAT(rows, ElementsAre("kept", "too"));
  sqlite3_close(database);
}

TEST_F(SqliteVfsTest, ReadsBeyondTheEndAreZerosAndSaySo) {
  VfsFile file = Open();
  ASSERT_EQ(file.code(), SQLITE_OK);
  EXPECT_EQ(file.out_flags(), kCreate);
  ASSERT_EQ(file.Write("0123456789", 5), SQLITE_OK);
  EXPECT_EQ(file.Size(), 15);
  std::string to(10, '#');
  EXPECT_EQ(file.Read(to, 5), SQLITE_OK);
  EXPECT_EQ(to, "0123456789");
  to.assign(10, '#');
  EXPECT_EQ(file.Read(to, 11), SQLITE_IOERR_SHORT_READ);
  EXPECT_EQ(to, std::string("6789") + std::string(6, '\0'));
  to.assign(4, '#');
  EXPECT_EQ(file.Read(to, 15), SQLITE_IOERR_SHORT_READ);
  EXPECT_EQ(to, std::string(4, '\0'));
  EXPECT_EQ(file.Truncate(7), SQLITE_OK);
  EXPECT_EQ(file.Size(), 7);
}

TEST_F(SqliteVfsTest, OpensAsTheFlagsSay) {
  EXPECT_EQ(Open(SQLITE_OPEN_READONLY).code(), SQLITE_CANTOPEN);
  EXPECT_EQ(Open(kReadWrite).code(), SQLITE_CANTOPEN);
  EXPECT_FALSE(Open(kReadWrite).has_methods()) << "SQLite would close it";
  EXPECT_THAT(disk_.Paths("d/"), IsEmpty()) << "nothing is made but for CREATE";
  EXPECT_EQ(Open(kCreate).code(), SQLITE_OK);
  EXPECT_THAT(disk_.Paths("d/"), ElementsAre(kPath));
  EXPECT_EQ(Open(kReadWrite).code(), SQLITE_OK);
  EXPECT_EQ(Open(SQLITE_OPEN_READONLY).code(), SQLITE_OK);
  EXPECT_EQ(VfsFile(Find(), nullptr, kCreate | SQLITE_OPEN_DELETEONCLOSE).code(), SQLITE_CANTOPEN)
      << "temporary files lie in memory";
}

TEST_F(SqliteVfsTest, AFileGoesWhenItIsClosedIfItShould) {
  VfsFile file = Open(kCreate | SQLITE_OPEN_DELETEONCLOSE);
  ASSERT_EQ(file.Write("x"), SQLITE_OK);
  EXPECT_EQ(file.Close(), SQLITE_OK);
  EXPECT_THAT(disk_.Paths("d/"), IsEmpty());
  VfsFile gone = Open(kCreate | SQLITE_OPEN_DELETEONCLOSE);
  ASSERT_TRUE(disk_.Remove(kPath).ok());
  EXPECT_EQ(gone.Close(), SQLITE_IOERR_DELETE);
}

TEST_F(SqliteVfsTest, TheFirstSyncOfANewFileKeepsItsNameToo) {
  FaultyFiles files(disk_, Fault::kBroken);
  const SqliteVfs vfs(files);
  VfsFile file(sqlite3_vfs_find(vfs.name()), kPath, kCreate);
  ASSERT_EQ(file.Write("one"), SQLITE_OK);
  disk_.LosePower(0);
  EXPECT_THAT(disk_.Paths("d/"), IsEmpty());

  VfsFile again(sqlite3_vfs_find(vfs.name()), kPath, kCreate);
  ASSERT_EQ(again.Write("one"), SQLITE_OK);
  int before = files.done();
  EXPECT_EQ(again.Sync(), SQLITE_OK);
  EXPECT_EQ(files.done() - before, 2) << "the file and its folder";
  before = files.done();
  EXPECT_EQ(again.Sync(), SQLITE_OK);
  EXPECT_EQ(files.done() - before, 1);
  disk_.LosePower(0);
  EXPECT_THAT(disk_.Paths("d/"), ElementsAre(kPath));
  // One that was there has its name.
  VfsFile old(sqlite3_vfs_find(vfs.name()), kPath, kCreate);
  before = files.done();
  EXPECT_EQ(old.Sync(), SQLITE_OK);
  EXPECT_EQ(files.done() - before, 1);
}

TEST_F(SqliteVfsTest, AFolderThatWasNotSyncedIsSyncedNextTime) {
  // Making the file, writing, syncing, and the folder.
  FaultyFiles files(disk_, Fault::kBroken, 4, FaultyFiles::Counts::kChanges);
  const SqliteVfs vfs(files);
  VfsFile file(sqlite3_vfs_find(vfs.name()), kPath, kCreate);
  ASSERT_EQ(file.Write("one"), SQLITE_OK);
  EXPECT_EQ(file.Sync(), SQLITE_IOERR_DIR_FSYNC);
  EXPECT_TRUE(files.has_failed());
  EXPECT_EQ(file.Sync(), SQLITE_OK);
  disk_.LosePower(0);
  EXPECT_THAT(disk_.Paths("d/"), ElementsAre(kPath));
}

TEST_F(SqliteVfsTest, ADeleteTellsWhatWasThereAndLastsIfItShould) {
  sqlite3_vfs* const vfs = Find();
  EXPECT_EQ(vfs->xDelete(vfs, kPath, 1), SQLITE_IOERR_DELETE_NOENT);
  for (const bool lasts : {true, false}) {
    {
      VfsFile file = Open();
      ASSERT_EQ(file.Sync(), SQLITE_OK);
    }
    EXPECT_EQ(vfs->xDelete(vfs, kPath, lasts ? 1 : 0), SQLITE_OK);
    EXPECT_THAT(disk_.Paths("d/"), IsEmpty());
    disk_.LosePower(0);
    EXPECT_EQ(disk_.Paths("d/").empty(), lasts);
  }
}

TEST_F(SqliteVfsTest, LooksUpNamesAndTakesThemAsTheyAre) {
  sqlite3_vfs* const vfs = Find();
  int found = -1;
  EXPECT_EQ(vfs->xAccess(vfs, kPath, SQLITE_ACCESS_EXISTS, &found), SQLITE_OK);
  EXPECT_EQ(found, 0);
  (void)Open();
  EXPECT_EQ(vfs->xAccess(vfs, kPath, SQLITE_ACCESS_EXISTS, &found), SQLITE_OK);
  EXPECT_EQ(found, 1);
  char name[8] = "#######";
  EXPECT_EQ(vfs->xFullPathname(vfs, kPath, 7, name), SQLITE_OK);
  EXPECT_STREQ(name, kPath);
  EXPECT_EQ(vfs->xFullPathname(vfs, kPath, 6, name), SQLITE_CANTOPEN) << "without room for the end";
}

// A full disk and a broken one, at every operation.
TEST(SqliteVfs, EachErrorHasItsCode) {
  for (const bool is_full : {true, false}) {
    const auto code = [is_full](int broken) { return is_full ? SQLITE_FULL : broken; };
    MemoryDisk disk;
    FaultyFiles files(disk, is_full ? Fault::kFull : Fault::kBroken);
    const SqliteVfs owner(files);
    sqlite3_vfs* const vfs = sqlite3_vfs_find(owner.name());
    VfsFile file(vfs, kPath, kCreate);
    ASSERT_EQ(file.Write("one"), SQLITE_OK);
    files.Unplug();
    EXPECT_EQ(file.Write("two"), code(SQLITE_IOERR_WRITE));
    EXPECT_EQ(file.Truncate(0), code(SQLITE_IOERR_TRUNCATE));
    EXPECT_EQ(file.Sync(), code(SQLITE_IOERR_FSYNC));
    std::string to(3, '#');
    EXPECT_EQ(file.Read(to), SQLITE_IOERR_READ) << "a read finds no disk full";
    int size_code = SQLITE_OK;
    file.Size(&size_code);
    EXPECT_EQ(size_code, SQLITE_IOERR_FSTAT);
    EXPECT_EQ(VfsFile(vfs, kPath, kCreate).code(), SQLITE_CANTOPEN);
    int found = 0;
    EXPECT_EQ(vfs->xAccess(vfs, kPath, SQLITE_ACCESS_EXISTS, &found), SQLITE_IOERR_ACCESS);
    EXPECT_EQ(vfs->xDelete(vfs, kPath, 0), SQLITE_IOERR_DELETE);
    files.Replug();
    EXPECT_EQ(file.Read(to), SQLITE_OK);
    EXPECT_EQ(to, "one");
  }
}

// The look whether it is there goes well, and the opening does not.
TEST(SqliteVfs, AFileThatCannotBeMadeIsToldAsAFullDisk) {
  MemoryDisk disk;
  FaultyFiles files(disk, Fault::kFull, 2);
  const SqliteVfs owner(files);
  const VfsFile file(sqlite3_vfs_find(owner.name()), kPath, kCreate);
  EXPECT_EQ(file.code(), SQLITE_FULL);
  EXPECT_FALSE(file.has_methods());
}

}  // namespace
}  // namespace intrawarp::state
