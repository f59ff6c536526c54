// SPDX-License-Identifier: Apache-2.0
// Catalogue: the rows of what a state directory keeps, in SQLite (write-ahead log, synchronous=FULL): a row that was
// inserted outlives a loss of power.
//
// The schema has a version, SQLite's user_version. An older catalogue is brought forward step by step, in one
// transaction; a newer one is refused.
//
// Errors: RESOURCE_EXHAUSTED when the disk is full, UNAVAILABLE when it cannot be written or read, DATA_LOSS for a file
// that is not a catalogue or is damaged. Thread-compatible.
#ifndef INTRAWARP_SERVER_STATE_CATALOGUE_H_
#define INTRAWARP_SERVER_STATE_CATALOGUE_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/state/file_layer.h"
#include "server/state/sqlite_vfs.h"

namespace intrawarp::state {

// The numbers are those in the file.
enum class ObjectKind { kVolume = 1, kSparseMatrix = 2, kTransform = 3 };

// "volumes/a", "sparseMatrices/b", "transforms/c".
std::string ObjectName(ObjectKind kind, absl::string_view id);

// One object. Times are in nanoseconds since 1970.
struct ObjectRow {
  ObjectKind kind = ObjectKind::kVolume;
  std::string id;
  // By the server.
  bool id_was_chosen = false;
  // A serialised intrawarp.v1.UploadHeader, with which the payload makes the object.
  std::string header;
  // For a computed object, its serialised answer with the report; empty for an upload.
  std::string description;
  // The SHA-256 of the payload, and its size; no file belongs to a payload of 0 bytes.
  std::string payload;
  int64_t payload_bytes = 0;
  // A SHA-256 over all that tells an upload from others; empty for a computed object.
  std::string identity;
  int64_t create_time = 0;
  std::optional<int64_t> expire_time;
  // The request with an id that made the object; empty without one.
  std::string request_id;
  std::string request_fingerprint;
  // The name of the identity whose it is; empty: nobody's. An id belongs to its owner.
  std::string owner;

  friend bool operator==(const ObjectRow&, const ObjectRow&) = default;
};

// One open session. Its memory and its stream are not kept: a start makes it again from its config, its description and
// the transform that its next frame starts from.
struct SessionRow {
  std::string id;
  std::string owner;
  // Tells a session from an earlier one of the same id and owner, whose late changes are not its own.
  std::string incarnation;
  // Whether an admin opened it, who may use what is others'.
  bool by_admin = false;
  // A serialised intrawarp.v1.NavigateConfig, as the stream had it.
  std::string config;
  // The identity (ObjectRow::identity) of its resident volume, and prints of the other objects that it names.
  std::string resident;
  // A serialised intrawarp.v1.Session.
  std::string description;
  // A serialised intrawarp.v1.UploadHeader, with which the payload makes the transform of description's
  // start_frame_number, and an intrawarp.v1.Transform that describes it; both empty without one.
  std::string start_header;
  std::string start_description;
  // A serialised intrawarp.v1.RegistrationOptions with the stages that were chosen for good; empty without a choice.
  std::string chosen;
  // The SHA-256 of the start's payload, and its size; no file belongs to a payload of 0 bytes.
  std::string payload;
  int64_t payload_bytes = 0;

  friend bool operator==(const SessionRow&, const SessionRow&) = default;
};

// An operation, which may have ended.
struct OperationRow {
  std::string id;
  std::string owner;
  // The fingerprint of the request that began it.
  std::string fingerprint;
  // A serialised intrawarp.v1.Operation.
  std::string description;

  friend bool operator==(const OperationRow&, const OperationRow&) = default;
};

// The facts that one start leaves for the next. Times are in nanoseconds.
struct CatalogueClock {
  // The latest time of the store (StateStore::start_time) that was written, since 1970; 0: none was.
  int64_t seen = 0;
  // The time of the store less the wall clock's.
  int64_t ahead = 0;
  // The number of starts that have written this catalogue, or another one beside the same payloads.
  int64_t generation = 0;

  friend bool operator==(const CatalogueClock&, const CatalogueClock&) = default;
};

class Catalogue {
 public:
  // The steps from version to version, the first from an empty file.
  static absl::Span<const char* const> Schema();

  // Opens the catalogue at `path`, or makes it. `files` outlives it. A row that it shows outlives a loss of power, also
  // one that a process wrote and was killed before it synced. FAILED_PRECONDITION for a newer version.
  static absl::StatusOr<std::unique_ptr<Catalogue>> Open(FileLayer& files, const std::string& path,
                                                         absl::Span<const char* const> schema = Schema());
  ~Catalogue();
  Catalogue(const Catalogue&) = delete;
  Catalogue& operator=(const Catalogue&) = delete;

  // ALREADY_EXISTS when there is a row of this kind, id and owner.
  absl::Status Insert(const ObjectRow& row);
  // NOT_FOUND when there is none.
  absl::Status Remove(ObjectKind kind, const std::string& id, const std::string& owner = "");
  // In order of kind, id and owner.
  absl::StatusOr<std::vector<ObjectRow>> List();
  // The payload of an object, empty for one of 0 bytes; NOT_FOUND when there is no row.
  absl::StatusOr<std::string> PayloadOf(ObjectKind kind, const std::string& id, const std::string& owner = "");

  // Takes the place of a row with this id and owner.
  absl::Status InsertSession(const SessionRow& row);
  // NOT_FOUND when there is no row of this id, owner and incarnation.
  absl::Status UpdateSession(const SessionRow& row);
  absl::Status RemoveSession(const std::string& id, const std::string& owner, const std::string& incarnation);
  // In order of id and owner.
  absl::StatusOr<std::vector<SessionRow>> ListSessions();
  // The payload of the session with this id and owner, whatever its incarnation; empty without one.
  absl::StatusOr<std::string> SessionPayload(const std::string& id, const std::string& owner);

  // Takes the place of a row with this id and owner.
  absl::Status PutOperation(const OperationRow& row);
  // OK also when there is no such row.
  absl::Status RemoveOperation(const std::string& id, const std::string& owner);
  // In order of id and owner.
  absl::StatusOr<std::vector<OperationRow>> ListOperations();

  absl::StatusOr<CatalogueClock> Clock();
  absl::Status SetClock(const CatalogueClock& clock);

  // Whether an object or a session needs it.
  absl::StatusOr<bool> UsesPayload(const std::string& payload);
  // Writes a transaction that changes no row. After a transaction that failed, whether the disk has it is open until
  // the next one succeeds, which takes its place.
  absl::Status Settle();
  // SQLite's own check of the file: DATA_LOSS with its first finding.
  absl::Status CheckIntegrity();

 private:
  explicit Catalogue(FileLayer& files) : files_(files), vfs_(files) {}
  absl::Status SyncLog(const std::string& path);
  absl::Status OpenDatabase(const std::string& path);
  absl::Status Migrate(absl::Span<const char* const> schema);
  absl::Status Run(const std::string& sql);
  absl::StatusOr<int64_t> Number(const char* sql);
  absl::Status LastError(int code) const;
  // The outcome of a statement that changes one session.
  absl::Status ChangedSession(int code, const std::string& id) const;

  FileLayer& files_;
  SqliteVfs vfs_;
  sqlite3* database_ = nullptr;
};

}  // namespace intrawarp::state

#endif  // INTRAWARP_SERVER_STATE_CATALOGUE_H_
