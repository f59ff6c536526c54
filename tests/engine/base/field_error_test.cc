// SPDX-License-Identifier: Apache-2.0
#include "engine/base/field_error.h"

#include <gtest/gtest.h>

#include "absl/strings/cord.h"

namespace intrawarp {
namespace {

constexpr char kOtherPayload[] = "test/other";

TEST(FieldError, NamesItsFieldInMessageAndPayload) {
  const absl::Status status = FieldError(absl::StatusCode::kInvalidArgument, "levels", "is 17, must be 1 to 16");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "levels: is 17, must be 1 to 16");
  EXPECT_EQ(FieldOf(status), "levels");
}

TEST(FieldError, WithinPutsOuterPathsInFront) {
  const absl::Status inner = FieldError(absl::StatusCode::kUnimplemented, "metric", "ssd alone");
  const absl::Status outer = Within("options", Within("stages[1]", inner));
  EXPECT_EQ(outer.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FieldOf(outer), "options.stages[1].metric");
  EXPECT_EQ(outer.message(), "options.stages[1].metric: ssd alone");
}

TEST(FieldError, WithinPutsNoDotBeforeABracket) {
  const absl::Status status = Within("stages", FieldError(absl::StatusCode::kInvalidArgument, "[2].levels", "is 0"));
  EXPECT_EQ(FieldOf(status), "stages[2].levels");
  EXPECT_EQ(status.message(), "stages[2].levels: is 0");
}

TEST(FieldError, WithinKeepsOtherPayloads) {
  absl::Status status = FieldError(absl::StatusCode::kInvalidArgument, "levels", "is 0");
  status.SetPayload(kOtherPayload, absl::Cord("kept"));
  EXPECT_EQ(Within("stages[0]", status).GetPayload(kOtherPayload), absl::Cord("kept"));
}

TEST(FieldError, StatusesWithoutAFieldStayAsTheyAre) {
  EXPECT_EQ(Within("options", absl::OkStatus()), absl::OkStatus());
  const absl::Status plain = absl::InvalidArgumentError("levels: looks like a path, but is a sentence");
  EXPECT_EQ(Within("options", plain), plain);
  EXPECT_EQ(FieldOf(plain), "");
  EXPECT_EQ(FieldOf(absl::OkStatus()), "");
}

}  // namespace
}  // namespace intrawarp
