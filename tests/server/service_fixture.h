// SPDX-License-Identifier: Apache-2.0
// A real server in this process and stubs on a channel to it, for tests of the services that compute; on every device
// present. Each test ends with a check that nothing is left: no stream, no job, no pinned memory, no reserved bytes.
#ifndef INTRAWARP_TESTS_SERVER_SERVICE_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/image/pyramid.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "io/digest.h"
#include "server/base/wire.h"
#include "server/bulk/upload_store.h"
#include "server/server.h"
#include "tests/engine/device_test.h"
#include "tests/server/bulk_client.h"

namespace intrawarp::server {

// Keeps the device, or the copy lane, busy until it goes.
class JobBlocker {
 public:
  explicit JobBlocker(JobQueue& jobs) {
    Block([&](std::function<void(const absl::StatusOr<const ExecContext*>&)> run) {
      Job job;
      job.run = std::move(run);
      return jobs.Submit(std::move(job));
    });
  }
  explicit JobBlocker(CopyLane& copies) {
    Block([&](std::function<void(const absl::StatusOr<const ExecContext*>&)> run) {
      return copies.Submit(std::move(run));
    });
  }
  ~JobBlocker() { Release(); }
  void Release() {
    if (!std::exchange(released_, true)) release_.set_value();
  }

 private:
  template <typename Submit>
  void Block(const Submit& submit) {
    auto gate = std::make_shared<std::shared_future<void>>(release_.get_future().share());
    auto started = std::make_shared<std::promise<void>>();
    std::future<void> running = started->get_future();
    EXPECT_TRUE(submit([gate, started](const absl::StatusOr<const ExecContext*>&) {
                  started->set_value();
                  gate->wait();
                }).ok());
    running.wait();
  }

  std::promise<void> release_;
  bool released_ = false;
};

// The field that a status' details name; empty when none.
inline std::string FieldOf(const google::rpc::Status& status) {
  google::rpc::BadRequest bad_request;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&bad_request)) return bad_request.field_violations(0).field();
  }
  return "";
}
// The published reason that a status' details name. Fails for another one.
inline v1::ErrorReason ReasonOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) detail.UnpackTo(&info);
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  EXPECT_TRUE(v1::ErrorReason_Parse(info.reason(), &reason) && reason != v1::ERROR_REASON_UNSPECIFIED)
      << "'" << info.reason() << "' is not in error.proto: " << status.message();
  return reason;
}
inline v1::ErrorReason ReasonOf(const grpc::Status& status) {
  google::rpc::Status proto;
  EXPECT_TRUE(proto.ParseFromString(status.error_details())) << status.error_message();
  return ReasonOf(proto);
}

inline std::string FieldOf(const grpc::Status& status) {
  google::rpc::Status proto;
  EXPECT_TRUE(proto.ParseFromString(status.error_details())) << status.error_message();
  ReasonOf(proto);
  return FieldOf(proto);
}

#define EXPECT_STATUS(status, expected_code, text)                               \
  do {                                                                           \
    const auto& status_ = (status);                                              \
    EXPECT_EQ(status_.error_code(), (expected_code)) << status_.error_message(); \
    EXPECT_THAT(status_.error_message(), testing::HasSubstr(text));              \
  } while (false)

// Bytes of a chunked stream, checking that each chunk continues it.
class ChunkCollector {
 public:
  // `begin`: where the stream begins.
  void Add(const v1::Chunk& chunk, int64_t begin = 0) {
    EXPECT_EQ(chunk.offset(), begin + static_cast<int64_t>(bytes_.size()));
    EXPECT_EQ(chunk.crc32c(), io::Crc32c(chunk.data().data(), chunk.data().size()));
    EXPECT_LE(chunk.data().size(), size_t{1} << 20);
    EXPECT_FALSE(chunk.data().empty());
    bytes_ += chunk.data();
    ++chunks_;
  }
  const std::string& bytes() const { return bytes_; }
  int chunks() const { return chunks_; }
  std::vector<float> floats() const {
    std::vector<float> values(bytes_.size() / sizeof(float));
    std::memcpy(values.data(), bytes_.data(), values.size() * sizeof(float));
    return values;
  }

 private:
  std::string bytes_;
  int chunks_ = 0;
};

inline std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

class ServiceTest : public testing::TestWithParam<std::string> {
 protected:
  ServiceTest() : ServiceTest(ServerLimits()) {}
  // `change` changes the options before the server starts; may be empty.
  explicit ServiceTest(const ServerLimits& limits, const std::function<void(ServerOptions&)>& change = nullptr) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.http = "127.0.0.1:0";
    options.device = GetParam();
    options.limits = limits;
    options.drain_timeout = std::chrono::seconds(5);
    options.watchdog.timeout = std::chrono::seconds(0);  // jumps of the clock would look like a hang
    options.scheduling = SchedulingOptions();            // one job at a time, so that one can block the others
    options.seams.steady_now = [this] { return std::chrono::steady_clock::now() + clock_ahead_.load(); };
    if (change) change(options);
    server_ = *Server::Start(options);
    channel_ = NewChannel();
    registration_ = v1::RegistrationService::NewStub(channel_);
    transforms_ = v1::TransformService::NewStub(channel_);
    bulk_ = v1::BulkService::NewStub(channel_);
  }

  void TearDown() override {
    EXPECT_TRUE(Eventually([this] {
      context().uploads.Clear();  // what a broken upload left
      return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 0 &&
             context().pinned.leased_bytes() == 0;
    })) << "streams "
        << context().ledger.in_use(Resource::kStreams) << ", jobs " << context().jobs.pending() << ", pinned bytes "
        << context().pinned.leased_bytes();
    EXPECT_TRUE(Eventually([this] { return NobodyHoldsAVolume(); }));
  }

  // No call that is over has left a reference behind: the store's and the list's are the only ones.
  bool NobodyHoldsAVolume() {
    for (const auto& volume : context().volumes.List("", 1000)) {
      if (volume.use_count() > 2) return false;
    }
    return true;
  }

  // A channel with a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server_->grpc_address(), grpc::InsecureChannelCredentials(), arguments);
  }

  DeviceContext& context() { return server_->context(); }
  // The server's clock goes on by so much.
  void AdvanceClock(std::chrono::nanoseconds by) { clock_ahead_ = clock_ahead_.load() + by; }

  // The limit guards against a hang; under a sanitizer, on a busy machine, a job of the larger tests takes half a
  // minute.
  static bool Eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  // Runs on the server's scheduler, whose streams outlive what is made there.
  void OnDevice(int64_t workspace_bytes, const std::function<void(const ExecContext&)>& body) {
    std::promise<void> done;
    Job job;
    job.workspace_bytes = workspace_bytes;
    job.run = [&](const absl::StatusOr<const ExecContext*>& ctx) {
      EXPECT_TRUE(ctx.ok()) << ctx.status();
      if (ctx.ok()) body(**ctx);
      done.set_value();
    };
    ASSERT_TRUE(context().jobs.Submit(std::move(job)).ok());
    done.get_future().wait();
  }

  // Makes "volumes/{id}" resident. An empty digest is that of the id.
  void PutVolume(const std::string& id, const Geometry& geometry, const std::vector<float>& voxels,
                 const std::string& digest = "") {
    ASSERT_EQ(geometry.voxels(), voxels.size());
    OnDevice(PreparedImage::WorkspaceBytes(geometry, PixelType::kFloat32), [&](const ExecContext& ctx) {
      auto image = PreparedImage::Prepare(ctx, voxels.data(), PixelType::kFloat32, 1, 0, geometry);
      ASSERT_TRUE(image.ok()) << image.status();
      auto volume = std::make_shared<StoredVolume>();
      volume->id = id;
      volume->digest = volume->content_digest = digest.empty() ? id : digest;
      volume->image = *std::move(image);
      EXPECT_TRUE(context().volumes.Insert(std::move(volume)).ok());
    });
  }

  // Stores "transforms/{id}" without a report.
  void PutTransform(const std::string& id, Transform transform) {
    auto stored = std::make_shared<StoredTransform>(
        StoredTransform{id, std::chrono::system_clock::now(), std::nullopt, nullptr, std::move(transform)});
    ASSERT_TRUE(context().transforms.Insert(std::move(stored)).ok());
  }

  // The whole field by the engine.
  std::vector<float> EngineField(const std::string& id, const Geometry& grid) {
    std::vector<float> field(3 * grid.voxels());
    auto stored = *context().transforms.Find(id);
    OnDevice(Arena::Rounded(12 * grid.voxels()), [&](const ExecContext& ctx) {
      float* out = *ctx.arena().Allocate<float>(field.size());
      EXPECT_OK(EvaluateField(ctx, stored->transform, grid, 0, grid.voxels(), out));
      EXPECT_OK(ctx.device().Copy(field.data(), out, 12 * grid.voxels(), ctx.stream()));
      EXPECT_OK(ctx.device().Synchronize(ctx.stream()));
    });
    return field;
  }

  std::vector<float> EngineWarp(const std::string& transform, const std::string& moving, bool inverse,
                                Interpolation interpolation, float fill, const Geometry& grid) {
    std::vector<float> out(grid.voxels());
    auto stored = *context().transforms.Find(transform);
    auto volume = *context().volumes.Find(moving);
    const size_t cubic = interpolation == Interpolation::kCubic ? CubicWarpWorkspaceBytes(volume->image.geometry()) : 0;
    OnDevice(Arena::Rounded(4 * grid.voxels()) + cubic, [&](const ExecContext& ctx) {
      VolumeView view{*ctx.arena().Allocate<float>(grid.voxels()), grid};
      EXPECT_OK(WarpVolume(ctx, stored->transform, inverse, volume->image.volume(), interpolation, fill, view));
      EXPECT_OK(ctx.device().Copy(out.data(), view.data, 4 * grid.voxels(), ctx.stream()));
      EXPECT_OK(ctx.device().Synchronize(ctx.stream()));
    });
    return out;
  }

  // The calls, and everything that came back.
  struct RegisterAnswer {
    grpc::Status status;
    std::vector<v1::Progress> progress;
    std::optional<v1::FieldHeader> field;
    ChunkCollector chunks;
    std::optional<v1::RegisterResult> result;
  };
  RegisterAnswer Register(const v1::RegisterRequest& request, grpc::ClientContext* rpc = nullptr) {
    RegisterAnswer answer;
    grpc::ClientContext own;
    auto reader = registration_->Register(rpc == nullptr ? &own : rpc, request);
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
      EXPECT_FALSE(answer.result.has_value()) << "the result is the last message";
      switch (response.payload_case()) {
        case v1::RegisterResponse::kProgress:
          EXPECT_FALSE(answer.field.has_value()) << "progress comes before the field";
          answer.progress.push_back(response.progress());
          break;
        case v1::RegisterResponse::kField:
          EXPECT_FALSE(answer.field.has_value());
          answer.field = response.field();
          break;
        case v1::RegisterResponse::kChunk:
          EXPECT_TRUE(answer.field.has_value());
          answer.chunks.Add(response.chunk());
          break;
        case v1::RegisterResponse::kResult:
          answer.result = response.result();
          break;
        default:
          ADD_FAILURE() << response.DebugString();
      }
    }
    answer.status = reader->Finish();
    return answer;
  }
  void ExpectRegisterError(const v1::RegisterRequest& request, grpc::StatusCode code, const std::string& text,
                           const std::string& field) {
    const size_t before = context().transforms.size();
    const RegisterAnswer answer = Register(request);
    EXPECT_STATUS(answer.status, code, text);
    EXPECT_EQ(FieldOf(answer.status), field);
    EXPECT_FALSE(answer.result.has_value());
    EXPECT_EQ(context().transforms.size(), before);
  }
  struct Upload {
    grpc::Status status;
    v1::UploadResponse response;
  };
  Upload Send(const std::vector<v1::UploadRequest>& requests) {
    UploadCall call(*bulk_);
    for (const auto& request : requests) {
      if (!call.Send(request)) break;
    }
    Upload upload;
    upload.status = call.Finish();
    upload.response = call.response();
    return upload;
  }
  // A request whose header has an upload_id of its own.
  static v1::UploadRequest HeaderRequest(const std::string& id, const std::string& bytes) {
    static std::atomic<int> uploads = 0;
    v1::UploadRequest request;
    v1::UploadHeader& header = *request.mutable_header();
    header.set_id(id);
    header.set_upload_id("upload-" + std::to_string(++uploads));
    header.set_total_bytes(bytes.size());
    header.set_sha256(io::Sha256Of(bytes.data(), bytes.size()));
    return request;
  }
  static std::vector<v1::UploadRequest> FieldRequests(const std::string& id, const Geometry& grid,
                                                      const std::string& bytes, size_t chunk_bytes = size_t{1} << 20) {
    std::vector<v1::UploadRequest> requests = {HeaderRequest(id, bytes)};
    v1::FieldHeader& field = *requests[0].mutable_header()->mutable_transform()->mutable_field();
    *field.mutable_geometry() = GeometryToProto(grid);
    field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
    field.set_total_bytes(bytes.size());
    for (size_t at = 0; at < bytes.size(); at += chunk_bytes) {
      requests.emplace_back();
      *requests.back().mutable_chunk() = MakeChunk(at, bytes.substr(at, chunk_bytes));
    }
    return requests;
  }
  static v1::DownloadRequest WholeField(const std::string& id) {
    v1::DownloadRequest request;
    request.set_name("transforms/" + id);
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return request;
  }
  struct Download {
    grpc::Status status;
    std::optional<v1::FieldHeader> field;
    std::optional<v1::WarpHeader> warp;
    ChunkCollector chunks;
    std::string etag;
  };
  Download GetField(const v1::DownloadRequest& request) {
    Download download;
    grpc::ClientContext rpc;
    auto reader = bulk_->Download(&rpc, request);
    v1::DownloadResponse response;
    while (reader->Read(&response)) {
      if (response.has_header()) {
        download.field = response.header().field();
        download.etag = response.header().etag();
      }
      if (response.has_chunk()) {
        EXPECT_TRUE(download.field.has_value());
        download.chunks.Add(response.chunk(), request.offset());
      }
    }
    download.status = reader->Finish();
    return download;
  }
  Download Warp(const v1::WarpVolumeRequest& request) {
    Download download;
    grpc::ClientContext rpc;
    auto reader = transforms_->WarpVolume(&rpc, request);
    v1::WarpVolumeResponse response;
    while (reader->Read(&response)) {
      if (response.has_header()) {
        download.warp = response.header();
        download.etag = response.header().etag();
      }
      if (response.has_chunk()) {
        EXPECT_TRUE(download.warp.has_value());
        download.chunks.Add(response.chunk(), request.offset());
      }
    }
    download.status = reader->Finish();
    return download;
  }

  std::atomic<std::chrono::nanoseconds> clock_ahead_{std::chrono::nanoseconds(0)};
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RegistrationService::Stub> registration_;
  std::unique_ptr<v1::TransformService::Stub> transforms_;
  std::unique_ptr<v1::BulkService::Stub> bulk_;
};

// A few soft blobs at fixed places of the grid's domain seen through `map`: image(p) = blobs(map(p)). An image made
// with T and one made with the identity, on whatever grids, are registered by T.
inline std::vector<float> Blobs(const Geometry& grid, const Vec3d& center, double scale, const AffineMap& map) {
  struct Blob {
    Vec3d at;
    double radius, height;
  };
  const Blob blobs[] = {{{0, 0, 0}, 0.30, 100},           {{0.35, 0.10, 0.15}, 0.12, 160},
                        {{-0.30, 0.25, -0.1}, 0.15, 130}, {{0.05, -0.35, 0.22}, 0.10, 190},
                        {{-0.2, -0.25, -0.3}, 0.13, 90},  {{0.22, 0.3, -0.28}, 0.09, 170}};
  const AffineMap to_physical = IndexToPhysical(grid);
  std::vector<float> voxels;
  voxels.reserve(grid.voxels());
  for (int z = 0; z < grid.size.z; ++z) {
    for (int y = 0; y < grid.size.y; ++y) {
      for (int x = 0; x < grid.size.x; ++x) {
        const Vec3d p = map(to_physical({double(x), double(y), double(z)}));
        double value = 0;
        for (const Blob& blob : blobs) {
          const Vec3d d = p - center - scale * blob.at;
          value += blob.height * std::exp(-Dot(d, d) / (2 * scale * scale * blob.radius * blob.radius));
        }
        voxels.push_back(static_cast<float>(value));
      }
    }
  }
  return voxels;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SERVICE_FIXTURE_H_
