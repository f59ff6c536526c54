// SPDX-License-Identifier: Apache-2.0
// Uploads and downloads of every kind whose connections go silent without a reset, at random offsets: each is resumed
// at once over a new connection, its bytes are equal, and nobody waits for the server to let go of the silent stream.
// INTRAWARP_CUTS: how many connections are cut for each kind and direction; 3 unless given.
#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "io/file/digest.h"
#include "tests/client/process.h"
#include "tests/support/server_process.h"
#include "tests/tcp_relay.h"

namespace intrawarp::client {
namespace {

constexpr int kSide = 96;
constexpr int64_t kValues = int64_t{kSide} * kSide * kSide;

int CutsWanted() {
  const char* const cuts = std::getenv("INTRAWARP_CUTS");
  return cuts == nullptr ? 3 : std::atoi(cuts);
}

Geometry Grid() {
  Geometry geometry;
  geometry.size = {kSide, kSide, kSide};
  return geometry;
}

std::vector<float> Numbers(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 2654435761u) % 65536);
  return values;
}

std::string Digest(const std::vector<float>& values) {
  return io::Sha256Of(values.data(), values.size() * sizeof(float));
}

// Each row has the same columns.
SparseMatrix Matrix() {
  constexpr int kRows = 40000, kPerRow = 24;
  HostCsr<float> csr;
  csr.rows = kRows;
  csr.columns = kPerRow;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kPerRow; ++column) csr.column_indices.push_back(column);
    csr.row_offsets.push_back(csr.entries());
  }
  csr.values = Numbers(csr.entries());
  return csr;
}

// One transfer: true when the bytes at the other end are those that were sent. Ends the wait when it has them there.
using Transfer = std::function<absl::StatusOr<bool>(Client& relayed, TcpRelay& relay)>;

class SilentConnectionsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { grpc_init(); }

  void SetUp() override {
    server_ = std::make_unique<ServerProcess>(INTRAWARPD, std::vector<std::string>{"--drain_timeout=1s"});
    address_ = server_->grpc();
    ASSERT_FALSE(address_.empty());
    direct_ = *Client::Connect(address_);
  }
  void TearDown() override {
    direct_.reset();
    server_->Stop();
  }

  // Transfers of `bytes` bytes until all cuts are made.
  void Run(const char* what, int64_t bytes, const Transfer& transfer) {
    const int wanted = CutsWanted();
    auto random = std::make_shared<std::mt19937>(1);
    // Each connection of the relay asks on a thread of its own.
    const auto mutex = std::make_shared<std::mutex>();
    const auto offset = [random, mutex, bytes] {
      std::lock_guard<std::mutex> lock(*mutex);
      return std::uniform_int_distribution<int64_t>(1, bytes)(*random);
    };
    TcpRelay relay(address_, {wanted, offset, /*silent=*/true, /*receive_buffer_bytes=*/0});
    const auto through_relay = *Client::Connect(relay.address());
    int transfers = 0, equal = 0;
    while (relay.cuts() < wanted) {
      const absl::StatusOr<bool> same = transfer(*through_relay, relay);
      relay.EndWait();
      ASSERT_TRUE(same.ok()) << what << ": " << same.status();
      ++transfers;
      equal += *same ? 1 : 0;
    }
    std::vector<std::chrono::milliseconds> waits = relay.waits();
    waits.emplace_back(0);
    std::sort(waits.begin(), waits.end());
    std::printf("%-22s %d cuts, %d of %d transfers equal, wait in ms: median %d, worst %d\n", what, relay.cuts(), equal,
                transfers, static_cast<int>(waits[waits.size() / 2].count()), static_cast<int>(waits.back().count()));
    EXPECT_EQ(equal, transfers);
  }

  std::unique_ptr<ServerProcess> server_;
  std::string address_;
  std::unique_ptr<Client> direct_;
};

absl::StatusOr<bool> SameVolume(Client& client, const std::string& name, const std::string& digest) {
  GridData back;
  const auto downloaded = client.DownloadVolume(name, SinkInto(&back));
  if (!downloaded.ok()) return downloaded.status();
  return Digest(back.values) == digest;
}

absl::StatusOr<bool> SameField(Client& client, const std::string& name, const std::string& digest) {
  v1::DownloadRequest request;
  request.set_name(name);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  GridData back;
  const auto downloaded = client.DownloadField(request, SinkInto(&back));
  if (!downloaded.ok()) return downloaded.status();
  return Digest(back.values) == digest;
}

absl::StatusOr<bool> SameMatrix(Client& client, const std::string& name, const SparseMatrix& matrix) {
  SparseMatrix back;
  const auto downloaded = client.DownloadSparseMatrix(name, &back);
  if (!downloaded.ok()) return downloaded.status();
  const auto& got = std::get<HostCsr<float>>(back);
  const auto& sent = std::get<HostCsr<float>>(matrix);
  return got.row_offsets == sent.row_offsets && got.column_indices == sent.column_indices && got.values == sent.values;
}

TEST_F(SilentConnectionsTest, Volumes) {
  const std::vector<float> values = Numbers(kValues);
  const std::string digest = Digest(values);
  VolumeUpload upload;
  upload.geometry = Grid();
  upload.bytes = absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  Run("volumes up", 4 * kValues, [&](Client& relayed, TcpRelay& relay) -> absl::StatusOr<bool> {
    const auto uploaded = relayed.UploadVolume(upload);
    relay.EndWait();
    if (!uploaded.ok()) return uploaded.status();
    const auto same = SameVolume(*direct_, uploaded->volume().name(), digest);
    EXPECT_TRUE(direct_->DeleteVolume(uploaded->volume().name()).ok());
    return same;
  });
  upload.id = "downloaded";
  ASSERT_TRUE(direct_->UploadVolume(upload).ok());
  Run("volumes down", 4 * kValues,
      [&](Client& relayed, TcpRelay&) { return SameVolume(relayed, "volumes/downloaded", digest); });
}

// The silent connection's socket takes no more bytes, and nothing but the client ends it: keepalive takes an hour.
TEST_F(SilentConnectionsTest, AFullSocketDoesNotHoldAnUpload) {
  const std::vector<float> values = Numbers(8 * kValues);
  VolumeUpload upload;
  upload.geometry.size = {2 * kSide, 2 * kSide, 2 * kSide};
  upload.bytes = absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  ClientOptions options;
  options.keepalive_time = options.keepalive_timeout = std::chrono::hours(1);
  TcpRelay relay(address_, {1, [] { return int64_t{1} << 20; }, /*silent=*/true, /*receive_buffer_bytes=*/128 << 10});
  const auto uploaded = (*Client::Connect(relay.address(), options))->UploadVolume(upload);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(relay.cuts(), 1);
  EXPECT_TRUE(*SameVolume(*direct_, uploaded->volume().name(), Digest(values)));
}

TEST_F(SilentConnectionsTest, SparseMatrices) {
  const SparseMatrix matrix = Matrix();
  const int64_t bytes = std::get<HostCsr<float>>(matrix).entries() * 8;
  SparseMatrixUpload upload;
  upload.matrix = &matrix;
  Run("sparse matrices up", bytes, [&](Client& relayed, TcpRelay& relay) -> absl::StatusOr<bool> {
    const auto uploaded = relayed.UploadSparseMatrix(upload);
    relay.EndWait();
    if (!uploaded.ok()) return uploaded.status();
    const auto same = SameMatrix(*direct_, uploaded->sparse_matrix().name(), matrix);
    EXPECT_TRUE(direct_->DeleteSparseMatrix(uploaded->sparse_matrix().name()).ok());
    return same;
  });
  upload.id = "downloaded";
  ASSERT_TRUE(direct_->UploadSparseMatrix(upload).ok());
  Run("sparse matrices down", bytes,
      [&](Client& relayed, TcpRelay&) { return SameMatrix(relayed, "sparseMatrices/downloaded", matrix); });
}

TEST_F(SilentConnectionsTest, Transforms) {
  const std::vector<float> values = Numbers(3 * kValues);
  const std::string digest = Digest(values);
  Run("transforms up", 12 * kValues, [&](Client& relayed, TcpRelay& relay) -> absl::StatusOr<bool> {
    const auto uploaded = relayed.UploadField("", Grid(), values);
    relay.EndWait();
    if (!uploaded.ok()) return uploaded.status();
    const auto same = SameField(*direct_, uploaded->name(), digest);
    EXPECT_TRUE(direct_->DeleteTransform(uploaded->name()).ok());
    return same;
  });
  ASSERT_TRUE(direct_->UploadField("downloaded", Grid(), values).ok());
  Run("transforms down", 12 * kValues,
      [&](Client& relayed, TcpRelay&) { return SameField(relayed, "transforms/downloaded", digest); });
}

}  // namespace
}  // namespace intrawarp::client
