// SPDX-License-Identifier: Apache-2.0
// SqliteVfs: SQLite's file system over a FileLayer, so that the catalogue does nothing to a disk that the layer does
// not see. It has no locks and no shared memory: a database on it is opened by one connection with "PRAGMA
// locking_mode=EXCLUSIVE", which keeps the index of the write-ahead log in ordinary memory.
//
// A write that finds the disk full is SQLITE_FULL; other errors of the layer are SQLITE_IOERR_* and SQLITE_CANTOPEN.
// Thread safety: as FileLayer.
#ifndef INTRAWARP_SERVER_STATE_SQLITE_VFS_H_
#define INTRAWARP_SERVER_STATE_SQLITE_VFS_H_

#include <sqlite3.h>

#include <string>

#include "server/state/file_layer.h"

namespace intrawarp::state {

// Registered with SQLite while it lives. Outlives the connections that use it.
class SqliteVfs {
 public:
  // `files` outlives it.
  explicit SqliteVfs(FileLayer& files);
  ~SqliteVfs();
  SqliteVfs(const SqliteVfs&) = delete;
  SqliteVfs& operator=(const SqliteVfs&) = delete;

  // For sqlite3_open_v2.
  const char* name() const { return name_.c_str(); }

 private:
  const std::string name_;
  sqlite3_vfs vfs_;
};

}  // namespace intrawarp::state

#endif  // INTRAWARP_SERVER_STATE_SQLITE_VFS_H_
