// SPDX-License-Identifier: Apache-2.0
// The n-th call that an RPC makes of the device fails, for every n: once for want of memory, and once for good. The RPC
// ends with a published reason, nothing of it is left, and the next one works or says that the device is lost.
#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "tests/server/interference/faulty_server.h"
#include "tests/server/interference/interference_fixture.h"
#include "tests/server/matrix_client.h"

namespace intrawarp::server {
namespace {

// How a call ended. A frame that failed ends its call in this sense.
struct Ending {
  int code = 0;
  std::string reason;
};

Ending Of(const grpc::Status& status) { return {status.error_code(), ReasonIn(status)}; }

template <typename Reader, typename Response>
Ending ReadAll(Reader& reader, Response response) {
  while (reader.Read(&response)) {
  }
  return Of(reader.Finish());
}

// A server on a faulty CPU with "volumes/patient", "transforms/t" and "sparseMatrices/m".
class Theatre {
 public:
  Theatre() : test_(OnFaultyDevice(TestServer::DefaultOptions(), &device_)) {
    auto bulk = test_.Stub<v1::BulkService>();
    EXPECT_TRUE(Upload(*bulk, Volume("patient"), nullptr, size_t{1} << 20).ok());
    EXPECT_TRUE(Upload(*bulk, Field("t"), nullptr, size_t{1} << 20).ok());
    EXPECT_TRUE(Upload(*bulk, Matrix("m")).ok());
    Settle();
    before_ = Held();
    buffers_before_ = device_->live().buffers;
  }

  TestServer& test() { return test_; }
  FaultyDevice& device() { return *device_; }

  static UploadData Volume(const std::string& id) {
    return MakeVolume(PatientGrid(), RandomVoxels<float>(PatientGrid(), kPatientSeed), "upload-" + id, id);
  }
  static UploadData Field(const std::string& id) {
    UploadData data;
    data.bytes.assign(PatientGrid().voxels() * 12, '\0');
    data.header.set_id(id);
    data.header.set_upload_id("upload-" + id);
    v1::FieldHeader& header = *data.header.mutable_transform()->mutable_field();
    *header.mutable_geometry() = GeometryToProto(PatientGrid());
    header.set_encoding(v1::FIELD_ENCODING_FLOAT32);
    header.set_total_bytes(static_cast<int64_t>(data.bytes.size()));
    data.Seal();
    return data;
  }
  static UploadData Matrix(const std::string& id) {
    return MakeMatrix(RandomCsr<float>(60, 60, 5, 1), "upload-" + id, id);
  }
  static UploadData MatrixValues(const std::string& id) {
    const std::vector<float> values(static_cast<size_t>(RandomCsr<float>(60, 60, 5, 1).entries()), 0.5f);
    return MakeValues("sparseMatrices/m", values, "upload-" + id, id);
  }

  // Deletes what a good call has made, and waits until no call is under way.
  void Settle() {
    DeleteNew();
    const v1::Usage usage = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() + u.jobs() == 0; });
    EXPECT_EQ(usage.streams() + usage.jobs(), 0) << usage.ShortDebugString();
    // An upload that failed may be resumed for a while.
    test_.clock.Advance(std::chrono::hours(1));
    test_.server->Housekeep();
  }
  // Everything but the objects of the constructor has been given back.
  void ExpectAsBefore() {
    Settle();
    test_.WaitForExpiredUsage([this](const v1::Usage&) { return Held() == before_; });
    EXPECT_EQ(Held(), before_);
    test_.WaitForUsage([this](const v1::Usage&) { return device_->live().buffers == buffers_before_; });
    EXPECT_EQ(device_->live().buffers, buffers_before_) << "device memory";
  }

 private:
  std::string Held() { return test_.Info().usage().ShortDebugString(); }
  void DeleteNew();

  FaultyDevice* device_ = nullptr;
  TestServer test_;
  std::string before_;
  int64_t buffers_before_ = 0;
};

void Theatre::DeleteNew() {
  const auto erase = [](auto stub, auto remove, const char* name, auto request, auto response) {
    grpc::ClientContext context;
    request.set_name(name);
    ((*stub).*remove)(&context, request, &response);  // NOT_FOUND where the call has made nothing
  };
  erase(test_.Stub<v1::VolumeService>(), &v1::VolumeService::Stub::DeleteVolume, "volumes/new",
        v1::DeleteVolumeRequest(), v1::DeleteVolumeResponse());
  erase(test_.Stub<v1::TransformService>(), &v1::TransformService::Stub::DeleteTransform, "transforms/new",
        v1::DeleteTransformRequest(), v1::DeleteTransformResponse());
  erase(test_.Stub<v1::SparseMatrixService>(), &v1::SparseMatrixService::Stub::DeleteSparseMatrix, "sparseMatrices/new",
        v1::DeleteSparseMatrixRequest(), v1::DeleteSparseMatrixResponse());
}

// One call of a kind of RPC, whose result, if it stays, is called "new".
struct Kind {
  std::string name;
  std::function<Ending(Theatre&)> call;
};

Ending DownloadOf(Theatre& theatre, const std::string& name) {
  v1::DownloadRequest request;
  request.set_name(name);
  if (absl::StartsWith(name, "transforms/")) request.mutable_field()->set_encoding(v1::FIELD_ENCODING_INT16);
  grpc::ClientContext context;
  return ReadAll(*theatre.test().Stub<v1::BulkService>()->Download(&context, request), v1::DownloadResponse());
}

Ending WarpOf(Theatre& theatre) {
  v1::WarpVolumeRequest request;
  request.set_transform("transforms/t");
  request.set_moving("volumes/patient");
  request.set_like_volume("volumes/patient");
  request.set_interpolation(v1::INTERPOLATION_CUBIC);
  grpc::ClientContext context;
  return ReadAll(*theatre.test().Stub<v1::TransformService>()->WarpVolume(&context, request), v1::WarpVolumeResponse());
}

Ending MapPointsOf(Theatre& theatre) {
  v1::MapPointsRequest request;
  request.set_transform("transforms/t");
  for (const double x : {1.0, 2.0, 3.0}) request.add_points(x);
  v1::MapPointsResponse response;
  grpc::ClientContext context;
  return Of(theatre.test().Stub<v1::TransformService>()->MapPoints(&context, request, &response));
}

Ending RegisterOf(Theatre& theatre, const std::function<void(v1::Stage&)>& set_stage) {
  v1::RegisterRequest request;
  request.set_fixed("volumes/patient");
  request.set_moving("volumes/patient");
  request.set_transform_id("new");
  set_stage(*request.mutable_options()->add_stages());
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  grpc::ClientContext context;
  return ReadAll(*theatre.test().Stub<v1::RegistrationService>()->Register(&context, request), v1::RegisterResponse());
}

Ending FrameOf(Theatre& theatre) {
  NavigationClient client(theatre.test().server->grpc_address(), PatientSession());
  const FrameSeen frame = client.Next();
  return {frame.code, frame.reason};
}

Ending MultiplyOf(Theatre& theatre, bool keep) {
  v1::MultiplyRequest request = ProductOf("m", "m");
  if (keep) request.mutable_keep()->set_id("new");
  return Of(Multiply(*theatre.test().Stub<v1::SparseMatrixService>(), request).status);
}

Ending MultiplyTripleOf(Theatre& theatre) {
  return Of(Multiply(*theatre.test().Stub<v1::SparseMatrixService>(), TripleOf("", "m", "m")).status);
}

const std::vector<Kind>& Kinds() {
  const auto upload = [](UploadData (*data)(const std::string&)) {
    return [data](Theatre& t) { return Of(Upload(*t.test().Stub<v1::BulkService>(), data("new"), nullptr, 1 << 20)); };
  };
  const auto ffd = [](v1::Stage& stage) {
    stage.mutable_ffd()->set_levels(2);
    stage.mutable_ffd()->set_iterations(3);
  };
  const auto demons = [](v1::Stage& stage) { stage.mutable_log_demons()->set_iterations(3); };
  static const auto* const kinds = new std::vector<Kind>{
      {"UploadVolume", upload(Theatre::Volume)},
      {"UploadField", upload(Theatre::Field)},
      {"UploadMatrix", upload(Theatre::Matrix)},
      {"UploadMatrixValues", upload(Theatre::MatrixValues)},
      {"DownloadVolume", [](Theatre& t) { return DownloadOf(t, "volumes/patient"); }},
      {"DownloadField", [](Theatre& t) { return DownloadOf(t, "transforms/t"); }},
      {"DownloadMatrix", [](Theatre& t) { return DownloadOf(t, "sparseMatrices/m"); }},
      {"WarpVolume", WarpOf},
      {"MapPoints", MapPointsOf},
      {"RegisterAffine", [](Theatre& t) { return RegisterOf(t, [](v1::Stage& s) { s.mutable_affine(); }); }},
      {"RegisterFfd", [ffd](Theatre& t) { return RegisterOf(t, ffd); }},
      {"RegisterLogDemons", [demons](Theatre& t) { return RegisterOf(t, demons); }},
      {"Navigate", FrameOf},
      {"MultiplyKept", [](Theatre& t) { return MultiplyOf(t, true); }},
      {"MultiplySent", [](Theatre& t) { return MultiplyOf(t, false); }},
      {"MultiplyTriple", MultiplyTripleOf}};
  return *kinds;
}

// Every n up to 40, then fewer and fewer.
std::vector<int64_t> Sweep(int64_t calls) {
  std::vector<int64_t> sweep;
  for (int64_t n = 1; n <= calls; n += 1 + n / 40) sweep.push_back(n);
  return sweep;
}

class DeviceFaultsTest : public testing::TestWithParam<size_t> {
 protected:
  const Kind& kind() const { return Kinds()[GetParam()]; }

  // Calls of the device that the first good call on a server makes.
  int64_t CallsOfAGoodOne(std::optional<DeviceCall> device_call) {
    Theatre theatre;
    const auto calls = [&] { return device_call ? theatre.device().calls(*device_call) : theatre.device().calls(); };
    const int64_t before = calls();
    const Ending ending = kind().call(theatre);
    EXPECT_EQ(ending.code, 0) << ending.reason;
    theatre.Settle();
    return calls() - before;
  }
  // What a run swept, so that a sweep that tested nothing is seen.
  void PrintSwept(int64_t calls, int64_t failed) const {
    std::cout << "[ FAULTS   ] " << kind().name << ": " << calls << " device calls, " << failed << " ended the RPC\n";
  }
};

// The n-th allocation fails.
void ExpectWantOfMemory(const Kind& kind, DeviceCall device_call, int64_t n, int64_t* failed) {
  Theatre theatre;
  theatre.device().FailAt(n, absl::ResourceExhaustedError("planted"), device_call);
  const Ending ending = kind.call(theatre);
  theatre.device().Disarm();
  if (ending.code != 0) {
    ++*failed;
    EXPECT_EQ(ending.code, grpc::RESOURCE_EXHAUSTED);
    EXPECT_THAT(ending.reason, testing::HasSubstr("_MEMORY"));
  }
  theatre.ExpectAsBefore();
  const Ending next = kind.call(theatre);
  EXPECT_EQ(next.code, 0) << next.reason;
  theatre.ExpectAsBefore();
}

TEST_P(DeviceFaultsTest, WantOfMemoryIsAnErrorOfOneCall) {
  int64_t allocations = 0, failed = 0;
  for (const DeviceCall device_call : {DeviceCall::kAllocate, DeviceCall::kAllocatePinned}) {
    const int64_t calls = CallsOfAGoodOne(device_call);
    allocations += calls;
    for (const int64_t n : Sweep(calls)) {
      SCOPED_TRACE(absl::StrCat("allocation ", n, " of kind ", static_cast<int>(device_call)));
      ExpectWantOfMemory(kind(), device_call, n, &failed);
      if (HasFailure()) return;
    }
  }
  PrintSwept(allocations, failed);
  EXPECT_EQ(failed > 0, allocations > 0);
}

// The n-th call fails, and the device with it.
void ExpectLoss(const Kind& kind, int64_t n, int64_t* failed) {
  Theatre theatre;
  theatre.device().FailAt(n, absl::UnavailableError("planted"));
  const Ending ending = kind.call(theatre);
  if (ending.code != 0) {
    ++*failed;
    EXPECT_EQ(ending.code, grpc::UNAVAILABLE) << ending.reason;
    EXPECT_EQ(ending.reason, "DEVICE_LOST");
  }
  const v1::Usage usage = theatre.test().WaitForUsage([](const v1::Usage& u) { return u.streams() + u.jobs() == 0; });
  EXPECT_EQ(usage.streams() + usage.jobs(), 0) << usage.ShortDebugString();
  if (theatre.device().health().ok()) return;  // the call made fewer calls than the one before
  const Ending next = FrameOf(theatre);
  EXPECT_EQ(next.code, grpc::UNAVAILABLE) << next.reason;
  EXPECT_EQ(next.reason, "DEVICE_LOST");
}

TEST_P(DeviceFaultsTest, ALostDeviceIsNamedAndNothingIsLeftUnderWay) {
  const int64_t calls = CallsOfAGoodOne(std::nullopt);
  int64_t failed = 0;
  for (const int64_t n : Sweep(calls)) {
    SCOPED_TRACE(absl::StrCat("call ", n, " of ", calls));
    ExpectLoss(kind(), n, &failed);
    if (HasFailure()) return;
  }
  PrintSwept(calls, failed);
  EXPECT_GT(failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Rpcs, DeviceFaultsTest, testing::Range(size_t{0}, Kinds().size()),
                         [](const auto& info) { return Kinds()[info.param].name; });

}  // namespace
}  // namespace intrawarp::server
