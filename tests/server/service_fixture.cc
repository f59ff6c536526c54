// SPDX-License-Identifier: Apache-2.0
#include "tests/server/service_fixture.h"

#include <atomic>
#include <future>
#include <utility>

#include "engine/image/pyramid.h"
#include "io/file/digest.h"
#include "server/base/wire.h"
#include "server/bulk/upload_store.h"

namespace intrawarp::server {
namespace {

ServerOptions OptionsOf(const std::string& device, const ServerLimits& limits) {
  ServerOptions options = TestServer::DefaultOptions();
  options.device = device;
  options.limits = limits;
  return options;
}

}  // namespace

ServiceTest::ServiceTest() : ServiceTest(ServerLimits()) {}

ServiceTest::ServiceTest(const ServerLimits& limits, const std::function<void(ServerOptions&)>& change) {
  ServerOptions options = OptionsOf(GetParam(), limits);
  options.seams.steady_now = clock_.now();
  if (change) change(options);
  Serve(options);
}

ServiceTest::~ServiceTest() = default;

void ServiceTest::Serve(const ServerOptions& options) {
  server_ = StartServer(options);
  Connect();
}

void ServiceTest::Connect() {
  channel_ = NewChannel();
  registration_ = v1::RegistrationService::NewStub(channel_);
  transforms_ = v1::TransformService::NewStub(channel_);
  bulk_ = v1::BulkService::NewStub(channel_);
}

void ServiceTest::TearDown() {
  EXPECT_TRUE(Eventually([this] {
    context().uploads.Clear();  // what a broken upload left
    return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 0 &&
           context().pinned.leased_bytes() == 0;
  })) << "streams "
      << context().ledger.in_use(Resource::kStreams) << ", jobs " << context().jobs.pending() << ", pinned bytes "
      << context().pinned.leased_bytes();
  EXPECT_TRUE(Eventually([this] { return NobodyHoldsAVolume(); }));
}

bool ServiceTest::NobodyHoldsAVolume() {
  for (const auto& volume : context().volumes.List("", 1000)) {
    if (volume.use_count() > 2) return false;
  }
  return true;
}

void ServiceTest::OnDevice(int64_t workspace_bytes, const std::function<void(const ExecContext&)>& body) {
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

void ServiceTest::PutVolume(const std::string& id, const Geometry& geometry, const std::vector<float>& voxels,
                            const std::string& digest) {
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

void ServiceTest::PutTransform(const std::string& id, Transform transform) {
  auto stored = std::make_shared<StoredTransform>(
      StoredTransform{id, std::chrono::system_clock::now(), std::nullopt, nullptr, std::move(transform)});
  ASSERT_TRUE(context().transforms.Insert(std::move(stored)).ok());
}

std::vector<float> ServiceTest::EngineField(const std::string& id, const Geometry& grid) {
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

std::vector<float> ServiceTest::EngineWarp(const std::string& transform, const std::string& moving, bool inverse,
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

ServiceTest::RegisterAnswer ServiceTest::Register(const v1::RegisterRequest& request, grpc::ClientContext* rpc) {
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

void ServiceTest::ExpectRegisterError(const v1::RegisterRequest& request, grpc::StatusCode code,
                                      const std::string& text, const std::string& field) {
  const size_t before = context().transforms.size();
  const RegisterAnswer answer = Register(request);
  EXPECT_STATUS(answer.status, code, text);
  EXPECT_EQ(FieldOf(answer.status), field);
  EXPECT_FALSE(answer.result.has_value());
  EXPECT_EQ(context().transforms.size(), before);
}

ServiceTest::Upload ServiceTest::Send(const std::vector<v1::UploadRequest>& requests) {
  UploadCall call(*bulk_);
  for (const auto& request : requests) {
    if (!call.Send(request)) break;
  }
  Upload upload;
  upload.status = call.Finish();
  upload.response = call.response();
  return upload;
}

v1::UploadRequest ServiceTest::HeaderRequest(const std::string& id, const std::string& bytes) {
  static std::atomic<int> uploads = 0;
  v1::UploadRequest request;
  v1::UploadHeader& header = *request.mutable_header();
  header.set_id(id);
  header.set_upload_id("upload-" + std::to_string(++uploads));
  header.set_total_bytes(bytes.size());
  header.set_sha256(io::Sha256Of(bytes.data(), bytes.size()));
  return request;
}

std::vector<v1::UploadRequest> ServiceTest::FieldRequests(const std::string& id, const Geometry& grid,
                                                          const std::string& bytes, size_t chunk_bytes) {
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

v1::DownloadRequest ServiceTest::WholeField(const std::string& id) {
  v1::DownloadRequest request;
  request.set_name("transforms/" + id);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  return request;
}

ServiceTest::Download ServiceTest::GetField(const v1::DownloadRequest& request) {
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

ServiceTest::Download ServiceTest::Warp(const v1::WarpVolumeRequest& request) {
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

}  // namespace intrawarp::server
