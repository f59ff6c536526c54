// SPDX-License-Identifier: Apache-2.0
// The client library against the server as a process, over connections that break.
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "tests/client/process.h"
#include "tests/support/server_process.h"
#include "tests/tcp_relay.h"

namespace intrawarp::client {
namespace {

class ClientServerTest : public testing::Test {
 protected:
  // The last shutdown of the library may wait ten seconds for one of its pollers; so there is none.
  static void SetUpTestSuite() { grpc_init(); }

  void SetUp() override {
    server_ = std::make_unique<ServerProcess>(INTRAWARPD);
    address_ = server_->grpc();
    ASSERT_FALSE(address_.empty());
    values_.resize(static_cast<size_t>(128) * 128 * 128);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>((i * 2654435761u) % 65536);
    upload_.geometry.size = {128, 128, 128};
    upload_.bytes = absl::string_view(reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(float));
  }

  void TearDown() override { server_->Stop(); }

  std::unique_ptr<ServerProcess> server_;
  std::string address_;
  std::vector<float> values_;
  VolumeUpload upload_;
};

TEST_F(ClientServerTest, AnUploadSurvivesBrokenConnections) {
  constexpr int kCuts = 2;
  TcpRelay relay(address_, {kCuts, [] { return 3 << 20; }, /*silent=*/false});
  const auto client = Client::Connect(relay.address());
  ASSERT_TRUE(client.ok());
  const auto uploaded = (*client)->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(relay.cuts(), kCuts);

  const auto direct = Client::Connect(address_);
  GridData back;
  ASSERT_TRUE((*direct)->DownloadVolume(uploaded->volume().name(), SinkInto(&back)).ok());
  EXPECT_EQ(back.values, values_);
  const auto info = (*direct)->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->usage().volumes(), 1);
  EXPECT_EQ(info->usage().uploads(), 0);
}

TEST_F(ClientServerTest, ADownloadSurvivesABrokenConnection) {
  const auto direct = Client::Connect(address_);
  const auto uploaded = (*direct)->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  TcpRelay relay(address_, {1, [] { return 3 << 20; }, /*silent=*/false});
  const auto client = Client::Connect(relay.address());
  GridData back;
  const absl::Status status = (*client)->DownloadVolume(uploaded->volume().name(), SinkInto(&back)).status();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(relay.cuts(), 1);
  EXPECT_EQ(back.values, values_);
}

TEST_F(ClientServerTest, AnUploadTwiceIsOneVolume) {
  const auto client = Client::Connect(address_);
  const auto first = (*client)->UploadVolume(upload_);
  const auto second = (*client)->UploadVolume(upload_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->already_resident());
  EXPECT_TRUE(second->already_resident());
  EXPECT_EQ(first->volume().name(), second->volume().name());
}

}  // namespace
}  // namespace intrawarp::client
