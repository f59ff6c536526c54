// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/cli/matrix_files.h"

namespace intrawarp::cli {
namespace {

constexpr char kUsagePayload[] = "intrawarp/wrong_command_line";
constexpr char kNotOkPayload[] = "intrawarp/verdict_not_ok";

}  // namespace

absl::Status UsageError(absl::Status status) {
  if (!status.ok()) status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) { return status.GetPayload(kUsagePayload).has_value(); }

absl::Status NotOkError(absl::Status status) {
  if (!status.ok()) status.SetPayload(kNotOkPayload, absl::Cord());
  return status;
}

bool IsNotOkError(const absl::Status& status) { return status.GetPayload(kNotOkPayload).has_value(); }

std::string ErrorText(const absl::Status& status) {
  std::string line = ShownMatrixNames(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return line;
}

FlagSpec JsonFlagSpec() {
  return {
      .name = "json", .type = FlagType::kSwitch, .placeholder = "", .help = "as JSON, with the names of the protos"};
}

}  // namespace intrawarp::cli
