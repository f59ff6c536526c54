// SPDX-License-Identifier: Apache-2.0
// The form of an audit log on the disk.
//
// A log is a directory: "lock", "head", and the files "audit-00000001.log" and so on, which are only appended to. A
// line is a record: "HASH JSON\n". JSON is an object whose first member "seq" counts the records from 1 on. HASH is the
// SHA-256 of the HASH before (64 zeros before the first record) followed by JSON, as 64 hexadecimal digits; with a key
// it is the HMAC-SHA-256, which only a holder of the key can make. The first record of a file repeats the HASH before
// it as its member "previous", so that a file can be verified after older ones were moved away.
//
// "head" names a record that is in the log, in two lines "SEQ HASH CHECK\n" that are written in turn after each sync,
// so that one of them is whole at any moment. It may be some records behind; a log that ends before its head has lost
// records. CHECK is the begin of the SHA-256 of "SEQ HASH".
#ifndef INTRAWARP_SERVER_AUDIT_AUDIT_CHAIN_H_
#define INTRAWARP_SERVER_AUDIT_AUDIT_CHAIN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/state/file_layer.h"

namespace intrawarp::audit {

// The longest line. A record that would be longer is not written.
inline constexpr size_t kMaxLineBytes = size_t{128} << 10;
inline constexpr size_t kHashDigits = 64;

// A place in the log: the number of a record and its hash. The default is the place before the first record.
struct Position {
  int64_t seq = 0;
  std::string hash = std::string(kHashDigits, '0');
};

// Immutable, so safe for concurrent use.
class ChainHash {
 public:
  // An empty key makes a plain SHA-256.
  explicit ChainHash(std::string key) : key_(std::move(key)) {}
  bool is_keyed() const { return !key_.empty(); }
  // 64 hexadecimal digits.
  std::string Next(absl::string_view previous, absl::string_view json) const;

 private:
  const std::string key_;
};

// A line without its end. The views last as long as the line.
struct Line {
  absl::string_view hash;
  absl::string_view json;
  int64_t seq = 0;
};
// nullopt for what is not a record.
std::optional<Line> ParseLine(absl::string_view line);

// The key in a file, without white space around it. Errors of the files; INVALID_ARGUMENT "audit_key: ..." for one of
// less than 16 bytes or more than 4096.
absl::StatusOr<std::string> ReadKey(state::FileLayer& files, const std::string& path);

// "audit-00000001.log".
std::string AuditFileName(int64_t number);
// nullopt for other names.
std::optional<int64_t> AuditFileNumber(absl::string_view name);

// "SEQ HASH", as people note it down. INVALID_ARGUMENT "head: ...".
absl::StatusOr<Position> ParsePosition(absl::string_view text);
std::string FormatPosition(const Position& position);

// The head of a log, and which of its lines holds it (0 or 1).
struct Head {
  Position position;
  int line = 1;
};
inline constexpr size_t kHeadLineBytes = 103;
std::string FormatHeadLine(const Position& position);
// nullopt for a log without one; DATA_LOSS where neither line is whole; errors of the files.
absl::StatusOr<std::optional<Head>> ReadHead(state::FileLayer& files, const std::string& directory);

// The lines of a file in their order, without holding the file in memory. Thread-compatible.
class LineReader {
 public:
  explicit LineReader(state::File& file) : file_(file) {}
  // The next whole line, which lasts until the next call; nullopt at the end. DATA_LOSS for one beyond kMaxLineBytes.
  absl::StatusOr<std::optional<absl::string_view>> Next();
  // The offset at which the last whole line ended.
  int64_t offset() const { return offset_; }
  // The bytes of a last line without its end, known once Next has returned nullopt.
  int64_t torn_bytes() const { return static_cast<int64_t>(buffer_.size() - begin_); }

 private:
  state::File& file_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is not yet returned
  int64_t read_ = 0;
  int64_t offset_ = 0;
};

}  // namespace intrawarp::audit

#endif  // INTRAWARP_SERVER_AUDIT_AUDIT_CHAIN_H_
