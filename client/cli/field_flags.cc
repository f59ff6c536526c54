// SPDX-License-Identifier: Apache-2.0
#include "client/cli/field_flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli {
namespace {

constexpr const char* kFieldFlags[] = {"field_encoding", "field_region", "field_stride"};

v1::FieldEncoding EncodingFromName(const std::string& name) {
  if (name == "float16") return v1::FIELD_ENCODING_FLOAT16;
  if (name == "int16") return v1::FIELD_ENCODING_INT16;
  if (name == "velocity") return v1::FIELD_ENCODING_VELOCITY;
  return v1::FIELD_ENCODING_FLOAT32;
}

// Whole numbers separated by commas.
absl::StatusOr<std::vector<int64_t>> ParseNumbers(const ParsedFlags& flags, const std::string& name) {
  std::vector<int64_t> numbers;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(flags.String(name), ','))) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(word, &number)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": '", word, "' is not a whole number"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status ParseRegion(const ParsedFlags& flags, v1::FieldRequest* request) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, ParseNumbers(flags, "field_region"));
  if (numbers.size() != 6) return absl::InvalidArgumentError("--field_region: must be X,Y,Z,NX,NY,NZ");
  for (int a = 0; a < 3; ++a) {
    request->add_region_start(numbers[a]);
    request->add_region_size(numbers[3 + a]);
  }
  return absl::OkStatus();
}

absl::Status ParseStride(const ParsedFlags& flags, v1::FieldRequest* request) {
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<int64_t> numbers, ParseNumbers(flags, "field_stride"));
  if (numbers.size() == 1) numbers.resize(3, numbers[0]);
  if (numbers.size() != 3) return absl::InvalidArgumentError("--field_stride: must be N or NX,NY,NZ");
  for (int64_t number : numbers) request->add_stride(number);
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagSpec> FieldFlagSpecs() {
  return {
      {.name = "field_encoding",
       .placeholder = "float32|float16|int16|velocity",
       .help = "how the field travels; files are float32; default float32; velocity: the one of log-demons instead",
       .choices = {"float32", "float16", "int16", "velocity"}},
      {.name = "field_region",
       .placeholder = "X,Y,Z,NX,NY,NZ",
       .help = "only these voxels of the fixed grid: the first, and how many"},
      {.name = "field_stride", .placeholder = "N[,N,N]", .help = "only every N-th voxel along x, y, z"},
  };
}

absl::StatusOr<v1::FieldRequest> ParseFieldFlags(const ParsedFlags& flags, bool used, const std::string& by) {
  v1::FieldRequest request;
  for (const char* name : kFieldFlags) {
    if (flags.Has(name) && !used)
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": only ", by, " uses it"));
  }
  request.set_encoding(EncodingFromName(flags.String("field_encoding")));
  if (flags.Has("field_region")) INTRAWARP_RETURN_IF_ERROR(ParseRegion(flags, &request));
  if (flags.Has("field_stride")) INTRAWARP_RETURN_IF_ERROR(ParseStride(flags, &request));
  return request;
}

bool IsWholeField(const v1::FieldRequest& request) {
  return request.region_start().empty() && request.region_size().empty() && request.stride().empty();
}

}  // namespace intrawarp::cli
