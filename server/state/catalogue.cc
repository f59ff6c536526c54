// SPDX-License-Identifier: Apache-2.0
#include "server/state/catalogue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::state {
namespace {

constexpr const char* kSchema[] = {
    "CREATE TABLE objects ("
    " kind INTEGER NOT NULL,"
    " id TEXT NOT NULL,"
    " id_was_chosen INTEGER NOT NULL,"
    " header BLOB NOT NULL,"
    " description BLOB NOT NULL,"
    " payload BLOB NOT NULL,"
    " payload_bytes INTEGER NOT NULL,"
    " identity BLOB NOT NULL,"
    " create_time INTEGER NOT NULL,"
    " expire_time INTEGER,"
    " request_id TEXT NOT NULL,"
    " request_fingerprint BLOB NOT NULL,"
    " PRIMARY KEY (kind, id)) WITHOUT ROWID;"
    "CREATE INDEX objects_by_payload ON objects (payload);"
    "CREATE TABLE settled (count INTEGER NOT NULL);"
    "INSERT INTO settled VALUES (0);",

    // Version 2: every object has an owner, and an id belongs to its owner. What was kept before is nobody's. The
    // columns of the key come first: SQLite 3.40's integrity_check finds errors that are none in other orders.
    "CREATE TABLE owned ("
    " kind INTEGER NOT NULL,"
    " id TEXT NOT NULL,"
    " owner TEXT NOT NULL,"
    " id_was_chosen INTEGER NOT NULL,"
    " header BLOB NOT NULL,"
    " description BLOB NOT NULL,"
    " payload BLOB NOT NULL,"
    " payload_bytes INTEGER NOT NULL,"
    " identity BLOB NOT NULL,"
    " create_time INTEGER NOT NULL,"
    " expire_time INTEGER,"
    " request_id TEXT NOT NULL,"
    " request_fingerprint BLOB NOT NULL,"
    " PRIMARY KEY (kind, id, owner)) WITHOUT ROWID;"
    "INSERT INTO owned SELECT kind, id, '', id_was_chosen, header, description, payload, payload_bytes, identity,"
    " create_time, expire_time, request_id, request_fingerprint FROM objects;"
    "DROP TABLE objects;"
    "ALTER TABLE owned RENAME TO objects;"
    "CREATE INDEX objects_by_payload ON objects (payload);",

    // Version 3: open sessions.
    "CREATE TABLE sessions ("
    " id TEXT NOT NULL,"
    " owner TEXT NOT NULL,"
    " incarnation TEXT NOT NULL,"
    " by_admin INTEGER NOT NULL,"
    " config BLOB NOT NULL,"
    " resident BLOB NOT NULL,"
    " description BLOB NOT NULL,"
    " start_header BLOB NOT NULL,"
    " start_description BLOB NOT NULL,"
    " chosen BLOB NOT NULL,"
    " payload BLOB NOT NULL,"
    " payload_bytes INTEGER NOT NULL,"
    " PRIMARY KEY (id, owner)) WITHOUT ROWID;"
    "CREATE INDEX sessions_by_payload ON sessions (payload);",

    // Version 4: operations.
    "CREATE TABLE operations ("
    " id TEXT NOT NULL,"
    " owner TEXT NOT NULL,"
    " fingerprint BLOB NOT NULL,"
    " description BLOB NOT NULL,"
    " PRIMARY KEY (id, owner)) WITHOUT ROWID;",

    // Version 5: the clock, one row. What was kept before was alive when the newest object came.
    "CREATE TABLE clock (seen INTEGER NOT NULL, ahead INTEGER NOT NULL, generation INTEGER NOT NULL);"
    "INSERT INTO clock SELECT COALESCE(MAX(create_time), 0), 0, 0 FROM objects;",
};

// A prepared statement, whose parameters are bound in order.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) { code_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void BindNumber(std::optional<int64_t> value) {
    if (code_ != SQLITE_OK) return;
    code_ = value ? sqlite3_bind_int64(statement_, next_, *value) : sqlite3_bind_null(statement_, next_);
    ++next_;
  }
  // The text or bytes are not copied.
  void BindText(const std::string& value) {
    if (code_ != SQLITE_OK) return;
    code_ = sqlite3_bind_text(statement_, next_++, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
  }
  void BindBytes(const std::string& value) {
    if (code_ != SQLITE_OK) return;
    // A null pointer would be NULL.
    const char* const data = value.empty() ? "" : value.data();
    code_ = sqlite3_bind_blob64(statement_, next_++, data, value.size(), SQLITE_STATIC);
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return code_ == SQLITE_OK ? sqlite3_step(statement_) : code_; }

  int64_t Number(int column) const { return sqlite3_column_int64(statement_, column); }
  bool IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  std::string Bytes(int column) const {
    const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
    return data == nullptr ? "" : std::string(data, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
  int next_ = 1;
};

ObjectRow RowOf(const Statement& from) {
  ObjectRow row;
  row.kind = static_cast<ObjectKind>(from.Number(0));
  row.id = from.Bytes(1);
  row.id_was_chosen = from.Number(2) != 0;
  row.header = from.Bytes(3);
  row.description = from.Bytes(4);
  row.payload = from.Bytes(5);
  row.payload_bytes = from.Number(6);
  row.identity = from.Bytes(7);
  row.create_time = from.Number(8);
  if (!from.IsNull(9)) row.expire_time = from.Number(9);
  row.request_id = from.Bytes(10);
  row.request_fingerprint = from.Bytes(11);
  row.owner = from.Bytes(12);
  return row;
}

SessionRow SessionRowOf(const Statement& from) {
  SessionRow row;
  row.id = from.Bytes(0);
  row.owner = from.Bytes(1);
  row.incarnation = from.Bytes(2);
  row.by_admin = from.Number(3) != 0;
  row.config = from.Bytes(4);
  row.resident = from.Bytes(5);
  row.description = from.Bytes(6);
  row.start_header = from.Bytes(7);
  row.start_description = from.Bytes(8);
  row.chosen = from.Bytes(9);
  row.payload = from.Bytes(10);
  row.payload_bytes = from.Number(11);
  return row;
}

absl::Status NoRow(ObjectKind kind, const std::string& id) {
  return absl::NotFoundError(absl::StrCat("catalogue: there is no ", ObjectName(kind, id)));
}

bool IsKind(ObjectKind kind) {
  return kind == ObjectKind::kVolume || kind == ObjectKind::kSparseMatrix || kind == ObjectKind::kTransform;
}

}  // namespace

std::string ObjectName(ObjectKind kind, absl::string_view id) {
  switch (kind) {
    case ObjectKind::kVolume:
      return absl::StrCat("volumes/", id);
    case ObjectKind::kSparseMatrix:
      return absl::StrCat("sparseMatrices/", id);
    case ObjectKind::kTransform:
      return absl::StrCat("transforms/", id);
  }
  return absl::StrCat("objects/", id);
}

absl::Span<const char* const> Catalogue::Schema() { return kSchema; }

absl::StatusOr<std::unique_ptr<Catalogue>> Catalogue::Open(FileLayer& files, const std::string& path,
                                                           absl::Span<const char* const> schema) {
  std::unique_ptr<Catalogue> catalogue(new Catalogue(files));
  INTRAWARP_RETURN_IF_ERROR(catalogue->SyncLog(path));
  INTRAWARP_RETURN_IF_ERROR(catalogue->OpenDatabase(path));
  INTRAWARP_RETURN_IF_ERROR(catalogue->Migrate(schema));
  return catalogue;
}

Catalogue::~Catalogue() { sqlite3_close(database_); }

absl::Status Catalogue::LastError(int code) const {
  const std::string message =
      absl::StrCat("catalogue: ", database_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database_));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// SQLite takes back the rows of a log that a process left without a sync when it was killed.
absl::Status Catalogue::SyncLog(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<File>> log = files_.Open(path + "-wal", OpenMode::kWriteExisting);
  if (absl::IsNotFound(log.status())) return absl::OkStatus();
  const absl::Status synced = log.ok() ? (*log)->Sync() : log.status();
  if (synced.ok() || absl::IsResourceExhausted(synced)) return synced;
  return absl::UnavailableError(absl::StrCat("catalogue: its log cannot be synced: ", synced.message()));
}

absl::Status Catalogue::OpenDatabase(const std::string& path) {
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &database_, kFlags, vfs_.name());
  if (code != SQLITE_OK) return LastError(code);
  sqlite3_extended_result_codes(database_, 1);
  return Run(
      "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
      "PRAGMA trusted_schema=OFF;");
}

absl::Status Catalogue::Run(const std::string& sql) {
  const int code = sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return absl::OkStatus();
  const absl::Status status = LastError(code);
  // The error may have left a transaction open.
  if (sqlite3_get_autocommit(database_) == 0) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::StatusOr<int64_t> Catalogue::Number(const char* sql) {
  Statement statement(database_, sql);
  const int code = statement.Step();
  if (code != SQLITE_ROW) return LastError(code);
  return statement.Number(0);
}

absl::Status Catalogue::Migrate(absl::Span<const char* const> schema) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t version, Number("PRAGMA user_version"));
  const auto newest = static_cast<int64_t>(schema.size());
  if (version < 0 || version > newest) {
    return absl::FailedPreconditionError(absl::StrCat("catalogue: has version ", version,
                                                      ", this program knows versions up to ", newest,
                                                      ": a newer program has written it"));
  }
  if (version == newest) return absl::OkStatus();
  std::string sql = "BEGIN IMMEDIATE;";
  for (int64_t i = version; i < newest; ++i) absl::StrAppend(&sql, schema[static_cast<size_t>(i)]);
  absl::StrAppend(&sql, "PRAGMA user_version=", newest, ";COMMIT;");
  return Run(sql);
}

absl::Status Catalogue::Insert(const ObjectRow& row) {
  Statement insert(database_, "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  insert.BindNumber(static_cast<int64_t>(row.kind));
  insert.BindText(row.id);
  insert.BindText(row.owner);
  insert.BindNumber(row.id_was_chosen ? 1 : 0);
  insert.BindBytes(row.header);
  insert.BindBytes(row.description);
  insert.BindBytes(row.payload);
  insert.BindNumber(row.payload_bytes);
  insert.BindBytes(row.identity);
  insert.BindNumber(row.create_time);
  insert.BindNumber(row.expire_time);
  insert.BindText(row.request_id);
  insert.BindBytes(row.request_fingerprint);
  const int code = insert.Step();
  return code == SQLITE_DONE ? absl::OkStatus() : LastError(code);
}

absl::Status Catalogue::Remove(ObjectKind kind, const std::string& id, const std::string& owner) {
  Statement remove(database_, "DELETE FROM objects WHERE kind = ? AND id = ? AND owner = ?");
  remove.BindNumber(static_cast<int64_t>(kind));
  remove.BindText(id);
  remove.BindText(owner);
  const int code = remove.Step();
  if (code != SQLITE_DONE) return LastError(code);
  return sqlite3_changes(database_) == 1 ? absl::OkStatus() : NoRow(kind, id);
}

absl::StatusOr<std::string> Catalogue::PayloadOf(ObjectKind kind, const std::string& id, const std::string& owner) {
  Statement select(database_, "SELECT payload, payload_bytes FROM objects WHERE kind = ? AND id = ? AND owner = ?");
  select.BindNumber(static_cast<int64_t>(kind));
  select.BindText(id);
  select.BindText(owner);
  const int code = select.Step();
  if (code == SQLITE_DONE) return NoRow(kind, id);
  if (code != SQLITE_ROW) return LastError(code);
  return select.Number(1) > 0 ? select.Bytes(0) : std::string();
}

absl::StatusOr<std::vector<ObjectRow>> Catalogue::List() {
  Statement select(database_,
                   "SELECT kind, id, id_was_chosen, header, description, payload, payload_bytes, identity, create_time,"
                   " expire_time, request_id, request_fingerprint, owner FROM objects ORDER BY kind, id, owner");
  std::vector<ObjectRow> rows;
  int code = select.Step();
  for (; code == SQLITE_ROW; code = select.Step()) {
    rows.push_back(RowOf(select));
    if (!IsKind(rows.back().kind)) return absl::DataLossError("catalogue: holds an object of an unknown kind");
  }
  if (code != SQLITE_DONE) return LastError(code);
  return rows;
}

absl::Status Catalogue::InsertSession(const SessionRow& row) {
  Statement insert(database_, "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  insert.BindText(row.id);
  insert.BindText(row.owner);
  insert.BindText(row.incarnation);
  insert.BindNumber(row.by_admin ? 1 : 0);
  insert.BindBytes(row.config);
  insert.BindBytes(row.resident);
  insert.BindBytes(row.description);
  insert.BindBytes(row.start_header);
  insert.BindBytes(row.start_description);
  insert.BindBytes(row.chosen);
  insert.BindBytes(row.payload);
  insert.BindNumber(row.payload_bytes);
  const int code = insert.Step();
  return code == SQLITE_DONE ? absl::OkStatus() : LastError(code);
}

absl::Status Catalogue::ChangedSession(int code, const std::string& id) const {
  if (code != SQLITE_DONE) return LastError(code);
  if (sqlite3_changes(database_) > 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("catalogue: there is no sessions/", id));
}

absl::Status Catalogue::UpdateSession(const SessionRow& row) {
  Statement update(
      database_,
      "UPDATE sessions SET description = ?, start_header = ?, start_description = ?, chosen = ?, payload = ?,"
      " payload_bytes = ? WHERE id = ? AND owner = ? AND incarnation = ?");
  update.BindBytes(row.description);
  update.BindBytes(row.start_header);
  update.BindBytes(row.start_description);
  update.BindBytes(row.chosen);
  update.BindBytes(row.payload);
  update.BindNumber(row.payload_bytes);
  update.BindText(row.id);
  update.BindText(row.owner);
  update.BindText(row.incarnation);
  return ChangedSession(update.Step(), row.id);
}

absl::Status Catalogue::RemoveSession(const std::string& id, const std::string& owner, const std::string& incarnation) {
  Statement remove(database_, "DELETE FROM sessions WHERE id = ? AND owner = ? AND incarnation = ?");
  remove.BindText(id);
  remove.BindText(owner);
  remove.BindText(incarnation);
  return ChangedSession(remove.Step(), id);
}

absl::StatusOr<std::vector<SessionRow>> Catalogue::ListSessions() {
  Statement select(database_,
                   "SELECT id, owner, incarnation, by_admin, config, resident, description, start_header,"
                   " start_description, chosen, payload, payload_bytes FROM sessions ORDER BY id, owner");
  std::vector<SessionRow> rows;
  int code = select.Step();
  for (; code == SQLITE_ROW; code = select.Step()) rows.push_back(SessionRowOf(select));
  if (code != SQLITE_DONE) return LastError(code);
  return rows;
}

absl::StatusOr<std::string> Catalogue::SessionPayload(const std::string& id, const std::string& owner) {
  Statement select(database_, "SELECT payload FROM sessions WHERE id = ? AND owner = ? AND payload_bytes > 0");
  select.BindText(id);
  select.BindText(owner);
  const int code = select.Step();
  if (code == SQLITE_ROW) return select.Bytes(0);
  if (code == SQLITE_DONE) return std::string();
  return LastError(code);
}

absl::Status Catalogue::PutOperation(const OperationRow& row) {
  Statement put(database_, "INSERT OR REPLACE INTO operations VALUES (?, ?, ?, ?)");
  put.BindText(row.id);
  put.BindText(row.owner);
  put.BindBytes(row.fingerprint);
  put.BindBytes(row.description);
  const int code = put.Step();
  return code == SQLITE_DONE ? absl::OkStatus() : LastError(code);
}

absl::Status Catalogue::RemoveOperation(const std::string& id, const std::string& owner) {
  Statement remove(database_, "DELETE FROM operations WHERE id = ? AND owner = ?");
  remove.BindText(id);
  remove.BindText(owner);
  const int code = remove.Step();
  return code == SQLITE_DONE ? absl::OkStatus() : LastError(code);
}

absl::StatusOr<std::vector<OperationRow>> Catalogue::ListOperations() {
  Statement select(database_, "SELECT id, owner, fingerprint, description FROM operations ORDER BY id, owner");
  std::vector<OperationRow> rows;
  int code = select.Step();
  for (; code == SQLITE_ROW; code = select.Step()) {
    rows.push_back({select.Bytes(0), select.Bytes(1), select.Bytes(2), select.Bytes(3)});
  }
  if (code != SQLITE_DONE) return LastError(code);
  return rows;
}

absl::StatusOr<CatalogueClock> Catalogue::Clock() {
  Statement select(database_, "SELECT seen, ahead, generation FROM clock");
  const int code = select.Step();
  if (code == SQLITE_DONE) return absl::DataLossError("catalogue: holds no clock");
  if (code != SQLITE_ROW) return LastError(code);
  return CatalogueClock{select.Number(0), select.Number(1), select.Number(2)};
}

absl::Status Catalogue::SetClock(const CatalogueClock& clock) {
  Statement update(database_, "UPDATE clock SET seen = ?, ahead = ?, generation = ?");
  update.BindNumber(clock.seen);
  update.BindNumber(clock.ahead);
  update.BindNumber(clock.generation);
  const int code = update.Step();
  return code == SQLITE_DONE ? absl::OkStatus() : LastError(code);
}

absl::StatusOr<bool> Catalogue::UsesPayload(const std::string& payload) {
  Statement select(database_,
                   "SELECT 1 FROM objects WHERE payload = ? AND payload_bytes > 0 UNION ALL"
                   " SELECT 1 FROM sessions WHERE payload = ? AND payload_bytes > 0 LIMIT 1");
  select.BindBytes(payload);
  select.BindBytes(payload);
  const int code = select.Step();
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return LastError(code);
}

absl::Status Catalogue::Settle() { return Run("UPDATE settled SET count = count + 1"); }

absl::Status Catalogue::CheckIntegrity() {
  Statement check(database_, "PRAGMA integrity_check(1)");
  const int code = check.Step();
  if (code != SQLITE_ROW) return LastError(code);
  const std::string finding = check.Bytes(0);
  return finding == "ok" ? absl::OkStatus() : absl::DataLossError(absl::StrCat("catalogue: ", finding));
}

}  // namespace intrawarp::state
