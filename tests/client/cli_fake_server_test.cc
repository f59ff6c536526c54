// SPDX-License-Identifier: Apache-2.0
// The command line as a process against a server in the test's process, which does what no real one does on demand:
// blocks, fails, and answers with other clients' volumes. What is looked at is what the command line leaves behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "io/format/nifti.h"
#include "tests/client/fake_server.h"
#include "tests/client/process.h"
#include "tests/support/eventually.h"

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CliFakeServerTest : public testing::Test {
 protected:
  CliFakeServerTest() {
    Geometry geometry;
    geometry.size = {4, 3, 2};
    std::vector<float> voxels(24);
    for (const char* name : {"fixed.nii", "moving.nii"}) {
      voxels[0] += 1;
      EXPECT_TRUE(io::WriteNifti(folder_ / name, geometry, PixelType::kFloat32, voxels.data()).ok());
    }
    server_.bulk.upload = [this](grpc::ServerContext*, auto* reader, auto* response) {
      v1::UploadRequest request;
      reader->Read(&request);
      return Upload(request.header(), reader, response);
    };
    server_.volumes.remove = [this](grpc::ServerContext*, const v1::DeleteVolumeRequest* request, auto*) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (volumes_.erase(request->name()) == 0) return grpc::Status(grpc::StatusCode::NOT_FOUND, request->name());
      return grpc::Status::OK;
    };
  }

  grpc::Status Upload(const v1::UploadHeader& header, grpc::ServerReader<v1::UploadRequest>* reader,
                      v1::UploadResponse* response) {
    v1::UploadRequest request;
    while (reader->Read(&request)) {
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    response->mutable_volume()->set_name("volumes/" + header.id());
    volumes_.insert(response->volume().name());
    ++uploads_;
    return grpc::Status::OK;
  }

  std::vector<std::string> RegisterArguments() const {
    return {INTRAWARP_CLI,
            "--server=" + server_.target(),
            "register",
            "--fixed=" + (folder_ / "fixed.nii"),
            "--moving=" + (folder_ / "moving.nii"),
            "--method=affine"};
  }

  std::set<std::string> Volumes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return volumes_;
  }

  static grpc::Status Succeed(grpc::ServerWriter<v1::RegisterResponse>* writer) {
    v1::RegisterResponse response;
    response.mutable_result()->set_transform("transforms/t");
    writer->Write(response);
    return grpc::Status::OK;
  }

  TemporaryFolder folder_;
  std::mutex mutex_;
  std::set<std::string> volumes_;
  std::atomic<int> uploads_{0};
  FakeServer server_;
};

TEST_F(CliFakeServerTest, DeletesWhatItUploaded) {
  server_.registration.register_once = [&](grpc::ServerContext*, const v1::RegisterRequest* request, auto* writer) {
    EXPECT_EQ(Volumes().count(request->fixed()), 1u);
    EXPECT_EQ(Volumes().count(request->moving()), 1u);
    return Succeed(writer);
  };
  const ProcessResult result = RunProcess(RegisterArguments());
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.out, "transforms/t\n");
  EXPECT_EQ(result.err, "verdict: unknown; expected error unknown\n");
  EXPECT_EQ(uploads_, 2);
  EXPECT_THAT(Volumes(), IsEmpty());
}

TEST_F(CliFakeServerTest, DeletesWhatItUploadedAfterAFailure) {
  server_.registration.register_once = [&](grpc::ServerContext*, auto*, auto*) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "images do\nnot overlap");
  };
  const ProcessResult result = RunProcess(RegisterArguments());
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "intrawarp: FAILED_PRECONDITION: images do not overlap\n");
  EXPECT_EQ(uploads_, 2);
  EXPECT_THAT(Volumes(), IsEmpty());
}

grpc::Status TryAgain(grpc::StatusCode code, int seconds, int nanos) {
  google::rpc::Status status;
  status.set_code(static_cast<int>(code));
  status.set_message("the device does not come back");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(seconds);
  retry.mutable_retry_delay()->set_nanos(nanos);
  status.add_details()->PackFrom(retry);
  return grpc::Status(code, status.message(), status.SerializeAsString());
}

TEST_F(CliFakeServerTest, WhatMayBeTriedAgainIsTriedAgain) {
  for (const grpc::StatusCode code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::ABORTED}) {
    std::atomic<int> calls{0};
    server_.registration.register_once = [&](grpc::ServerContext*, auto*, auto* writer) {
      return ++calls < 3 ? TryAgain(code, 0, 10000000) : Succeed(writer);
    };
    const ProcessResult result = RunProcess(RegisterArguments());
    EXPECT_EQ(result.exit_status, 0) << result.err;
    EXPECT_EQ(result.out, "transforms/t\n");
    EXPECT_EQ(calls, 3);
    EXPECT_THAT(result.err, HasSubstr("trying again (1 of 6)"));
    EXPECT_THAT(result.err, HasSubstr("trying again (2 of 6)"));
  }
}

TEST_F(CliFakeServerTest, TryingAgainHasBounds) {
  std::atomic<int> calls{0};
  server_.registration.register_once = [&](auto*, auto*, auto*) {
    ++calls;
    return TryAgain(grpc::StatusCode::UNAVAILABLE, 0, 1000000);
  };
  const ProcessResult often = RunProcess(RegisterArguments());
  EXPECT_EQ(often.exit_status, 1);
  EXPECT_EQ(calls, 7);
  EXPECT_THAT(often.err, testing::EndsWith("UNAVAILABLE: the device does not come back (try again in 0.001 s)\n"));
  // A wait that is longer than anybody's patience is not begun, nor one for another code.
  for (const grpc::Status& status :
       {TryAgain(grpc::StatusCode::UNAVAILABLE, 3600, 0), TryAgain(grpc::StatusCode::RESOURCE_EXHAUSTED, 0, 1000000),
        grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")}) {
    calls = 0;
    server_.registration.register_once = [&](auto*, auto*, auto*) {
      ++calls;
      return status;
    };
    EXPECT_EQ(RunProcess(RegisterArguments()).exit_status, 1);
    EXPECT_EQ(calls, 1) << status.error_message();
  }
}

// One output fails on the way; the others are made, and the message says how the rest can be had.
TEST_F(CliFakeServerTest, AFailedOutputLeavesTheOthers) {
  server_.registration.register_once = [&](grpc::ServerContext*, auto*, auto* writer) { return Succeed(writer); };
  server_.transforms.warp = [&](auto*, auto*, auto*) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  };
  std::vector<std::string> arguments = RegisterArguments();
  arguments.insert(arguments.end(), {"--warped=" + (folder_ / "w.nii"), "--report=" + (folder_ / "r.json"),
                                     "--montage=" + (folder_ / "m.png")});
  const ProcessResult result = RunProcess(arguments);
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.out, "transforms/t\n");
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE: --warped: draining"));
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE: --montage: draining; transforms/t was made"));
  EXPECT_THAT(FileContents(folder_ / "r.json"), HasSubstr("\"transform\": \"transforms/t\""));
  EXPECT_THAT(Volumes(), IsEmpty());
}

TEST_F(CliFakeServerTest, AStartAwayFromTheHeaderIsTold) {
  server_.registration.register_once = [&](grpc::ServerContext*, auto*, auto* writer) {
    v1::RegisterResponse response;
    response.mutable_result()->set_transform("transforms/t");
    v1::StartCandidate& start = *response.mutable_result()->mutable_report()->add_starts();
    start.set_kind(v1::START_KIND_CENTER_OF_MASS);
    for (const double v : {1, 0, 0, 3, 0, 1, 0, 0, 0, 0, 1, 4, 0, 0, 0, 1}) {
      start.mutable_end()->add_values(v);
    }
    writer->Write(response);
    return grpc::Status::OK;
  };
  server_.volumes.get = [](auto*, auto* request, auto* response) {
    v1::Geometry& geometry = *response->mutable_volume()->mutable_geometry();
    response->mutable_volume()->set_name(request->name());
    for (const int n : {4, 3, 2}) geometry.add_size(n);
    for (int a = 0; a < 3; ++a) geometry.add_spacing(1);
    for (int a = 0; a < 3; ++a) geometry.add_origin(0);
    for (int i = 0; i < 9; ++i) geometry.add_direction(i % 4 == 0);
    return grpc::Status::OK;
  };
  EXPECT_THAT(RunProcess(RegisterArguments()).err,
              HasSubstr("start: the centres of mass, 5 mm from where the headers put the images\n"));
}

TEST_F(CliFakeServerTest, DeletesTheFirstWhenTheSecondUploadFails) {
  std::atomic<int> calls{0};
  server_.bulk.upload = [&](grpc::ServerContext*, auto* reader, auto* response) {
    v1::UploadRequest request;
    reader->Read(&request);
    if (++calls == 2) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
    return Upload(request.header(), reader, response);
  };
  const ProcessResult result = RunProcess(RegisterArguments());
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, HasSubstr("RESOURCE_EXHAUSTED: "));
  EXPECT_THAT(result.err, HasSubstr("full"));
  EXPECT_EQ(uploads_, 1);
  EXPECT_THAT(Volumes(), IsEmpty());
}

TEST_F(CliFakeServerTest, AnInterruptCancelsAndCleansUp) {
  for (int signal : {SIGINT, SIGTERM}) {
    std::promise<void> begun;
    std::atomic<bool> cancelled{false};
    server_.registration.register_once = [&](grpc::ServerContext* context, auto*, auto*) {
      begun.set_value();
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      cancelled = true;
      return grpc::Status::CANCELLED;
    };
    Process process(RegisterArguments());
    ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
    process.Signal(signal);
    const ProcessResult result = process.Wait();
    EXPECT_EQ(result.exit_status, 1);
    EXPECT_EQ(result.err, "intrawarp: CANCELLED: interrupted\n");
    EXPECT_THAT(Volumes(), IsEmpty());
    EXPECT_TRUE(Eventually([&] { return cancelled.load(); }));
  }
}

TEST_F(CliFakeServerTest, AnInterruptWithinAnUploadDeletesWhatMayHaveBeenStored) {
  std::promise<void> begun;
  server_.bulk.upload = [&](grpc::ServerContext* context, auto* reader, auto* response) {
    v1::UploadRequest request;
    reader->Read(&request);
    const grpc::Status status = Upload(request.header(), reader, response);
    begun.set_value();
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return status;
  };
  Process process(RegisterArguments());
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait().exit_status, 1);
  EXPECT_EQ(uploads_, 1);
  EXPECT_THAT(Volumes(), IsEmpty());
}

TEST_F(CliFakeServerTest, HealthFollowsTheServer) {
  const std::vector<std::string> arguments = {INTRAWARP_CLI, "--server=" + server_.target(), "health"};
  EXPECT_EQ(RunProcess(arguments).exit_status, 0);
  server_.server().GetHealthCheckService()->SetServingStatus(false);
  const ProcessResult result = RunProcess(arguments);
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.err, "intrawarp: UNAVAILABLE: the server is not serving\n");
}

}  // namespace
}  // namespace intrawarp::client
