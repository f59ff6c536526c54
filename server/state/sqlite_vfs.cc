// SPDX-License-Identifier: Apache-2.0
#include "server/state/sqlite_vfs.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace intrawarp::state {
namespace {

// SQLite allocates it and sees the base alone.
struct OpenFile {
  sqlite3_file base;
  std::unique_ptr<File> file;
  FileLayer* files;
  std::string path;
  bool delete_on_close;
  // Its name is not on the disk yet.
  bool is_new;
};

OpenFile& Of(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }
FileLayer& LayerOf(sqlite3_vfs* vfs) { return *static_cast<FileLayer*>(vfs->pAppData); }

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

int CodeOf(const absl::Status& status, int otherwise) {
  if (status.ok()) return SQLITE_OK;
  return absl::IsResourceExhausted(status) ? SQLITE_FULL : otherwise;
}

int Close(sqlite3_file* base) {
  OpenFile& file = Of(base);
  file.file.reset();
  const absl::Status removed = file.delete_on_close ? file.files->Remove(file.path) : absl::OkStatus();
  file.~OpenFile();
  return CodeOf(removed, SQLITE_IOERR_DELETE);
}

int Read(sqlite3_file* base, void* to, int size, sqlite3_int64 offset) {
  const absl::StatusOr<size_t> read = Of(base).file->ReadAt(offset, to, static_cast<size_t>(size));
  if (!read.ok()) return SQLITE_IOERR_READ;
  if (*read == static_cast<size_t>(size)) return SQLITE_OK;
  std::memset(static_cast<char*>(to) + *read, 0, static_cast<size_t>(size) - *read);
  return SQLITE_IOERR_SHORT_READ;
}

int Write(sqlite3_file* base, const void* from, int size, sqlite3_int64 offset) {
  return CodeOf(Of(base).file->WriteAt(offset, from, static_cast<size_t>(size)), SQLITE_IOERR_WRITE);
}

int Truncate(sqlite3_file* base, sqlite3_int64 size) {
  return CodeOf(Of(base).file->Truncate(size), SQLITE_IOERR_TRUNCATE);
}

int Sync(sqlite3_file* base, int) {
  OpenFile& file = Of(base);
  const absl::Status synced = file.file->Sync();
  if (!synced.ok()) return CodeOf(synced, SQLITE_IOERR_FSYNC);
  if (!file.is_new) return SQLITE_OK;
  const absl::Status named = file.files->SyncDirectory(FolderOf(file.path));
  file.is_new = !named.ok();
  return CodeOf(named, SQLITE_IOERR_DIR_FSYNC);
}

int FileSize(sqlite3_file* base, sqlite3_int64* size) {
  const absl::StatusOr<int64_t> bytes = Of(base).file->Size();
  if (!bytes.ok()) return SQLITE_IOERR_FSTAT;
  *size = *bytes;
  return SQLITE_OK;
}

// The lock of the state directory keeps other processes out.
int NoLock(sqlite3_file*, int) { return SQLITE_OK; }
int NoReservedLock(sqlite3_file*, int* reserved) {
  *reserved = 0;
  return SQLITE_OK;
}
int NoControl(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int SectorSize(sqlite3_file*) { return 4096; }
int Characteristics(sqlite3_file*) { return 0; }

constexpr sqlite3_io_methods kMethods = {
    1,       Close,          Read,      Write,      Truncate,        Sync,    FileSize, NoLock,
    NoLock,  NoReservedLock, NoControl, SectorSize, Characteristics, nullptr, nullptr,  nullptr,
    nullptr, nullptr,        nullptr};

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* base, int flags, int* out_flags) {
  base->pMethods = nullptr;
  if (name == nullptr) return SQLITE_CANTOPEN;  // temporary files lie in memory
  FileLayer& files = LayerOf(vfs);
  const absl::StatusOr<bool> exists = files.Exists(name);
  if (!exists.ok()) return SQLITE_CANTOPEN;
  const bool creates = (flags & SQLITE_OPEN_CREATE) != 0;
  const OpenMode writing = creates ? OpenMode::kWrite : OpenMode::kWriteExisting;
  const OpenMode mode = (flags & SQLITE_OPEN_READONLY) != 0 ? OpenMode::kRead : writing;
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(name, mode);
  if (!file.ok()) return CodeOf(file.status(), SQLITE_CANTOPEN);
  new (base) OpenFile{{&kMethods}, *std::move(file), &files, name, (flags & SQLITE_OPEN_DELETEONCLOSE) != 0, !*exists};
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int Delete(sqlite3_vfs* vfs, const char* name, int sync_folder) {
  FileLayer& files = LayerOf(vfs);
  const absl::Status removed = files.Remove(name);
  if (absl::IsNotFound(removed)) return SQLITE_IOERR_DELETE_NOENT;
  if (!removed.ok()) return SQLITE_IOERR_DELETE;
  if (sync_folder == 0) return SQLITE_OK;
  return CodeOf(files.SyncDirectory(FolderOf(name)), SQLITE_IOERR_DIR_FSYNC);
}

int Access(sqlite3_vfs* vfs, const char* name, int, int* found) {
  const absl::StatusOr<bool> exists = LayerOf(vfs).Exists(name);
  if (!exists.ok()) return SQLITE_IOERR_ACCESS;
  *found = *exists ? 1 : 0;
  return SQLITE_OK;
}

int FullPathname(sqlite3_vfs*, const char* name, int size, char* to) {
  if (std::strlen(name) + 1 > static_cast<size_t>(size)) return SQLITE_CANTOPEN;
  std::strcpy(to, name);
  return SQLITE_OK;
}

std::string NewName() {
  static std::atomic<int64_t> next{0};
  return absl::StrCat("intrawarp-", next++);
}

}  // namespace

SqliteVfs::SqliteVfs(FileLayer& files) : name_(NewName()), vfs_(*sqlite3_vfs_find(nullptr)) {
  // Time, sleep and randomness stay those of SQLite's own file system.
  vfs_.iVersion = 1;
  vfs_.szOsFile = sizeof(OpenFile);
  vfs_.pNext = nullptr;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = &files;
  vfs_.xOpen = Open;
  vfs_.xDelete = Delete;
  vfs_.xAccess = Access;
  vfs_.xFullPathname = FullPathname;
  sqlite3_vfs_register(&vfs_, /*makeDflt=*/0);
}

SqliteVfs::~SqliteVfs() { sqlite3_vfs_unregister(&vfs_); }

}  // namespace intrawarp::state
