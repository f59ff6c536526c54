// SPDX-License-Identifier: Apache-2.0
// An archive by C-FIND, C-GET and C-MOVE, in this process, that does what it should not.
#include "server/pacs/dimse_source.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/context/limits.h"
#include "server/pacs/storage_scp.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"
#include "tests/server/pacs/fake_archive.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using absl::StatusCode;
using dimse::Association;
using dimse::Connection;
using dimse::ReceivedCommand;
using io::Fails;
using io::Succeeds;
using testing::AnyOf;

constexpr char kStudy[] = "1.2.5";
constexpr char kSeries[] = "1.2.5.1";
constexpr char kCtStorage[] = "1.2.840.10008.5.1.4.1.1.2";
constexpr char kExplicitLittle[] = "1.2.840.10008.1.2.1";

class DimseSourceTest : public io::FileTest {
 protected:
  using Serve = std::function<void(dimse::Association&, dimse::Connection&, const dimse::ReceivedCommand&)>;

  ~DimseSourceTest() override {
    if (scp_ != nullptr) scp_->Stop(std::chrono::steady_clock::now());
    scp_.reset();
  }

  std::vector<std::string> SlicesOf(const std::string& series, int count) {
    const std::string folder = (folder_ / series).string();
    std::filesystem::create_directories(folder);
    io::DicomMaker maker(folder);
    io::SliceSpec spec;
    spec.series = series;
    std::vector<std::string> slices;
    for (int k = 0; k < count; ++k) {
      spec.z = 2 * k;
      const auto file = maker.Slice(spec);
      file->getDataset()->putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(series, ".", k + 1).c_str());
      file->getDataset()->putAndInsertString(DCM_StudyInstanceUID, kStudy);
      const std::string path = absl::StrCat(folder, "/", k);
      EXPECT_TRUE(file->getDataset()->saveFile(path.c_str(), EXS_LittleEndianExplicit).good());
      slices.push_back(Get(path));
      std::filesystem::remove(path);
    }
    return slices;
  }

  // An archive with one series; `retrieve` serves C-GET and C-MOVE, everything else is as it should be. The archive's
  // threads outlast the requests: a test holds the archive after all that `retrieve` refers to.
  [[nodiscard]] std::unique_ptr<FakeArchive> StartFake(int slices, Serve retrieve, dimse::Patience patience = {},
                                                       int64_t spool_bytes = 1 << 20) {
    data_ = SlicesOf(kSeries, slices);
    auto archive = std::make_unique<FakeArchive>([this, retrieve](Association& association, Connection& line) {
      for (;;) {
        const auto request = association.ReceiveCommand();
        if (!request.ok()) return;
        const uint16_t field = request->command.field;
        if (field == dimse::kCancelRequest) continue;
        if (request->command.has_data) FakeArchive::Identifier(association, *request);
        if (field == dimse::kEchoRequest) {
          (void)association.Send(request->context, dimse::ResponseTo(request->command, dimse::kSuccess));
        } else if (field != dimse::kFindRequest) {
          retrieve(association, line, *request);
        } else if (find_) {
          find_(association, line, *request);
        } else {
          ListImages(association, *request);
        }
      }
    });
    std::filesystem::create_directories(folder_ / "spool");
    SpoolOptions options;
    options.folder = (folder_ / "spool").string();
    options.max_bytes = spool_bytes;
    spool_ = *InstanceSpool::Open(options);
    peers_ = *DicomPeers::Parse("FAKE 127.0.0.1 -\n", /*has_identities=*/false);
    StorageScp::Options own;
    own.listen = "127.0.0.1:0";
    own.ae_title = "INTRAWARP";
    own.patience = patience;
    auto scp = StorageScp::Start(std::move(own), peers_, *spool_, moves_, metrics_, audit_);
    EXPECT_THAT(scp.status(), Succeeds());
    scp_ = std::move(scp).value();
    for (const char* kind : {"get", "move"}) {
      const auto remotes = ParseRemotes(absl::StrCat(kind, " ", kind, " FAKE 127.0.0.1:", archive->port(), " plain\n"));
      EXPECT_THAT(remotes.status(), Succeeds());
      sources_.push_back(
          std::make_unique<DimseSource>(DimseSource::Options{remotes->front(), "INTRAWARP", patience, nullptr}, moves_,
                                        metrics_, [this] { return scp_->newest(); }));
      limits_.push_back(remotes->front().limits);
    }
    return archive;
  }
  DimseSource& get() { return *sources_[0]; }
  DimseSource& move() { return *sources_[1]; }
  std::shared_ptr<SeriesIntake> Intake(size_t source = 0) {
    return *SeriesIntake::Open(*spool_, metrics_, limits_[source], {kStudy, kSeries});
  }
  // The outcome of an import, whose instances go with it.
  absl::Status Retrieve() {
    const std::shared_ptr<SeriesIntake> intake = Intake();
    const absl::Status status = get().Retrieve(*intake);
    received_ = intake->progress().received;
    return status;
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(Eventually([&] {
      return spool_->instances() == 0 && spool_->bytes() == 0 && spool_->series() == 0 &&
             std::filesystem::is_empty(folder_ / "spool");
    })) << spool_->instances()
        << " instances, " << spool_->bytes() << " bytes, " << spool_->series() << " series";
  }
  static std::chrono::steady_clock::time_point Soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(60);
  }

  std::string Uid(size_t k) const { return absl::StrCat(kSeries, ".", k + 1); }
  void ListImages(dimse::Association& association, const dimse::ReceivedCommand& request) const {
    for (size_t k = 0; k < data_.size(); ++k) {
      (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kPending, {}, true),
                             FakeArchive::Image(kSeries, Uid(k), kCtStorage).Encode());
    }
    (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kSuccess));
  }
  static dimse::Command StoreCommand(const std::string& uid) {
    dimse::Command command;
    command.field = dimse::kStoreRequest;
    command.message_id = 1;
    command.has_data = true;
    command.elements.SetUid(dimse::kAffectedSopClass, kCtStorage);
    command.elements.SetUid(dimse::kAffectedSopInstance, uid);
    command.elements.Set16(dimse::kPriority, 0);
    return command;
  }
  // A store request, and the status of its response; 0xffff: the association is over. `origin`: a move's number.
  static uint16_t StoreOn(dimse::Association& association, const std::string& uid, const std::string& data,
                          uint16_t origin = 0) {
    dimse::Command command = StoreCommand(uid);
    if (origin != 0) {
      command.elements.SetText(dimse::kMoveOriginatorAe, "INTRAWARP");
      command.elements.Set16(dimse::kMoveOriginatorId, origin);
    }
    if (!association.Send(association.ContextOf(kCtStorage), command, data).ok()) return 0xffff;
    const auto response = association.ReceiveCommand();
    return response.ok() ? response->command.status() : 0xffff;
  }
  void SendCounts(dimse::Association& association, const dimse::ReceivedCommand& request, uint16_t status,
                  uint16_t done, uint16_t failed) const {
    const auto left = static_cast<uint16_t>(data_.size() - done - failed);
    (void)association.Send(request.context, FakeArchive::Response(request.command, status, {left, done, failed, 0}));
  }
  // Connects as the archive does to the storage port.
  std::unique_ptr<dimse::Association> Sender() {
    const std::string& address = scp_->address();
    const int port = std::atoi(address.substr(address.rfind(':') + 1).c_str());
    auto connection = dimse::Connection::Connect("127.0.0.1", port, Soon());
    EXPECT_THAT(connection.status(), Succeeds());
    auto association = dimse::Association::Request(
        *std::move(connection), {}, {"INTRAWARP", "FAKE", {{1, kCtStorage, {kExplicitLittle}}}, {}, 16384});
    EXPECT_THAT(association.status(), Succeeds());
    return *std::move(association);
  }
  static void ReadToTheEnd(dimse::Connection& line) {
    char byte = 0;
    while (line.Read(&byte, 1, Soon()).ok()) {
    }
  }

  Serve find_;  // in the place of ListImages
  std::vector<std::string> data_;
  const Seams seams_ = SystemSeams();
  AuditTrail audit_{seams_};  // without a log
  Registry registry_;
  const PacsMetrics metrics_{registry_};
  RunningMoves moves_{static_cast<uint16_t>(seams_.random())};
  DicomPeers peers_;
  std::vector<DicomPeer> limits_;
  std::unique_ptr<InstanceSpool> spool_;
  std::unique_ptr<StorageScp> scp_;
  std::vector<std::unique_ptr<DimseSource>> sources_;
  int64_t received_ = 0;
};

TEST_F(DimseSourceTest, BringsASeriesByEitherWay) {
  const auto archive = StartFake(5, [&](Association& association, Connection&, const ReceivedCommand& request) {
    const bool is_get = request.command.field == dimse::kGetRequest;
    const auto sender = is_get ? nullptr : Sender();
    for (size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(StoreOn(is_get ? association : *sender, Uid(k), data_[k]), dimse::kSuccess);
      SendCounts(association, request, dimse::kPending, static_cast<uint16_t>(k + 1), 0);
    }
    if (sender != nullptr) sender->Release();
    SendCounts(association, request, dimse::kSuccess, 5, 0);
  });
  for (size_t source : {0, 1}) {
    const std::shared_ptr<SeriesIntake> intake = Intake(source);
    EXPECT_THAT(sources_[source]->Retrieve(*intake), Succeeds());
    EXPECT_EQ(intake->progress().received, 5);
    EXPECT_EQ(intake->progress().total, 5);
    EXPECT_EQ(intake->Take()->files.size(), 5);
  }
  EXPECT_THAT(get().Echo({}), Succeeds());
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, SubOperationsThatFailAreTold) {
  const auto archive = StartFake(5, [&](Association& association, Connection&, const ReceivedCommand& request) {
    for (size_t k = 0; k < 4; ++k) {
      EXPECT_EQ(StoreOn(association, Uid(k), data_[k]), dimse::kSuccess);
      SendCounts(association, request, dimse::kPending, static_cast<uint16_t>(k + 1), 0);
    }
    SendCounts(association, request, 0xb000, 4, 1);
  });
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kDataLoss, "1 of 5 instances"));
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, AnArchiveThatClaimsSuccessIsNotBelieved) {
  const auto archive = StartFake(5, [&](Association& association, Connection&, const ReceivedCommand& request) {
    for (size_t k = 0; k < 3; ++k) EXPECT_EQ(StoreOn(association, Uid(k), data_[k]), dimse::kSuccess);
    SendCounts(association, request, dimse::kSuccess, 5, 0);
  });
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kDataLoss, "2 of 5 instances"));
}

TEST_F(DimseSourceTest, AnotherSeriesThanAskedIsRefused) {
  const std::string other = SlicesOf("1.2.77", 1)[0];
  const auto archive = StartFake(3, [&](Association& association, Connection&, const ReceivedCommand& request) {
    EXPECT_EQ(StoreOn(association, Uid(0), other), dimse::kCannotUnderstand);
    for (size_t k = 1; k < 3; ++k) EXPECT_EQ(StoreOn(association, Uid(k), data_[k]), dimse::kSuccess);
    SendCounts(association, request, dimse::kSuccess, 3, 0);
  });
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kDataLoss, "1 of 3 instances"));
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, InstancesWithoutEndAreNotTaken) {
  std::atomic<int> sent{0};
  const auto archive = StartFake(2, [&](Association& association, Connection&, const ReceivedCommand&) {
    while (sent < 10000 && StoreOn(association, Uid(0), data_[0]) != 0xffff) ++sent;
  });
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kUnavailable, "more instances"));
  EXPECT_LT(sent, 200);
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, AnArchiveThatDiesMidwayIsTold) {
  const auto archive = StartFake(6, [&](Association& association, Connection& line, const ReceivedCommand&) {
    for (size_t k = 0; k < 3; ++k) StoreOn(association, Uid(k), data_[k]);
    // In the midst of the fourth.
    const std::string command = dimse::EncodeCommand(StoreCommand(Uid(3)));
    const uint8_t context = association.ContextOf(kCtStorage);
    (void)line.Write(absl::StrCat(dimse::EncodeFragmentHeader(context, true, true, command.size()), command,
                                  dimse::EncodeFragmentHeader(context, false, false, 100), data_[3].substr(0, 50)),
                     Soon());
    line.Abort();
  });
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kUnavailable, "broke off"));
  EXPECT_EQ(received_, 3);
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, OneThatSaysNothingMoreOrTricklesIsLeft) {
  std::atomic<bool> is_mute{true};
  const auto archive =
      StartFake(3,
                [&](Association& association, Connection& line, const ReceivedCommand&) {
                  StoreOn(association, Uid(0), data_[0]);
                  if (is_mute) return ReadToTheEnd(line);
                  const std::string command = dimse::EncodeCommand(StoreCommand(Uid(1)));
                  const uint8_t context = association.ContextOf(kCtStorage);
                  (void)line.Write(
                      absl::StrCat(dimse::EncodeFragmentHeader(context, true, true, command.size()), command), Soon());
                  // A byte now and then, in whole units.
                  const std::string unit = dimse::EncodeFragmentHeader(context, false, false, 1) + "x";
                  while (line.Write(unit, Soon()).ok()) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  }
                },
                {std::chrono::milliseconds(1000), std::chrono::milliseconds(1000)});
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kDeadlineExceeded, ""));
  is_mute = false;
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kDeadlineExceeded, ""));
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, HostileAnswersEndTheRequestAlone) {
  std::atomic<int> kind{0};
  constexpr int kKinds = 10;
  const auto archive = StartFake(2, [&](Association& association, Connection& line, const ReceivedCommand& request) {
    dimse::Command response = FakeArchive::Response(request.command, dimse::kPending, {1, 1, 0, 0});
    switch (kind) {
      case 0:
        (void)line.Write(std::string("\x04\x00\xff\xff\xff\xff", 6), Soon());
        return;
      case 1:  // the answer to another request
        response.message_id = static_cast<uint16_t>(response.message_id + 1);
        (void)association.Send(request.context, response);
        return;
      case 2:  // an answer to a question that was not asked
        response.field = dimse::kFindRequest | dimse::kResponse;
        (void)association.Send(request.context, response);
        return;
      case 3:  // a question instead of an answer
        response = request.command;
        response.has_data = false;
        (void)association.Send(request.context, response);
        return;
      case 4:
        (void)line.Write(dimse::EncodeFragmentHeader(request.context, true, true, 8) + "rubbish!", Soon());
        return;
      case 5:
        (void)line.Write(dimse::EncodeFragmentHeader(254, true, true, 8) + "rubbish!", Soon());
        return;
      case 6: {  // a store request without a data set
        dimse::Command store = StoreCommand(Uid(0));
        store.has_data = false;
        (void)association.Send(association.ContextOf(kCtStorage), store);
        return;
      }
      case 7:  // a list of failed instances without end
        response = FakeArchive::Response(request.command, 0xb000, {0, 1, 1, 0}, true);
        (void)association.Send(request.context, response, std::string(1 << 20, 'x'));
        return;
      case 8:
        association.Abort(/*by_provider=*/false);
        return;
      default:
        association.Release();
    }
  });
  for (; kind < kKinds; ++kind) {
    EXPECT_THAT(Retrieve().code(), AnyOf(StatusCode::kUnavailable, StatusCode::kResourceExhausted)) << kind;
  }
  ExpectNothingLeft();
  EXPECT_THAT(get().Echo({}), Succeeds());
}

TEST_F(DimseSourceTest, MatchesAreBoundedAndChecked) {
  std::atomic<int> kind{0}, sent{0};
  find_ = [&](dimse::Association& association, dimse::Connection& line, const dimse::ReceivedCommand& request) {
    dimse::Elements match;
    match.SetUid(0x0020000d, kStudy);
    match.SetUid(0x0020000e, kind == 1 ? "../../etc/passwd" : kSeries);
    match.SetText(0x00080060, "CT");
    match.SetText(0x0008103e, std::string("line\nbreak \xff \x1b[31m") + std::string(1000, 'x'));
    match.SetText(0x00201209, "-7");
    const dimse::Command pending = FakeArchive::Response(request.command, dimse::kPending, {}, true);
    switch (kind) {
      case 0:  // matches without end, and no ear for C-CANCEL
        while (association.Send(request.context, pending, match.Encode()).ok()) ++sent;
        return;
      case 1:
      case 2:
        (void)association.Send(request.context, pending, match.Encode());
        (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kSuccess));
        return;
      case 3:  // lengths beyond the identifier
        (void)association.Send(request.context, pending, std::string("\x20\x00\x0d\x00\xff\xff\xff\xff", 8));
        return;
      case 4:  // more than an identifier may have
        (void)association.Send(request.context, pending, std::string(1 << 20, 'x'));
        return;
      case 5:  // a match without an identifier
        (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kPending));
        return;
      case 6:
        (void)association.Send(request.context, FakeArchive::Response(request.command, 0xa700));
        return;
      default:
        line.Abort();
    }
  };
  const auto archive = StartFake(1, [](Association&, Connection&, const ReceivedCommand&) {});
  SeriesQuery query;
  query.study = kStudy;
  EXPECT_FALSE(get().Find(query, {}).ok());  // the archive does not end the request
  EXPECT_GT(sent, 500);
  kind = 1;
  auto found = get().Find(query, {});
  ASSERT_THAT(found.status(), Succeeds());
  EXPECT_EQ(found->series.size(), 0);
  // An import asks for the instances, and believes no match of another series.
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kUnavailable, "not an instance of the series"));
  kind = 2;
  found = get().Find(query, {});
  ASSERT_THAT(found.status(), Succeeds());
  ASSERT_EQ(found->series.size(), 1);
  EXPECT_EQ(found->series[0].instances, -1);
  EXPECT_EQ(found->series[0].series_description.size(), 256);
  EXPECT_THAT(found->series[0].series_description, testing::StartsWith("line break ?  [31mxxx"));
  for (const StatusCode code : {StatusCode::kUnavailable, StatusCode::kResourceExhausted, StatusCode::kUnavailable,
                                StatusCode::kFailedPrecondition, StatusCode::kUnavailable}) {
    ++kind;
    EXPECT_EQ(get().Find(query, {}).status().code(), code) << kind;
  }
  query.study = "1.2.6";
  kind = 2;
  found = get().Find(query, {});
  ASSERT_THAT(found.status(), Succeeds());
  EXPECT_EQ(found->series.size(), 0);  // it answers for another study
}

TEST_F(DimseSourceTest, AnArchiveThatIgnoresACancelIsLeft) {
  const auto archive = StartFake(3, [&](Association& association, Connection& line, const ReceivedCommand&) {
    StoreOn(association, Uid(0), data_[0]);
    ReadToTheEnd(line);
  });
  const std::shared_ptr<SeriesIntake> intake = Intake();
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([&] { return intake->progress().received == 1; }));
    intake->Cancel();
  });
  EXPECT_THAT(get().Retrieve(*intake), Fails(StatusCode::kCancelled, ""));
  canceller.join();
}

TEST_F(DimseSourceTest, ACancelDoesNotWaitForASlowInstance) {
  std::atomic<bool> begun{false};
  const auto archive = StartFake(
      3,
      [&](Association& association, Connection& line, const ReceivedCommand&) {
        const std::string command = dimse::EncodeCommand(StoreCommand(Uid(0)));
        const uint8_t context = association.ContextOf(kCtStorage);
        (void)line.Write(absl::StrCat(dimse::EncodeFragmentHeader(context, true, true, command.size()), command),
                         Soon());
        // Fast enough for the bounds, without end.
        const std::string unit = dimse::EncodeFragmentHeader(context, false, false, 8192) + std::string(8192, 'x');
        while (line.Write(unit, Soon()).ok()) {
          begun = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
      },
      {}, int64_t{1} << 30);
  const std::shared_ptr<SeriesIntake> intake = Intake();
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([&] { return begun.load(); }));
    intake->Cancel();
  });
  EXPECT_THAT(get().Retrieve(*intake), Fails(StatusCode::kCancelled, ""));
  canceller.join();
  intake->Take();
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, TheRestOfACancelledMoveIsNobodys) {
  std::atomic<bool> names_move{true};
  std::atomic<int> refused{0}, taken{0};
  const auto archive = StartFake(8, [&](Association&, Connection& line, const ReceivedCommand& request) {
    const auto sender = Sender();
    const uint16_t origin = names_move ? request.command.message_id : uint16_t{0};
    for (size_t k = 0; k < 4; ++k) taken += StoreOn(*sender, Uid(k), data_[k], origin) == dimse::kSuccess;
    // It hears the cancel, and sends the rest all the same.
    ReadToTheEnd(line);
    for (size_t k = 4; k < 8; ++k) refused += StoreOn(*sender, Uid(k), data_[k], origin) == dimse::kNotAuthorized;
    sender->Release();
  });
  for (const int round : {1, 2}) {
    names_move = round == 1;
    const std::shared_ptr<SeriesIntake> intake = Intake(1);
    std::thread canceller([&] {
      EXPECT_TRUE(Eventually([&] { return taken == 4 * round; }));
      intake->Cancel();
    });
    EXPECT_THAT(move().Retrieve(*intake), Fails(StatusCode::kCancelled, ""));
    canceller.join();
    EXPECT_EQ(intake->progress().received, 4);
    EXPECT_TRUE(Eventually([&] { return refused == 4 * round; })) << round << " " << refused;
  }
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, AFullSpoolEndsTheRetrieval) {
  const auto archive = StartFake(
      6,
      [&](Association& association, Connection&, const ReceivedCommand& request) {
        uint16_t done = 0;
        while (done < data_.size() && StoreOn(association, Uid(done), data_[done]) == dimse::kSuccess) ++done;
        SendCounts(association, request, 0xb000, done, static_cast<uint16_t>(data_.size() - done));
      },
      {}, /*spool_bytes=*/2048);
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kResourceExhausted, "spool is full"));
  ExpectNothingLeft();
}

TEST_F(DimseSourceTest, WhatHoldsNoImagesIsRefusedBeforehand) {
  std::atomic<int> asked{0};
  find_ = [&](dimse::Association& association, dimse::Connection&, const dimse::ReceivedCommand& request) {
    const std::string plan = "1.2.840.10008.5.1.4.1.1.481.5";
    (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kPending, {}, true),
                           FakeArchive::Image(kSeries, Uid(0), plan).Encode());
    (void)association.Send(request.context, FakeArchive::Response(request.command, dimse::kSuccess));
  };
  const auto archive = StartFake(1, [&](Association&, Connection&, const ReceivedCommand&) { ++asked; });
  EXPECT_THAT(Retrieve(), Fails(StatusCode::kUnimplemented, "not images"));
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace intrawarp::server
