// SPDX-License-Identifier: Apache-2.0
// A server with a state directory that stops and starts again: every object is there, bit for bit.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "tests/server/deformed_pair.h"
#include "tests/server/matrix_client.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "tests/server/state/test_files.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// A base of the test, so that it is there before the first server and goes after the last one.
struct StateFolder {
  StateFolder() {
    std::string folder = testing::TempDir() + "/restartXXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~StateFolder() { std::filesystem::remove_all(folder_); }

  std::string folder_;
  state::FaultyFiles disk_{state::PosixFiles(), state::Fault::kFull};
  ServerOptions options_;
};

class RestartTest : protected StateFolder, public DeformedPairTest {
 protected:
  RestartTest()
      : DeformedPairTest(ServerLimits(), [this](ServerOptions& options) {
          options.state_dir = folder_;
          options.state_files = &disk_;
          options_ = options;
        }) {
    MakeStubs();
  }

  void MakeStubs() {
    sparse_ = v1::SparseMatrixService::NewStub(channel_);
    volumes_ = v1::VolumeService::NewStub(channel_);
  }
  void Stop() { server_.reset(); }
  void Start() {
    Serve(options_);
    MakeStubs();
  }
  void Restart() {
    Stop();
    Start();
  }

  // The pair as clients bring it.
  void UploadPair() {
    PutPair();
    for (const char* id : {"fixed", "moving"}) {
      const auto volume = *context().volumes.Find(id);
      const Geometry grid = volume->image.geometry();
      std::vector<float> voxels(static_cast<size_t>(grid.voxels()));
      OnDevice(0, [&](const ExecContext& ctx) {
        EXPECT_OK(ctx.device().Copy(voxels.data(), volume->image.volume().data, 4 * voxels.size(), ctx.stream()));
        EXPECT_OK(ctx.device().Synchronize(ctx.stream()));
      });
      ASSERT_TRUE(context().volumes.Erase(id).ok());
      ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(grid, voxels, id, id), nullptr, 1 << 20).ok());
    }
  }

  template <typename Request, typename Response, typename Method>
  std::string Question(Method method, const std::string& name) {
    grpc::ClientContext rpc;
    Request request;
    request.set_name(name);
    Response response;
    const grpc::Status status = method(&rpc, request, &response);
    return status.ok() ? response.SerializeAsString() : status.error_message();
  }
  // The answer of Get for an object, with its bytes.
  std::string Volume(const std::string& name) {
    return Question<v1::GetVolumeRequest, v1::GetVolumeResponse>(
               [this](auto... a) { return volumes_->GetVolume(a...); }, name) +
           Downloaded(name);
  }
  std::string Matrix(const std::string& name) {
    return Question<v1::GetSparseMatrixRequest, v1::GetSparseMatrixResponse>(
               [this](auto... a) { return sparse_->GetSparseMatrix(a...); }, name) +
           Downloaded(name);
  }
  std::string TransformOf(const std::string& id) {
    std::string all = Get(id).SerializeAsString();
    if (Get(id).has_domain()) all += GetField(WholeField(id)).chunks.bytes();
    return all;
  }
  std::string Downloaded(const std::string& name) {
    v1::DownloadRequest request;
    request.set_name(name);
    const DownloadedBytes download = DownloadBytes(*bulk_, request);
    EXPECT_TRUE(download.status.ok()) << download.status.error_message();
    return download.header.SerializeAsString() + download.bytes;
  }
  template <typename Request, typename Response, typename Method>
  grpc::Status Delete(Method method, const std::string& name) {
    grpc::ClientContext rpc;
    Request request;
    request.set_name(name);
    Response response;
    return method(&rpc, request, &response);
  }
  grpc::Status DeleteVolume(const std::string& name) {
    return Delete<v1::DeleteVolumeRequest, v1::DeleteVolumeResponse>(
        [this](auto... a) { return volumes_->DeleteVolume(a...); }, name);
  }
  std::vector<std::filesystem::path> Payloads() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/spool")) paths.push_back(entry.path());
    return paths;
  }

  std::unique_ptr<v1::SparseMatrixService::Stub> sparse_;
  std::unique_ptr<v1::VolumeService::Stub> volumes_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(RestartTest);

TEST_P(RestartTest, UploadsComeBack) {
  const Geometry box = BoxGeometry(5, 7, 3);
  UploadData rescaled = MakeVolume(box, RandomVoxels<int16_t>(box, 1), "u1", "rescaled");
  rescaled.header.mutable_volume()->mutable_rescale()->set_slope(0.5);
  rescaled.header.mutable_volume()->mutable_rescale()->set_intercept(-3);
  rescaled.header.mutable_ttl()->set_seconds(3600);
  v1::UploadResponse chosen;
  ASSERT_TRUE(server::Upload(*bulk_, rescaled).ok());
  ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(box, RandomVoxels<uint8_t>(box, 2), "u2"), &chosen).ok());
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<double>(9, 8, 3, 3), "u3", "m")).ok());
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(HostCsr<float>{0, 0, {0}, {}, {}}, "u4", "empty")).ok());
  const std::string field = Bytes(std::vector<float>(static_cast<size_t>(3 * box.voxels()), 0.25f));
  ASSERT_TRUE(Send(FieldRequests("displacement", box, field)).status.ok());
  auto velocity = FieldRequests("velocity", box, field);
  v1::FieldHeader& header = *velocity[0].mutable_header()->mutable_transform()->mutable_field();
  header.set_encoding(v1::FIELD_ENCODING_VELOCITY);
  *header.mutable_affine() = AffineMapToProto(AffineMap::Identity());
  ASSERT_TRUE(Send(velocity).status.ok());
  v1::UploadRequest affine = HeaderRequest("affine", "");
  *affine.mutable_header()->mutable_transform()->mutable_affine() = AffineMapToProto(AffineMap::Identity());
  ASSERT_TRUE(Send({affine}).status.ok());

  const auto everything = [&] {
    return std::vector<std::string>{Volume("volumes/rescaled"),  Volume(chosen.volume().name()),
                                    Matrix("sparseMatrices/m"),  Matrix("sparseMatrices/empty"),
                                    TransformOf("displacement"), TransformOf("velocity"),
                                    TransformOf("affine")};
  };
  const std::vector<std::string> before = everything();
  for (int i = 0; i < 2; ++i) {
    Restart();
    const std::vector<std::string> after = everything();
    for (size_t k = 0; k < before.size(); ++k) EXPECT_TRUE(before[k] == after[k]) << k;
  }
  v1::UploadResponse again;
  ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(box, RandomVoxels<uint8_t>(box, 2), "u5"), &again).ok());
  EXPECT_TRUE(again.already_resident());
  EXPECT_EQ(again.volume().name(), chosen.volume().name());
}

// Labels beyond 2^24 that float32 holds are the same after a restart; others are refused before they are kept.
TEST_P(RestartTest, LargeLabelsStayWhatTheyAre) {
  const std::vector<int32_t> labels = {16777216, 33554432, 2147483520, -2147483647 - 1};
  ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(BoxGeometry(4, 1, 1), labels, "u1", "exact")).ok());
  const grpc::Status refused =
      server::Upload(*bulk_, MakeVolume(BoxGeometry(2, 1, 1), std::vector<int32_t>{1, 16777217}, "u2", "rounded"));
  EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(refused).field, "voxels");
  const std::string before = Volume("volumes/exact");
  Restart();
  EXPECT_EQ(Volume("volumes/exact"), before);
  const std::string bytes = Downloaded("volumes/exact");
  const std::vector<float> kept(labels.begin(), labels.end());
  EXPECT_THAT(bytes, testing::EndsWith(std::string(reinterpret_cast<const char*>(kept.data()), 4 * kept.size())));
  EXPECT_EQ(DeleteVolume("volumes/rounded").error_code(), grpc::NOT_FOUND);
  EXPECT_THAT(Payloads(), SizeIs(1));
}

TEST_P(RestartTest, ResultsComeBackWithTheirReportsAndRequests) {
  UploadPair();
  std::map<StageKind, RegisterAnswer> firsts;
  for (const StageKind method : {StageKind::kAffine, StageKind::kFfd, StageKind::kLogDemons}) {
    v1::RegisterRequest request = AffineThen(method);
    request.set_request_id("r" + std::to_string(static_cast<int>(method)));
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    firsts[method] = Register(request);
    ASSERT_TRUE(firsts[method].status.ok()) << firsts[method].status.error_message();
  }
  std::map<StageKind, std::string> before;
  for (const auto& [method, answer] : firsts) before[method] = TransformOf(Id(answer.result->transform()));
  Restart();
  for (const auto& [method, first] : firsts) {
    EXPECT_TRUE(TransformOf(Id(first.result->transform())) == before[method]) << static_cast<int>(method);
    v1::RegisterRequest request = AffineThen(method);
    request.set_request_id("r" + std::to_string(static_cast<int>(method)));
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    const RegisterAnswer again = Register(request);
    ASSERT_TRUE(again.status.ok()) << again.status.error_message();
    EXPECT_EQ(again.result->SerializeAsString(), first.result->SerializeAsString());
    EXPECT_TRUE(again.chunks.bytes() == first.chunks.bytes());
    request.mutable_options()->set_best_effort(true);
    EXPECT_EQ(ReasonOf(Register(request).status), v1::REQUEST_ID_REUSED);
  }
  EXPECT_EQ(context().transforms.size(), 3);
}

// The repeated request finds the result; the same work under another id has the same bits from the weights on the disk.
TEST_P(RestartTest, AResultWithWeightsIsFoundAndMadeAgain) {
  UploadPair();
  const auto put = [this](const char* id, const Geometry& grid, float least) {
    std::vector<float> weights(static_cast<size_t>(grid.voxels()));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = least + (1 - least) * static_cast<float>(i % 7) / 6;
    ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(grid, weights, id, id), nullptr, 1 << 20).ok());
  };
  put("fixed_weight", FixedGrid(), 0.1f);
  put("moving_weight", MovingGrid(), 0.3f);
  put("other_weight", FixedGrid(), 0.6f);
  const auto request = [](const char* id, const std::string& fixed_weight) {
    v1::RegisterRequest made = AffineThen(StageKind::kFfd);
    made.set_request_id(id);
    made.mutable_options()->set_fixed_weight(fixed_weight);
    made.mutable_options()->set_moving_weight("volumes/moving_weight");
    made.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return made;
  };
  const RegisterAnswer first = Register(request("r", "volumes/fixed_weight"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  const std::string transform = TransformOf(Id(first.result->transform()));
  const std::string weight = Volume("volumes/fixed_weight");
  Restart();
  EXPECT_TRUE(Volume("volumes/fixed_weight") == weight);
  EXPECT_TRUE(TransformOf(Id(first.result->transform())) == transform);
  const RegisterAnswer again = Register(request("r", "volumes/fixed_weight"));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.result->SerializeAsString(), first.result->SerializeAsString());
  EXPECT_TRUE(again.chunks.bytes() == first.chunks.bytes());
  EXPECT_EQ(again.result->report().options().fixed_weight(), "volumes/fixed_weight");
  EXPECT_EQ(context().transforms.size(), 1);
  EXPECT_EQ(ReasonOf(Register(request("r", "volumes/other_weight")).status), v1::REQUEST_ID_REUSED);
  EXPECT_EQ(ReasonOf(Register(request("r", "")).status), v1::REQUEST_ID_REUSED);
  const RegisterAnswer anew = Register(request("anew", "volumes/fixed_weight"));
  ASSERT_TRUE(anew.status.ok()) << anew.status.error_message();
  EXPECT_TRUE(anew.chunks.bytes() == first.chunks.bytes());
  const RegisterAnswer other = Register(request("other", "volumes/other_weight"));
  ASSERT_TRUE(other.status.ok()) << other.status.error_message();
  EXPECT_FALSE(other.chunks.bytes() == first.chunks.bytes()) << "weights have to matter";
}

TEST_P(RestartTest, AResultTakesMemoryOfUploadsUntilItIsKept) {
  PutPair();
  const auto use = [this] { return context().ledger.use(Resource::kUploading); };
  EXPECT_EQ(use().peak, 0);
  ASSERT_TRUE(Register(AffineThen(StageKind::kFfd)).status.ok());
  EXPECT_GT(use().peak, 0);
  EXPECT_EQ(use().in_use, 0);

  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(300, 300, 9, 3), "u", "m")).ok());
  ASSERT_TRUE(Eventually([&] { return use().in_use == 0; }));
  const int64_t before = use().peak;
  v1::MultiplyRequest product = ProductOf("m", "m");
  product.mutable_keep();
  ASSERT_TRUE(Multiply(*sparse_, product).status.ok());
  EXPECT_GT(use().peak, before) << "the product is larger than its factors";
  EXPECT_EQ(use().in_use, 0);
}

// A limit that others use up is a refusal; one that is smaller than the result is not.
TEST_P(RestartTest, AResultLargerThanTheMemoryOfUploadsIsKept) {
  Stop();
  options_.limits.uploading_capacity_bytes = 1000;
  Start();
  PutPair();
  {
    const auto others = context().ledger.Admit({{.uploading_bytes = 1}});
    ASSERT_TRUE(others.ok());
    EXPECT_EQ(ReasonOf(Register(AffineThen(StageKind::kFfd)).status), v1::RESIDENT_MEMORY);
  }
  EXPECT_TRUE(Register(AffineThen(StageKind::kFfd)).status.ok());
  EXPECT_EQ(context().ledger.use(Resource::kUploading).peak, 1000);
}

TEST_P(RestartTest, AKeptProductComesBackWithItsReportAndRequest) {
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(30, 30, 4, 3), "u", "m")).ok());
  v1::MultiplyRequest request = ProductOf("m", "m");
  request.mutable_keep();
  request.set_request_id("p");
  const Product first = Multiply(*sparse_, request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  const std::string before = Matrix(first.result->sparse_matrix().name());
  Restart();
  EXPECT_TRUE(Matrix(first.result->sparse_matrix().name()) == before);
  const Product again = Multiply(*sparse_, request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.result->SerializeAsString(), first.result->SerializeAsString());
  EXPECT_EQ(context().matrices.size(), 2);
}

TEST_P(RestartTest, NewValuesComeBackWithoutTheMatrixWhosePatternTheyHave) {
  const HostCsr<float> csr = RandomCsr<float>(30, 20, 4, 3);
  const std::vector<double> values(csr.values.begin(), csr.values.end());
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(csr, "u", "m")).ok());
  UploadData data = MakeValues("sparseMatrices/m", values, "v", "next");
  data.header.mutable_ttl()->set_seconds(3600);
  ASSERT_TRUE(server::Upload(*bulk_, data).ok());
  v1::UploadResponse chosen, again;
  ASSERT_TRUE(server::Upload(*bulk_, MakeValues("sparseMatrices/m", values, "w"), &chosen).ok());
  const std::string before = Matrix("sparseMatrices/next"), of_chosen = Matrix(chosen.sparse_matrix().name());
  EXPECT_EQ(chosen.sparse_matrix().digest(), data.header.sha256());
  Restart();
  EXPECT_TRUE(Matrix("sparseMatrices/next") == before);
  EXPECT_TRUE(Matrix(chosen.sparse_matrix().name()) == of_chosen);
  ASSERT_TRUE(server::Upload(*bulk_, MakeValues("sparseMatrices/m", values, "x"), &again).ok());
  EXPECT_TRUE(again.already_resident());
  EXPECT_EQ(again.sparse_matrix().name(), chosen.sparse_matrix().name());
  ASSERT_TRUE((Delete<v1::DeleteSparseMatrixRequest, v1::DeleteSparseMatrixResponse>(
                   [this](auto... a) { return sparse_->DeleteSparseMatrix(a...); }, "sparseMatrices/m"))
                  .ok());
  Restart();
  EXPECT_TRUE(Matrix("sparseMatrices/next") == before);
  EXPECT_EQ(context().matrices.size(), 2);
  v1::MultiplyRequest request = ProductOf("next", "next");
  request.mutable_options()->set_transpose_a(true);
  request.mutable_options()->set_precision(v1::PRECISION_FP64);
  EXPECT_TRUE(Multiply(*sparse_, request).status.ok());
}

TEST_P(RestartTest, AKeptTripleProductComesBackWithItsReportAndRequest) {
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(30, 30, 4, 3), "u", "m")).ok());
  v1::MultiplyTripleRequest request = TripleOf("", "m", "m");
  request.mutable_keep();
  request.set_request_id("p");
  const Product first = Multiply(*sparse_, request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  const std::string before = Matrix(first.result->sparse_matrix().name());
  Restart();
  EXPECT_TRUE(Matrix(first.result->sparse_matrix().name()) == before);
  const Product again = Multiply(*sparse_, request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.result->SerializeAsString(), first.result->SerializeAsString());
  EXPECT_TRUE(again.result->report().has_intermediate());
  EXPECT_EQ(context().matrices.size(), 2);
}

// On an axis of one voxel a spline has one control point.
TEST_P(RestartTest, ASplineOfAThinImageComesBack) {
  const Int3 sizes[] = {{40, 1, 24}, {64, 1, 1}, {1, 30, 24}, {40, 30, 1}};
  std::vector<std::string> ids, before;
  for (const Int3& size : sizes) {
    const Geometry grid = ObliqueGeometry(size);
    const std::string n = std::to_string(ids.size());
    AffineMap moved = AffineMap::Identity();
    for (int r = 0; r < 3; ++r) moved.m[r][3] = size[r] > 1 ? 1.5 : 0;
    for (const bool fixed : {true, false}) {
      const auto voxels = Blobs(grid, Center(grid), 12, fixed ? moved : AffineMap::Identity());
      const std::string id = (fixed ? "f" : "m") + n;
      ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(grid, voxels, id, id)).ok());
    }
    v1::RegisterRequest request = AffineThen(StageKind::kFfd);
    request.mutable_options()->mutable_stages()->DeleteSubrange(0, 1);
    request.set_fixed("volumes/f" + n);
    request.set_moving("volumes/m" + n);
    request.set_transform_id("t" + n);
    const RegisterAnswer answer = Register(request);
    ASSERT_TRUE(answer.status.ok()) << n << ": " << answer.status.error_message();
    ids.push_back("t" + n);
    before.push_back(TransformOf(ids.back()));
  }
  Restart();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_TRUE(TransformOf(ids[i]) == before[i]) << ids[i];
}

// The limit of uploads holds while objects are read, but keeps none of them out.
TEST_P(RestartTest, ARestoreTakesTheMemoryOfUploads) {
  const Geometry box = BoxGeometry(8, 9, 10);
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    const UploadData volume = MakeVolume(box, RandomVoxels<float>(box, static_cast<uint32_t>(id[0])), id, id);
    ASSERT_TRUE(server::Upload(*bulk_, volume).ok());
  }
  Stop();
  options_.limits.uploading_capacity_bytes = 1000;
  Start();
  EXPECT_EQ(context().volumes.size(), 5);
  for (const char* id : {"a", "b", "c", "d", "e"}) EXPECT_TRUE(context().volumes.Find(id).ok()) << id;
  EXPECT_EQ(context().ledger.use(Resource::kUploading).peak, 1000);
  EXPECT_EQ(context().ledger.in_use(Resource::kUploading), 0);
}

TEST_P(RestartTest, WhatWasDeletedOrExpiredStaysAway) {
  const Geometry box = BoxGeometry(4, 4, 4);
  for (const char* id : {"a", "b", "c"}) {
    UploadData volume = MakeVolume(box, RandomVoxels<uint8_t>(box, static_cast<uint32_t>(id[0])), id, id);
    if (id[0] == 'c') volume.header.mutable_ttl()->set_seconds(60);
    ASSERT_TRUE(server::Upload(*bulk_, volume).ok());
  }
  EXPECT_THAT(Payloads(), SizeIs(3));
  ASSERT_TRUE(DeleteVolume("volumes/a").ok());
  EXPECT_EQ(DeleteVolume("volumes/a").error_code(), grpc::NOT_FOUND);
  AdvanceClock(std::chrono::seconds(60));
  server_->Housekeep();
  ASSERT_TRUE(Eventually([this] { return context().volumes.size() == 1; }));
  Restart();
  EXPECT_EQ(context().volumes.size(), 1);
  EXPECT_TRUE(context().volumes.Find("b").ok());
  EXPECT_THAT(Payloads(), SizeIs(1));
}

// A clock that is wrong until somebody corrects it.
TEST_P(RestartTest, AClockThatIsAheadAtOneStartEndsNothing) {
  const Geometry box = BoxGeometry(4, 4, 4);
  UploadData volume = MakeVolume(box, RandomVoxels<uint8_t>(box, 1), "a", "a");
  volume.header.mutable_ttl()->set_seconds(24 * 3600);
  ASSERT_TRUE(server::Upload(*bulk_, volume).ok());
  {
    const auto begun = context().operations.Begin(OperationKind::kImport, {"o", "print"});
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_OK(begun->work->Keep());
    begun->work->Done({});
  }
  const auto expect_there = [&](const char* when) {
    server_->Housekeep();
    EXPECT_TRUE(context().volumes.Find("a").ok()) << when;
    EXPECT_TRUE(context().operations.Find("o", Anybody()).ok()) << when;
  };
  for (const int days : {3, -3, 0}) {
    options_.seams.system_now = [days] { return std::chrono::system_clock::now() + std::chrono::hours(24 * days); };
    Restart();
    expect_there(days > 0 ? "ahead" : days < 0 ? "behind" : "right");
  }
  const auto left = (*context().volumes.Find("a"))->expiry->time - std::chrono::system_clock::now();
  EXPECT_LT(left, std::chrono::hours(24) + std::chrono::minutes(1));
  EXPECT_GT(left, std::chrono::hours(23));
  // The day is over once it has passed while a server ran.
  AdvanceClock(std::chrono::hours(24));
  server_->Housekeep();
  ASSERT_TRUE(Eventually([this] { return context().volumes.size() == 0; }));
  EXPECT_FALSE(context().operations.Find("o", Anybody()).ok());
}

TEST_P(RestartTest, ADamagedPayloadIsNamedAndNeverServed) {
  const Geometry box = BoxGeometry(4, 5, 6);
  ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(box, RandomVoxels<float>(box, 1), "u1", "good")).ok());
  const std::vector<std::filesystem::path> good = Payloads();
  ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(box, RandomVoxels<float>(box, 2), "u2", "bad")).ok());
  Stop();
  for (const std::filesystem::path& path : Payloads()) {
    if (path == good[0]) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(0).put(byte);
  }
  Start();
  EXPECT_TRUE(context().volumes.Find("good").ok());
  grpc::ClientContext rpc;
  v1::GetVolumeRequest get;
  get.set_name("volumes/bad");
  v1::GetVolumeResponse response;
  const grpc::Status lost = volumes_->GetVolume(&rpc, get, &response);
  EXPECT_STATUS(lost, grpc::DATA_LOSS, "volumes/bad");
  EXPECT_EQ(ReasonOf(lost), v1::OBJECT_DAMAGED);
  const UploadData anew = MakeVolume(box, RandomVoxels<float>(box, 2), "u3", "bad");
  EXPECT_EQ(ReasonOf(server::Upload(*bulk_, anew)), v1::OBJECT_DAMAGED) << "the id is taken until it is deleted";
  ASSERT_TRUE(DeleteVolume("volumes/bad").ok());
  EXPECT_TRUE(server::Upload(*bulk_, anew).ok());
  Restart();
  EXPECT_TRUE(context().volumes.Find("bad").ok());
}

TEST_P(RestartTest, TheIdOfALostResultIsRefusedBeforeTheWork) {
  UploadPair();
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(9, 9, 4, 3), "u", "m")).ok());
  context().transforms.MarkLost("t", ObjectDamaged("transforms/t", "it is gone"));
  context().matrices.MarkLost("p", ObjectDamaged("sparseMatrices/p", "it is gone"));
  v1::RegisterRequest registration = AffineThen(StageKind::kFfd);
  registration.set_transform_id("t");
  const RegisterAnswer answer = Register(registration);
  EXPECT_EQ(ReasonOf(answer.status), v1::OBJECT_DAMAGED);
  EXPECT_THAT(answer.progress, testing::IsEmpty());
  v1::MultiplyRequest product = ProductOf("m", "m");
  product.mutable_keep()->set_id("p");
  EXPECT_EQ(ReasonOf(Multiply(*sparse_, product).status), v1::OBJECT_DAMAGED);
}

TEST_P(RestartTest, AFullDiskIsARefusalThatLosesNothing) {
  UploadPair();
  ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(30, 30, 4, 3), "u", "m")).ok());
  const std::string before = Volume("volumes/fixed");
  const Geometry box = BoxGeometry(4, 5, 6);
  const UploadData more = MakeVolume(box, RandomVoxels<float>(box, 1), "u1", "more");
  v1::RegisterRequest registration = AffineThen(StageKind::kFfd);
  registration.set_transform_id("t");
  v1::MultiplyRequest product = ProductOf("m", "m");
  product.mutable_keep()->set_id("p");

  disk_.Unplug();
  const grpc::Status upload = server::Upload(*bulk_, more);
  EXPECT_EQ(upload.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(upload), v1::STATE_FULL);
  const RegisterAnswer registered = Register(registration);
  EXPECT_EQ(ReasonOf(registered.status), v1::STATE_FULL);
  EXPECT_FALSE(registered.result.has_value());
  EXPECT_EQ(ReasonOf(Multiply(*sparse_, product).status), v1::STATE_FULL);
  EXPECT_EQ(ReasonOf(DeleteVolume("volumes/fixed")), v1::STATE_FULL);
  EXPECT_TRUE(Volume("volumes/fixed") == before);
  EXPECT_EQ(context().volumes.size(), 2);
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_EQ(context().matrices.size(), 1);

  disk_.Replug();
  EXPECT_TRUE(server::Upload(*bulk_, more, nullptr, 1000, more.bytes.size()).ok()) << "all of its bytes were there";
  EXPECT_TRUE(Register(registration).status.ok());
  EXPECT_TRUE(Multiply(*sparse_, product).status.ok());
  Restart();
  EXPECT_TRUE(Volume("volumes/fixed") == before);
  EXPECT_EQ(context().volumes.size(), 3);
  EXPECT_EQ(context().transforms.size(), 1);
  EXPECT_EQ(context().matrices.size(), 2);
}

TEST_P(RestartTest, ASecondServerOnTheDirectoryDoesNotStart) {
  EXPECT_EQ(Server::Start(options_).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace intrawarp::server
