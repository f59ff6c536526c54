// SPDX-License-Identifier: Apache-2.0
// Uploads through the client library: whole, resumed, answered early, refused, cancelled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/client.h"
#include "io/file/crc32c.h"
#include "io/file/digest.h"
#include "tests/client/fake_server.h"

namespace intrawarp::client {
namespace {

constexpr int64_t kChunk = 1000;

std::string Pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 2654435761u) >> 13);
  return bytes;
}

// What a server keeps of one upload.
struct Received {
  v1::UploadHeader header;
  std::string bytes;
  std::vector<std::string> upload_ids;
  std::vector<int64_t> first_offsets;
};

class ClientUploadTest : public testing::Test {
 protected:
  ClientUploadTest() {
    bytes_ = Pattern(20 * 10 * 5 * 2);
    upload_.id = "wanted";
    upload_.geometry.size = {20, 10, 5};
    upload_.pixel_type = PixelType::kInt16;
    upload_.bytes = bytes_;
    upload_.rescale_slope = 2;
    upload_.rescale_intercept = -1024;
    upload_.bytes = bytes_;
    ClientOptions options;
    options.chunk_bytes = kChunk;
    client_ = *Client::Connect(server_.target(), options);
    server_.bulk.upload_status = [this](grpc::ServerContext*, const v1::GetUploadStatusRequest* request,
                                        v1::GetUploadStatusResponse* response) {
      EXPECT_EQ(request->upload_id(), received_.header.upload_id());
      response->set_committed_bytes(static_cast<int64_t>(received_.bytes.size()));
      response->set_total_bytes(received_.header.total_bytes());
      return grpc::Status::OK;
    };
  }

  // Reads the header and at most `limit` bytes in order.
  void Receive(grpc::ServerReader<v1::UploadRequest>* reader, size_t limit) {
    v1::UploadRequest request;
    ASSERT_TRUE(reader->Read(&request));
    ASSERT_TRUE(request.has_header());
    received_.header = request.header();
    received_.upload_ids.push_back(request.header().upload_id());
    bool first = true;
    while (received_.bytes.size() < limit && reader->Read(&request)) {
      if (first) received_.first_offsets.push_back(request.chunk().offset());
      first = false;
      EXPECT_EQ(request.chunk().offset(), static_cast<int64_t>(received_.bytes.size()));
      EXPECT_LE(request.chunk().data().size(), static_cast<size_t>(kChunk));
      EXPECT_EQ(request.chunk().crc32c(), io::Crc32c(request.chunk().data().data(), request.chunk().data().size()));
      received_.bytes += request.chunk().data();
    }
  }

  grpc::Status Complete(grpc::ServerReader<v1::UploadRequest>* reader, v1::UploadResponse* response) {
    Receive(reader, bytes_.size() + 1);
    response->mutable_volume()->set_name("volumes/" + received_.header.id());
    return grpc::Status::OK;
  }

  std::string bytes_;
  VolumeUpload upload_;
  Received received_;
  std::atomic<int> calls_{0};
  FakeServer server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientUploadTest, SendsHeaderThenChunksInOrder) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
    return Complete(reader, response);
  };
  std::vector<int64_t> progress;
  upload_.on_progress = [&](int64_t sent, int64_t total) {
    EXPECT_EQ(total, 2000);
    progress.push_back(sent);
  };
  const auto uploaded = client_->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(uploaded->volume().name(), "volumes/wanted");
  EXPECT_EQ(received_.bytes, bytes_);
  EXPECT_THAT(progress, testing::ElementsAre(1000, 2000));
  const v1::UploadHeader& header = received_.header;
  EXPECT_EQ(header.sha256(), io::Sha256Of(bytes_.data(), bytes_.size()));
  EXPECT_EQ(header.total_bytes(), 2000);
  EXPECT_EQ(header.volume().pixel_type(), v1::PIXEL_TYPE_INT16);
  EXPECT_EQ(header.volume().rescale().slope(), 2);
  EXPECT_EQ(header.volume().rescale().intercept(), -1024);
  EXPECT_EQ(header.volume().geometry().size(1), 10);
  EXPECT_THAT(header.upload_id(), testing::MatchesRegex("[0-9a-f]+-[0-9a-f]+-4[0-9a-f]+-[89ab][0-9a-f]+-[0-9a-f]+"));
  EXPECT_EQ(header.upload_id().size(), 36u);
}

TEST_F(ClientUploadTest, EveryUploadHasItsOwnId) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
    received_.bytes.clear();
    return Complete(reader, response);
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client_->UploadVolume(upload_).ok());
  const std::set<std::string> ids(received_.upload_ids.begin(), received_.upload_ids.end());
  EXPECT_EQ(ids.size(), 3u);
}

TEST_F(ClientUploadTest, ResumesWhereABrokenStreamGotTo) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
    if (++calls_ > 1) return Complete(reader, response);
    Receive(reader, kChunk);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset");
  };
  const auto uploaded = client_->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(received_.bytes, bytes_);
  EXPECT_THAT(received_.first_offsets, testing::ElementsAre(0, kChunk));
  EXPECT_EQ(received_.upload_ids[0], received_.upload_ids[1]);
}

TEST_F(ClientUploadTest, SendsOnlyTheHeaderAgainWhenEverythingIsThere) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
    if (++calls_ > 1) return Complete(reader, response);
    Receive(reader, bytes_.size());
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset");
  };
  ASSERT_TRUE(client_->UploadVolume(upload_).ok());
  EXPECT_THAT(received_.first_offsets, testing::ElementsAre(0));
}

TEST_F(ClientUploadTest, StartsAgainWhenTheUploadWasDropped) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
    if (++calls_ > 1) return Complete(reader, response);
    Receive(reader, kChunk);
    received_.bytes.clear();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
  };
  server_.bulk.upload_status = [](grpc::ServerContext*, auto*, auto*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such upload");
  };
  ASSERT_TRUE(client_->UploadVolume(upload_).ok());
  EXPECT_EQ(received_.bytes, bytes_);
  EXPECT_THAT(received_.first_offsets, testing::ElementsAre(0, 0));
}

TEST_F(ClientUploadTest, GivesUpAfterABoundedNumberOfStreams) {
  ClientOptions options;
  options.transfer_attempts = 3;
  client_ = *Client::Connect(server_.target(), options);
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto*) {
    ++calls_;
    v1::UploadRequest request;
    reader->Read(&request);
    received_.header = request.header();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "for ever");
  };
  const absl::Status status = client_->UploadVolume(upload_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "for ever");
  EXPECT_EQ(calls_, 3);
}

// The one that took over is somebody else: to take over in turn would have no end.
TEST_F(ClientUploadTest, AnUploadThatWasTakenOverIsNotTriedAgain) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto*) {
    ++calls_;
    Receive(reader, kChunk);
    return grpc::Status(grpc::StatusCode::ABORTED, "another stream has taken over");
  };
  EXPECT_EQ(client_->UploadVolume(upload_).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(calls_, 1);
}

// Streams that bring something further do not count as attempts.
TEST_F(ClientUploadTest, ProgressIsNotLimited) {
  ClientOptions options;
  options.transfer_attempts = 2;
  options.chunk_bytes = 100;
  client_ = *Client::Connect(server_.target(), options);
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
    if (received_.bytes.size() + 100 >= bytes_.size()) return Complete(reader, response);
    Receive(reader, received_.bytes.size() + 100);
    ++calls_;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "again");
  };
  const auto uploaded = client_->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(received_.bytes, bytes_);
  EXPECT_EQ(calls_, 19);
}

// A server that is silent, and lives.
TEST_F(ClientUploadTest, ASlowServerKeepsItsStream) {
  ClientOptions options;
  options.stall_timeout = std::chrono::milliseconds(100);
  options.chunk_bytes = kChunk;
  client_ = *Client::Connect(server_.target(), options);
  server_.bulk.upload = [this](grpc::ServerContext* context, auto* reader, auto* response) {
    ++calls_;
    for (int i = 0; i < 50 && !context->IsCancelled(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return Complete(reader, response);
  };
  const auto uploaded = client_->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(calls_, 1);
}

TEST_F(ClientUploadTest, ARefusalIsNotTriedAgain) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto*) {
    ++calls_;
    v1::UploadRequest request;
    reader->Read(&request);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "spacing: must be above 0");
  };
  const absl::Status status = client_->UploadVolume(upload_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "spacing: must be above 0");
  EXPECT_EQ(calls_, 1);
}

// Large enough that the server cannot have taken all of it into its buffers.
TEST_F(ClientUploadTest, AnEarlyAnswerEndsTheUpload) {
  const std::string large = Pattern(32 << 20);
  upload_.geometry.size = {1024, 1024, 16};
  upload_.bytes = large;
  client_ = *Client::Connect(server_.target());
  server_.bulk.upload = [](grpc::ServerContext*, auto* reader, auto* response) {
    v1::UploadRequest request;
    reader->Read(&request);
    response->mutable_volume()->set_name("volumes/known");
    response->set_already_resident(true);
    return grpc::Status::OK;
  };
  const auto uploaded = client_->UploadVolume(upload_);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(uploaded->volume().name(), "volumes/known");
  EXPECT_TRUE(uploaded->already_resident());
}

TEST_F(ClientUploadTest, ACommittedSizeOutOfRangeIsRefused) {
  server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto*) {
    Receive(reader, kChunk);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset");
  };
  server_.bulk.upload_status = [](grpc::ServerContext*, auto*, v1::GetUploadStatusResponse* response) {
    response->set_committed_bytes(1 << 30);
    return grpc::Status::OK;
  };
  EXPECT_EQ(client_->UploadVolume(upload_).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientUploadTest, CancellationEndsACallUnderWay) {
  std::promise<void> begun;
  server_.bulk.upload = [&](grpc::ServerContext* context, auto* reader, auto*) {
    v1::UploadRequest request;
    reader->Read(&request);
    begun.set_value();
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  Cancellation cancellation;
  std::thread canceller([&] {
    begun.get_future().wait();
    cancellation.Cancel();
  });
  const absl::Status status = client_->UploadVolume(upload_, {.cancellation = &cancellation}).status();
  canceller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientUploadTest, CancellationEndsTheWaitBeforeAnotherStream) {
  Cancellation cancellation;
  server_.bulk.upload = [&](grpc::ServerContext*, auto* reader, auto*) {
    ++calls_;
    Receive(reader, kChunk);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset");
  };
  server_.bulk.upload_status = [&](grpc::ServerContext*, auto*, auto*) {
    cancellation.Cancel();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset");
  };
  const absl::Status status = client_->UploadVolume(upload_, {.cancellation = &cancellation}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls_, 1);
}

TEST_F(ClientUploadTest, ACancelledCancellationStopsCallsBeforeTheyBegin) {
  Cancellation cancellation;
  cancellation.Cancel();
  server_.volumes.remove = [](grpc::ServerContext*, auto*, auto*) { return grpc::Status::OK; };
  EXPECT_EQ(client_->DeleteVolume("volumes/a", {.cancellation = &cancellation}).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(client_->DeleteVolume("volumes/a").ok());
}

TEST_F(ClientUploadTest, ATimeoutIsDeadlineExceeded) {
  server_.bulk.upload = [](grpc::ServerContext* context, auto*, auto*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  const CallOptions options = {.timeout = std::chrono::milliseconds(50)};
  EXPECT_EQ(client_->UploadVolume(upload_, options).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientConnectTest, WithoutAServerACallFailsAtOnce) {
  std::string target;
  { target = FakeServer().target(); }
  const auto client = Client::Connect(target);
  ASSERT_TRUE(client.ok());
  const std::string bytes(4, 'x');
  VolumeUpload upload;
  upload.bytes = bytes;
  EXPECT_EQ((*client)->UploadVolume(upload).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*client)->GetServerInfo().status().code(), absl::StatusCode::kUnavailable);
}

TEST(ClientConnectTest, ChecksItsOptions) {
  EXPECT_EQ(Client::Connect("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Client::Connect("a:1", {.chunk_bytes = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Client::Connect("a:1", {.transfer_attempts = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp::client
