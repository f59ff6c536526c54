// SPDX-License-Identifier: Apache-2.0
// Series imported from an archive of our own that misbehaves.
#include <algorithm>
#include <atomic>

#include "intrawarp/v1/error.pb.h"
#include "tests/server/pacs/fake_archive.h"
#include "tests/server/pacs/pacs_fixture.h"
#include "tests/server/pacs/retrieve_fixture.h"

namespace intrawarp::server {
namespace {

using client::Process;
using client::ProcessResult;
using dimse::Association;
using dimse::Connection;
using dimse::ReceivedCommand;
using testing::HasSubstr;

// An archive with one series; `retrieve` serves C-GET and C-MOVE, everything else is as it should be.
class FakeArchiveTest : public RetrieveTest {
 protected:
  using Retrieve = std::function<void(Association&, Connection&, const ReceivedCommand&)>;

  // The archive's threads outlast the requests: a test holds the archive after all that `retrieve` refers to.
  [[nodiscard]] std::unique_ptr<FakeArchive> StartFake(int slices, Retrieve retrieve,
                                                       std::vector<std::string> flags = {}) {
    folder_of_series_ = WholeSeries("ct", kSeries, slices);
    for (int k = 0; k < slices; ++k) data_.push_back(DataSetOf(absl::StrCat(folder_of_series_, "/slice", k)));
    auto archive = std::make_unique<FakeArchive>([this, retrieve](Association& association, Connection& line) {
      for (;;) {
        const auto request = association.ReceiveCommand();
        if (!request.ok()) return;
        if (request->command.field == dimse::kEchoRequest) {
          (void)association.Send(request->context, dimse::ResponseTo(request->command, dimse::kSuccess));
          continue;
        }
        if (request->command.field == dimse::kCancelRequest) {
          ++cancels_;
          continue;
        }
        // To a store request that a cancel has crossed.
        if (request->command.is_response()) continue;
        FakeArchive::Identifier(association, *request);
        if (request->command.field == dimse::kFindRequest && find_) {
          find_(association, line, *request);
        } else if (request->command.field == dimse::kFindRequest) {
          ListImages(association, *request);
        } else {
          retrieve(association, line, *request);
        }
      }
    });
    StartWith(archive->port(), "FAKE", std::move(flags));
    return archive;
  }

  std::string Uid(size_t k) const { return absl::StrCat(kSeries, ".", k + 1); }
  void ListImages(dimse::Association& association, const dimse::ReceivedCommand& request) const {
    for (size_t k = 0; k < data_.size(); ++k) {
      (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kPending, {}, true),
                             FakeArchive::Image(kSeries, Uid(k), kCtStorage).Encode());
    }
    (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kSuccess));
  }
  // A store request on the association of a C-GET, and the status of its response.
  static uint16_t StoreOn(dimse::Association& association, const std::string& uid, const std::string& data,
                          const dimse::Elements& more = {}) {
    const uint8_t context = association.ContextOf(kCtStorage);
    dimse::Command command = StoreCommand(uid);
    if (more.Has(dimse::kMoveOriginatorAe)) {
      command.elements.SetText(dimse::kMoveOriginatorAe, more.Text(dimse::kMoveOriginatorAe));
      command.elements.Set16(dimse::kMoveOriginatorId, *more.Get16(dimse::kMoveOriginatorId));
    }
    if (!association.Send(context, command, data).ok()) return 0xffff;
    const auto response = association.ReceiveCommand();
    if (!response.ok()) return 0xffff;
    return response->command.field == dimse::kCancelRequest ? uint16_t{dimse::kCancelled} : response->command.status();
  }
  void SendCounts(dimse::Association& association, const dimse::ReceivedCommand& request, uint16_t status,
                  uint16_t done, uint16_t failed) const {
    const auto left = static_cast<uint16_t>(data_.size() - done - failed);
    (void)association.Send(request.context, FakeArchive::Response(request.command, status, {left, done, failed, 0}));
  }

  Retrieve find_;  // in the place of ListImages
  std::string folder_of_series_;
  std::vector<std::string> data_;
  std::atomic<int> cancels_{0};
};

TEST_F(FakeArchiveTest, AQuestionEndsAtItsDeadline) {
  find_ = [](Association&, Connection& line, const ReceivedCommand&) {
    char byte = 0;
    while (line.Read(&byte, 1, Soon()).ok()) {
    }
  };
  const auto archive = StartFake(1, [](Association&, Connection&, const ReceivedCommand&) {});
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::FindSeriesResponse found;
  EXPECT_EQ(pacs_->FindSeries(&call, PatientQuery("get"), &found).error_code(), grpc::DEADLINE_EXCEEDED);
  // Its place among the questions is free again: more of them than run at once.
  for (int k = 0; k < 8; ++k) EXPECT_TRUE(EchoArchive("get").ok());
}

TEST_F(FakeArchiveTest, ACancelIsToldToTheArchive) {
  std::atomic<int> cancelled{0};
  const auto archive = StartFake(400, [&](Association& association, Connection&, const ReceivedCommand& request) {
    uint16_t done = 0;
    for (size_t k = 0; k < data_.size(); ++k) {
      const uint16_t status = StoreOn(association, Uid(k), data_[k]);
      if (status == dimse::kCancelled) {
        ++cancelled;
        SendCounts(association, request, dimse::kCancelled, done, 0);
        return;
      }
      if (status == 0xffff) return;
      SendCounts(association, request, dimse::kPending, ++done, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    SendCounts(association, request, dimse::kSuccess, done, 0);
  });
  v1::Operation operation;
  ASSERT_TRUE(Begin("get", "long", &operation).ok());
  ASSERT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_spool_instances") >= 3; }));
  Cancel("long");
  operation = Await("long");
  EXPECT_EQ(operation.error().code(), grpc::CANCELLED) << operation.DebugString();
  EXPECT_EQ(cancelled, 1);
  EXPECT_TRUE(SpoolIsEmpty());
  EXPECT_TRUE(Volumes().empty());
  EXPECT_EQ(Metric("intrawarp_dicom_imports_total{outcome=\"cancelled\"}"), 1);
}

TEST_F(FakeArchiveTest, ImportsOfOneSeriesRunOneAfterTheOther) {
  std::atomic<int> open{0}, most{0};
  const auto archive = StartFake(4, [&](Association& association, Connection&, const ReceivedCommand& request) {
    most = std::max<int>(most, ++open);
    for (size_t k = 0; k < data_.size(); ++k) {
      StoreOn(association, Uid(k), data_[k]);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    --open;
    SendCounts(association, request, dimse::kSuccess, 4, 0);
  });
  v1::Operation operation;
  ASSERT_TRUE(Begin("get", "one", &operation).ok());
  ASSERT_TRUE(Begin("get", "two", &operation).ok());
  ASSERT_TRUE(Begin("get", "one", &operation).ok());  // repeated: the same operation
  const v1::Operation one = Await("one"), two = Await("two");
  EXPECT_EQ(one.state(), v1::OPERATION_STATE_DONE) << one.DebugString();
  EXPECT_EQ(two.state(), v1::OPERATION_STATE_DONE) << two.DebugString();
  EXPECT_EQ(one.results(0), two.results(0));
  EXPECT_EQ(most, 1);
  EXPECT_EQ(Volumes().size(), 1);
  EXPECT_EQ(Metric(kDone), 2);
  EXPECT_EQ(Begin("get", "one", &operation, "1.2.5.3").error_code(), grpc::ALREADY_EXISTS);
}

// A crash in the middle of an import leaves neither images nor a volume, and the operation says so.
TEST_F(FakeArchiveTest, ARestartDuringAnImportLeavesNothing) {
  const std::vector<std::string> kept = {absl::StrCat("--state_dir=", MakeFolder("state"))};
  std::atomic<bool> goes_on{false};
  const auto archive = StartFake(
      6,
      [&](dimse::Association& association, dimse::Connection& line, const dimse::ReceivedCommand& request) {
        for (size_t k = 0; k < data_.size(); ++k) {
          if (k == 3 && !goes_on) {
            // Waits until the server has closed the connection.
            char byte = 0;
            while (line.Read(&byte, 1, Soon()).ok()) {
            }
            return;
          }
          StoreOn(association, Uid(k), data_[k]);
        }
        SendCounts(association, request, dimse::kSuccess, static_cast<uint16_t>(data_.size()), 0);
      },
      kept);
  v1::Operation operation;
  ASSERT_TRUE(Begin("get", "cut", &operation).ok());
  ASSERT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_spool_instances") == 3; }));
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
  StartWith(archive->port(), "FAKE", kept);
  operation = Await("cut");
  EXPECT_EQ(operation.state(), v1::OPERATION_STATE_FAILED) << operation.DebugString();
  EXPECT_EQ(ReasonOf(operation.error()), v1::SERVER_RESTARTED);
  EXPECT_TRUE(operation.results().empty());
  EXPECT_TRUE(SpoolIsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "spool"));
  EXPECT_TRUE(Volumes().empty());
  // Asked again under the same id it begins anew.
  goes_on = true;
  ASSERT_TRUE(Begin("get", "cut", &operation).ok());
  ASSERT_TRUE(Eventually([&] { return Await("cut").state() == v1::OPERATION_STATE_DONE; }));
  EXPECT_EQ(Volumes().size(), 1);
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(FakeArchiveTest, FaultsOfTheArchiveHaveReasonsOfTheirOwn) {
  std::atomic<int> fault{0};
  const auto archive =
      StartFake(4, [&](dimse::Association& association, dimse::Connection&, const dimse::ReceivedCommand& request) {
        if (fault == 2) return (void)association.Send(request.context, FakeArchive::Response(request.command, 0xa900));
        for (size_t k = 0; k < 2; ++k) StoreOn(association, Uid(k), data_[k]);
        if (fault == 0) return association.Abort(/*by_provider=*/false);
        SendCounts(association, request, 0xb000, 2, 2);
      });
  const std::pair<v1::ErrorReason, grpc::StatusCode> expected[] = {{v1::ARCHIVE_UNAVAILABLE, grpc::UNAVAILABLE},
                                                                   {v1::RETRIEVAL_INCOMPLETE, grpc::DATA_LOSS},
                                                                   {v1::ARCHIVE_REFUSED, grpc::FAILED_PRECONDITION}};
  for (const auto& [reason, code] : expected) {
    const v1::Operation operation = Import("get", absl::StrCat("fault-", fault.load()));
    EXPECT_EQ(operation.error().code(), code) << operation.DebugString();
    EXPECT_EQ(ReasonOf(operation.error()), reason) << operation.DebugString();
    EXPECT_TRUE(SpoolIsEmpty());
    ++fault;
  }
  EXPECT_TRUE(Volumes().empty());
}

TEST_F(FakeArchiveTest, AnImportSurvivesItsCaller) {
  std::atomic<bool> has_gone{false};
  const auto archive = StartFake(20, [&](Association& association, Connection&, const ReceivedCommand& request) {
    for (size_t k = 0; k < data_.size(); ++k) {
      if (k == 3) {
        EXPECT_TRUE(Eventually([&] { return has_gone.load(); }));
      }
      StoreOn(association, Uid(k), data_[k]);
    }
    SendCounts(association, request, dimse::kSuccess, 20, 0);
  });
  {
    Process caller({INTRAWARP_CLI, absl::StrCat("--server=", grpc_), "pacs", "import", "get", "--study=1.2.5",
                    "--series=1.2.5.1", "--request_id=mine"});
    ASSERT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_spool_instances") >= 2; }));
    caller.Signal(SIGKILL);
    caller.Wait();
    has_gone = true;
  }
  ExpectVolumeOf(folder_of_series_, Await("mine"));
}

TEST_F(FakeArchiveTest, TheCommandLineFindsAndImports) {
  const auto archive = StartFake(4, [&](Association& association, Connection&, const ReceivedCommand& request) {
    for (size_t k = 0; k < data_.size(); ++k) StoreOn(association, Uid(k), data_[k]);
    SendCounts(association, request, dimse::kSuccess, 4, 0);
  });
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {INTRAWARP_CLI, absl::StrCat("--server=", grpc_), "pacs"});
    return client::RunProcess(words);
  };
  EXPECT_EQ(run({"remotes"}).out, "get\tget\tplain\tpatients\nmove\tmove\tplain\tpatients\n");
  EXPECT_EQ(run({"echo", "get"}).out, "OK\n");
  const ProcessResult imported = run({"import", "get", "--study=1.2.5", "--series=1.2.5.1"});
  EXPECT_EQ(imported.exit_status, 0) << imported.err;
  EXPECT_EQ(imported.out, absl::StrCat(Volumes().at(0).name(), "\n"));
  const ProcessResult detached =
      run({"import", "get", "--study=1.2.5", "--series=1.2.5.1", "--detach", "--request_id=later"});
  EXPECT_EQ(detached.out, "operations/later\n");
  EXPECT_EQ(Await("later").state(), v1::OPERATION_STATE_DONE);
  const ProcessResult unknown = run({"import", "elsewhere", "--study=1.2.5", "--series=1.2.5.1"});
  EXPECT_EQ(unknown.exit_status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
}

}  // namespace
}  // namespace intrawarp::server
