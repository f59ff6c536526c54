// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_verify.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/audit/audit_record.h"

namespace intrawarp::audit {
namespace {

absl::StatusOr<std::vector<int64_t>> FileNumbers(state::FileLayer& files, const std::string& directory) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> number = AuditFileNumber(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

class Verifier {
 public:
  Verifier(state::FileLayer& files, std::string directory, const ChainHash& hash, Position after)
      : files_(files), directory_(std::move(directory)), hash_(hash) {
    found_.end = std::move(after);
  }

  // A position that a record of the log has to have.
  void Expect(const std::optional<Position>& position, const char* name) {
    if (position) expected_.push_back({*position, name});
  }

  absl::Status Read(int64_t number, bool is_last) {
    name_ = AuditFileName(number);
    line_ = 0;
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<state::File> file,
                               files_.Open(absl::StrCat(directory_, "/", name_), state::OpenMode::kRead));
    LineReader reader(*file);
    for (;;) {
      absl::StatusOr<std::optional<absl::string_view>> line = reader.Next();
      if (absl::IsDataLoss(line.status())) {
        Error(line.status().message());
        return absl::OkStatus();
      }
      INTRAWARP_RETURN_IF_ERROR(line.status());
      if (!line->has_value()) break;
      ++line_;
      Check(**line);
    }
    if (reader.torn_bytes() == 0) return absl::OkStatus();
    found_.torn_bytes = reader.torn_bytes();
    if (!is_last) Error("the last line has no end");
    return absl::OkStatus();
  }

  AuditFindings Finish() {
    for (const Expected& expected : expected_) {
      if (expected.position.seq > found_.end.seq) {
        Add(absl::StrCat("records ", found_.end.seq + 1, " to ", expected.position.seq, " are missing: ", expected.name,
                         " names the last of them"));
      }
    }
    for (const auto& [call, seq] : begun_) found_.unfinished.push_back(seq);
    std::sort(found_.unfinished.begin(), found_.unfinished.end());
    if (found_.unfinished.size() > kMaxUnfinished) found_.unfinished.resize(kMaxUnfinished);
    return std::move(found_);
  }

 private:
  struct Expected {
    Position position;
    std::string name;
  };

  void Check(absl::string_view text) {
    const std::optional<Line> line = ParseLine(text);
    if (!line) return Error("is not a record");
    ++found_.records;
    Chain(*line);
    Pair(*line);
    found_.end = {line->seq, std::string(line->hash)};
    for (const Expected& expected : expected_) {
      if (expected.position.seq == line->seq && expected.position.hash != line->hash) {
        Error(absl::StrCat("record ", line->seq, " is not the one that ", expected.name, " names"));
      }
    }
  }

  // A call's begin and end.
  void Pair(const Line& line) {
    if (!absl::StrContains(line.json, "\"call\":")) return;
    const nlohmann::json record = nlohmann::json::parse(line.json, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("call") || !record["call"].is_string()) return;
    const std::string call = record["call"];
    if (record.contains("outcome") && record["outcome"] == kBegun) {
      begun_[call] = line.seq;
    } else {
      begun_.erase(call);
    }
  }

  // Goes on from the record's own hash, so that one wrong record makes one error.
  void Chain(const Line& line) {
    const int64_t expected = found_.end.seq + 1;
    if (line.seq > expected) return Error(absl::StrCat("records ", expected, " to ", line.seq - 1, " are missing"));
    if (line.seq < expected) return Error(absl::StrCat("record ", line.seq, " is out of order"));
    if (hash_.Next(found_.end.hash, line.json) != line.hash) {
      Error(absl::StrCat("record ", line.seq, " or the one before it was changed"));
    }
  }

  void Error(absl::string_view what) { Add(absl::StrCat(name_, " line ", line_, ": ", what)); }
  void Add(std::string error) {
    if (found_.errors.size() < kMaxErrors) found_.errors.push_back(std::move(error));
  }

  state::FileLayer& files_;
  const std::string directory_;
  const ChainHash& hash_;
  std::vector<Expected> expected_;
  std::map<std::string, int64_t> begun_;  // calls without an end so far, and the record of their begin
  AuditFindings found_;
  std::string name_;
  int64_t line_ = 0;
};

}  // namespace

absl::StatusOr<AuditFindings> VerifyAudit(state::FileLayer& files, const std::string& directory, const ChainHash& hash,
                                          const AuditExpectations& expected) {
  Verifier verifier(files, directory, hash, expected.after);
  // Before the files, which a server may append to meanwhile.
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<Head> head, ReadHead(files, directory));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, FileNumbers(files, directory));
  if (numbers.empty() && !head) return absl::NotFoundError("the directory holds no audit log");
  if (head && head->position.seq > 0) verifier.Expect(head->position, "the file head");
  verifier.Expect(expected.head, "the known head");
  for (size_t i = 0; i < numbers.size(); ++i) {
    INTRAWARP_RETURN_IF_ERROR(verifier.Read(numbers[i], i + 1 == numbers.size()));
  }
  return verifier.Finish();
}

}  // namespace intrawarp::audit
