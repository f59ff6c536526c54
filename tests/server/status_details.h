// SPDX-License-Identifier: Apache-2.0
// What a client reads out of the details of an error.
#ifndef INTRAWARP_TESTS_SERVER_STATUS_DETAILS_H_
#define INTRAWARP_TESTS_SERVER_STATUS_DETAILS_H_

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>

#include <string>

#include "google/rpc/status.pb.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::server {

// The field that a status' details name; empty when none.
std::string FieldOf(const google::rpc::Status& status);
// The same. Fails for details without a published reason.
std::string FieldOf(const grpc::Status& status);

// The published reason that a status' details name. Fails for another one.
v1::ErrorReason ReasonOf(const google::rpc::Status& status);
v1::ErrorReason ReasonOf(const grpc::Status& status);

struct ErrorDetails {
  std::string reason;
  std::string field;  // of the first violation
  std::string resource;
  bool retry = false;
};
// Fails for details without a published reason.
ErrorDetails DetailsOf(const grpc::Status& status);

#define EXPECT_STATUS(status, expected_code, text)                               \
  do {                                                                           \
    const auto& status_ = (status);                                              \
    EXPECT_EQ(status_.error_code(), (expected_code)) << status_.error_message(); \
    EXPECT_THAT(status_.error_message(), testing::HasSubstr(text));              \
  } while (false)

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_STATUS_DETAILS_H_
