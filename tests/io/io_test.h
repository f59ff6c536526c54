// SPDX-License-Identifier: Apache-2.0
// For the tests of io: files that vanish with the test, whole files as strings, and the public test data.
#ifndef INTRAWARP_TESTS_IO_IO_TEST_H_
#define INTRAWARP_TESTS_IO_IO_TEST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/field_error.h"

namespace intrawarp::io {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// The field that a message "field: description" of a refused input begins with; empty for other messages.
inline std::string NamedField(const absl::Status& status) {
  const std::string message(status.message());
  const bool is_refusal = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) || absl::IsDataLoss(status);
  std::smatch field;
  return is_refusal && std::regex_search(message, field, std::regex("^([A-Za-z_]\\w*): ")) ? field[1].str() : "";
}

// A failed status with this code whose message holds `text`. A field that the message begins with is in the payload.
MATCHER_P2(Fails, code, text, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString() << ", the field of the payload: " << FieldOf(status);
  return status.code() == code && status.message().find(text) != absl::string_view::npos &&
         (NamedField(status).empty() || FieldOf(status) == NamedField(status));
}
MATCHER(Succeeds, "") {
  *result_listener << StatusOf(arg).ToString();
  return arg.ok();
}

class FileTest : public testing::Test {
 protected:
  FileTest() {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("intrawarp_") + info->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Put(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary).write(contents.data(), static_cast<std::streamsize>(contents.size()));
    return Path(name);
  }
  static std::string Get(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::filesystem::path folder_;
};

// The path of a public test file, when the folder is at hand.
inline std::optional<std::string> TestData(const std::string& name) {
  const char* folder = std::getenv("INTRAWARP_TEST_DATA");
  if (folder == nullptr) return std::nullopt;
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_IO_TEST_H_
