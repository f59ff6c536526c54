// SPDX-License-Identifier: Apache-2.0
// Uploads of matrices with random damage, the same in every run: each call is refused with a status of the contract, or
// makes a matrix that is valid. Nothing is left of what was refused, and the server goes on.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/server/matrix_client.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace intrawarp::server {
namespace {

using Messages = std::vector<std::string>;

class Damage {
 public:
  explicit Damage(uint32_t seed) : random_(seed) {}

  // The messages of an upload; what is damaged before they are made has its true digest and size.
  Messages Upload(const UploadData& whole) {
    UploadData data = whole;
    const size_t kind = Below(4);
    if (kind == 0) DamageArrays(data);
    if (kind == 1) DamageHeader(data.header);
    Messages messages = InMessages(data);
    if (kind == 2) DamageOrder(messages);
    if (kind == 3) DamageBytes(messages[Below(messages.size())]);
    return messages;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  int64_t Number() {
    static const int64_t numbers[] = {0,
                                      1,
                                      2,
                                      -1,
                                      7,
                                      8,
                                      9,
                                      int64_t{1} << 31,
                                      (int64_t{1} << 31) - 1,
                                      int64_t{1} << 61,
                                      std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min()};
    return numbers[Below(std::size(numbers))];
  }

  void DamageArrays(UploadData& data) {
    const int times = static_cast<int>(1 + Below(3));
    for (int i = 0; i < times; ++i) {
      const size_t word = Below(data.bytes.size() / 4);
      const int64_t number = Number();
      std::memcpy(data.bytes.data() + 4 * word, &number, 4);
    }
    data.Seal();
  }
  void DamageHeader(v1::UploadHeader& header) {
    v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
    switch (Below(7)) {
      case 0:
        return shape.set_rows(Number());
      case 1:
        return shape.set_columns(Number());
      case 2:
        return shape.set_entries(Number());
      case 3:
        return shape.set_value_type(static_cast<v1::ValueType>(Below(4)));
      case 4:
        return header.set_total_bytes(Number());
      case 5:
        return header.mutable_sha256()->resize(Below(40));
      default:
        return header.set_upload_id(std::string(Below(80), 'u'));
    }
  }
  Messages InMessages(const UploadData& data) {
    v1::UploadRequest request;
    *request.mutable_header() = data.header;
    Messages messages = {request.SerializeAsString()};
    const size_t chunk = 1 + Below(data.bytes.size());
    for (size_t at = 0; at < data.bytes.size(); at += chunk) {
      *request.mutable_chunk() = MakeChunk(static_cast<int64_t>(at), data.bytes.substr(at, chunk));
      messages.push_back(request.SerializeAsString());
      if (messages.size() > 20) break;  // the rest is missing
    }
    return messages;
  }
  void DamageOrder(Messages& messages) {
    const size_t at = Below(messages.size()), other = Below(messages.size());
    switch (Below(3)) {
      case 0:
        return std::swap(messages[at], messages[other]);
      case 1:
        messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(at));
        return;
      default:
        messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(at), std::string(messages[other]));
    }
  }
  void DamageBytes(std::string& message) {
    const int times = static_cast<int>(1 + Below(4));
    for (int i = 0; i < times && !message.empty(); ++i) {
      if (Below(4) == 0) {
        message.resize(Below(message.size()));
      } else {
        message[Below(message.size())] = static_cast<char>(random_());
      }
    }
  }

  std::mt19937 random_;
};

struct Answer {
  grpc::Status status;
  v1::UploadResponse response;
};

Answer Send(const std::shared_ptr<grpc::Channel>& channel, const Messages& messages) {
  RawCall call(channel, "/intrawarp.v1.BulkService/Upload", std::chrono::seconds(60));
  bool open = true;
  for (size_t i = 0; open && i < messages.size(); ++i) open = call.Write(messages[i]);
  if (open) call.WritesDone();
  Answer answer;
  if (const std::optional<std::string> response = call.Read()) {
    EXPECT_TRUE(answer.response.ParseFromString(*response));
  }
  answer.status = call.Finish();
  return answer;
}

TEST(MatrixFuzz, DamagedUploadsAreRefusedOrValid) {
  TestServer test;
  auto stub = test.Stub<v1::BulkService>();
  const UploadData data = MakeMatrix(RandomCsr<float>(9, 8, 4, 1), "u");
  Damage damage(3);
  const std::set<int> codes = {grpc::INVALID_ARGUMENT,  grpc::OUT_OF_RANGE,   grpc::DATA_LOSS,
                               grpc::ABORTED,           grpc::ALREADY_EXISTS, grpc::FAILED_PRECONDITION,
                               grpc::RESOURCE_EXHAUSTED};
  int valid = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    SCOPED_TRACE(testing::Message() << "upload " << i);
    const Answer answer = Send(test.channel, damage.Upload(data));
    if (answer.status.ok()) {
      ++valid;
      const std::string& name = answer.response.sparse_matrix().name();
      const DownloadedBytes back = DownloadMatrix(*stub, name);
      ASSERT_TRUE(back.status.ok()) << back.status.error_message();
      CsrFromBytes<float>(back.header.sparse_matrix().shape(), back.bytes);  // checks it
      ASSERT_TRUE(test.server->context().matrices.Erase(name.substr(name.find('/') + 1)).ok());
    } else {
      ++refused;
      ASSERT_EQ(codes.count(answer.status.error_code()), 1u)
          << answer.status.error_code() << " " << answer.status.error_message();
    }
    test.clock.Advance(std::chrono::hours(1));
    test.server->Housekeep();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(valid, 50);
  EXPECT_GT(refused, 500);
  const v1::Usage usage = test.WaitForExpiredUsage([](const v1::Usage& u) { return u.ByteSizeLong() == 0; });
  EXPECT_EQ(usage.ByteSizeLong(), 0u) << usage.ShortDebugString();
}

}  // namespace
}  // namespace intrawarp::server
