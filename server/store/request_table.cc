// SPDX-License-Identifier: Apache-2.0
#include "server/store/request_table.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr size_t kMaxIdLength = 64;

std::string DeterministicBytes(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

absl::Status ValidateRequestId(absl::string_view id, absl::string_view field) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (printable && id.size() <= kMaxIdLength) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must have at most ", kMaxIdLength, " printable characters"));
}

std::string Fingerprint(absl::string_view method, const google::protobuf::Message& request) {
  const std::string bytes = absl::StrCat(method, ":", DeterministicBytes(request));
  return io::Sha256Of(bytes.data(), bytes.size());
}

InputPrint InputPrint::OfText(absl::string_view text) { return InputPrint(io::Sha256Of(text.data(), text.size())); }

std::string WithInputs(std::string fingerprint, const std::vector<InputPrint>& inputs) {
  for (const InputPrint& input : inputs) fingerprint += input.bytes();
  return fingerprint;
}

bool IsRepetition(absl::string_view first, absl::string_view again) {
  if (first == again) return true;
  if (first.size() != again.size() || first.size() % InputPrint::kBytes != 0) return false;
  const std::string gone = InputPrint::Gone().bytes();
  for (size_t at = 0; at < first.size(); at += InputPrint::kBytes) {
    const absl::string_view asked = again.substr(at, InputPrint::kBytes);
    const bool is_gone = at > 0 && asked == gone;
    if (!is_gone && asked != first.substr(at, InputPrint::kBytes)) return false;
  }
  return true;
}

RequestTicket::~RequestTicket() {
  if (table_ != nullptr) table_->Leave(id_);
}

absl::StatusOr<RequestTicket> RequestTable::Enter(const RequestKey& key) {
  if (key.id.empty()) return RequestTicket();
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, entered] = fingerprints_.emplace(OwnedKey(key.id, key.owner), key.fingerprint);
  if (entered) return RequestTicket(this, it->first);
  if (!IsRepetition(it->second, key.fingerprint)) return RequestIdReused();
  return WithReason(absl::AbortedError("the first request with this request_id is under way"), v1::REQUEST_IN_PROGRESS);
}

int64_t RequestTable::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(fingerprints_.size());
}

void RequestTable::Leave(const std::string& id) {
  std::lock_guard<std::mutex> lock(mutex_);
  fingerprints_.erase(id);
}

absl::Status RequestIdReused() {
  return WithReason(absl::AlreadyExistsError("the request_id belongs to an earlier request with another content"),
                    v1::REQUEST_ID_REUSED);
}

}  // namespace intrawarp::server
