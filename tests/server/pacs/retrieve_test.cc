// SPDX-License-Identifier: Apache-2.0
// Series imported from archives: Orthanc and dcmqrscp as processes, Orthanc behind nginx by DICOMweb, and an archive of
// our own that misbehaves.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "google/rpc/error_details.pb.h"
#include "intrawarp/v1/error.pb.h"
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "io/dicom/dicom.h"
#include "io/grid_files.h"
#include "server/status/errors.h"
#include "tests/io/dicomweb/orthanc_archive.h"
#include "tests/server/identity/certificates.h"
#include "tests/server/pacs/fake_archive.h"
#include "tests/server/pacs/pacs_fixture.h"

namespace intrawarp::server {
namespace {

// The reason in an operation's error.
v1::ErrorReason ReasonOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) detail.UnpackTo(&info);
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  EXPECT_TRUE(v1::ErrorReason_Parse(info.reason(), &reason)) << info.reason();
  return reason;
}
v1::ErrorReason ReasonOf(const grpc::Status& status) {
  google::rpc::Status proto;
  EXPECT_TRUE(proto.ParseFromString(status.error_details()));
  return ReasonOf(proto);
}

using client::Process;
using client::ProcessResult;
using dimse::Association;
using dimse::Connection;
using dimse::ReceivedCommand;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kStudy[] = "1.2.5";
constexpr char kSeries[] = "1.2.5.1";
constexpr char kDone[] = "intrawarp_dicom_imports_total{outcome=\"done\"}";

class RetrieveTest : public PacsTest {
 protected:
  // A server that knows the archive as "get" and "move".
  void StartWith(int port, const std::string& ae = "ARCHIVE", std::vector<std::string> flags = {},
                 const std::string& options = "") {
    Put("remotes", absl::StrCat("get get ", ae, " 127.0.0.1:", port, " plain ", options, "\nmove move ", ae,
                                " 127.0.0.1:", port, " plain ", options, "\n"));
    flags.push_back(absl::StrCat("--dicom_remotes=", Path("remotes")));
    StartServer(flags, absl::StrCat(ae, " 127.0.0.1 -\nSCU 127.0.0.1 -\n"));
    const auto channel = grpc::CreateChannel(grpc_, grpc::InsecureChannelCredentials());
    pacs_ = v1::PacsService::NewStub(channel);
    operations_ = v1::OperationService::NewStub(channel);
  }

  std::string WholeSeries(const std::string& name, const std::string& uid, int count, int side = 12) {
    const std::string folder = Series(name, uid, count, side);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      DcmFileFormat file;
      EXPECT_TRUE(file.loadFile(entry.path().c_str()).good());
      DcmDataset& data = *file.getDataset();
      data.putAndInsertString(DCM_PatientID, "PID-8675309");
      data.putAndInsertString(DCM_PatientName, "Zaunkoenig^Walpurga");
      data.putAndInsertString(DCM_StudyInstanceUID, kStudy);
      data.putAndInsertString(DCM_StudyDate, "20190728");
      data.putAndInsertString(DCM_StudyDescription, "Leberresektion");
      data.putAndInsertString(DCM_SeriesDescription, "Duennschicht");
      EXPECT_TRUE(file.saveFile(entry.path().c_str()).good());
    }
    return folder;
  }
  void Fill(const std::string& ae, const std::string& folder, const std::string& syntax = "-xe") {
    ASSERT_TRUE(Eventually([&] {
      return client::RunProcess(
                 {"/usr/bin/echoscu", "-aet", "MOVER", "-aec", ae, "127.0.0.1", std::to_string(archive_port_)})
                 .exit_status == 0;
    }));
    const ProcessResult stored = client::RunProcess({"/usr/bin/storescu", syntax, "-aet", "MOVER", "-aec", ae, "+sd",
                                                     "127.0.0.1", std::to_string(archive_port_), folder});
    ASSERT_EQ(stored.exit_status, 0) << stored.err;
  }
  std::unique_ptr<Process> StartDcmqrscp(bool knows_us = true) {
    Put("dcmqrscp.cfg",
        absl::StrCat(
            "NetworkTCPPort = ", archive_port_, "\nMaxPDUSize = 16384\nMaxAssociations = 8\nHostTable BEGIN\n",
            knows_us ? absl::StrCat("iw = (INTRAWARP, 127.0.0.1, ", port_, ")\n") : "",
            "mover = (MOVER, 127.0.0.1, 104)\nHostTable END\nVendorTable BEGIN\nVendorTable END\nAETable BEGIN\n",
            "ARCHIVE ", MakeFolder("archive"), " RW (10, 1024mb) ANY\nAETable END\n"));
    return std::make_unique<Process>(std::vector<std::string>{"/usr/bin/dcmqrscp", "-c", Path("dcmqrscp.cfg")});
  }
  // With TLS where it has a certificate; its key, and the authority of its clients, are files, too.
  std::unique_ptr<Process> StartOrthanc(const std::string& certificate = "", const std::string& key = "",
                                        const std::string& authority = "") {
    const std::string tls = certificate.empty()
                                ? ""
                                : absl::StrCat("\"DicomTlsEnabled\": true, \"DicomTlsCertificate\": \"", certificate,
                                               "\", \"DicomTlsPrivateKey\": \"", key,
                                               "\", \"DicomTlsTrustedCertificates\": \"", authority, "\", ");
    Put("orthanc.json",
        absl::StrCat("{", tls, "\"Name\": \"test\", \"DicomAet\": \"ORTHANC\", \"DicomPort\": ", archive_port_,
                     ", \"HttpServerEnabled\": false, \"StorageDirectory\": \"", MakeFolder("archive"),
                     "\", \"DicomCheckCalledAet\": true, \"DicomAlwaysAllowStore\": true, ",
                     "\"DicomAlwaysAllowEcho\": true, \"Plugins\": [], \"DicomModalities\": {\"iw\": [\"INTRAWARP\", ",
                     "\"127.0.0.1\", ", port_, "], \"mover\": [\"MOVER\", \"127.0.0.1\", 104]}}"));
    return std::make_unique<Process>(std::vector<std::string>{"/usr/sbin/Orthanc", Path("orthanc.json")});
  }

  grpc::Status EchoArchive(const std::string& remote) const {
    grpc::ClientContext call;
    v1::EchoRemoteRequest request;
    request.set_remote(remote);
    v1::EchoRemoteResponse response;
    return pacs_->EchoRemote(&call, request, &response);
  }
  grpc::Status Find(const v1::FindSeriesRequest& request, v1::FindSeriesResponse* response) const {
    grpc::ClientContext call;
    return pacs_->FindSeries(&call, request, response);
  }
  static v1::FindSeriesRequest PatientQuery(const std::string& remote) {
    v1::FindSeriesRequest request;
    request.set_remote(remote);
    request.set_patient_id("PID-8675309");
    return request;
  }
  grpc::Status Begin(const std::string& remote, const std::string& id, v1::Operation* operation,
                     const std::string& series = kSeries) const {
    grpc::ClientContext call;
    v1::ImportSeriesRequest request;
    request.set_remote(remote);
    request.set_study_uid(kStudy);
    request.set_series_uid(series);
    request.set_request_id(id);
    v1::ImportSeriesResponse response;
    const grpc::Status status = pacs_->ImportSeries(&call, request, &response);
    *operation = response.operation();
    return status;
  }
  v1::Operation Await(const std::string& id) const {
    grpc::ClientContext call;
    v1::WaitOperationRequest request;
    request.set_name(absl::StrCat("operations/", id));
    request.mutable_timeout()->set_seconds(60);
    v1::WaitOperationResponse response;
    const grpc::Status status = operations_->WaitOperation(&call, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.operation();
  }
  v1::Operation Import(const std::string& remote, const std::string& id, const std::string& series = kSeries) const {
    v1::Operation operation;
    const grpc::Status status = Begin(remote, id, &operation, series);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Await(id);
  }
  void Cancel(const std::string& id) const {
    grpc::ClientContext call;
    v1::CancelOperationRequest request;
    request.set_name(absl::StrCat("operations/", id));
    v1::CancelOperationResponse response;
    EXPECT_TRUE(operations_->CancelOperation(&call, request, &response).ok());
  }
  // The volume is the one that the reader makes of the folder.
  void ExpectVolumeOf(const std::string& folder, const v1::Operation& operation) {
    ASSERT_EQ(operation.state(), v1::OPERATION_STATE_DONE) << operation.DebugString() << StopServer();
    const auto listing = io::ListDicom(folder);
    ASSERT_THAT(listing, io::Succeeds());
    const std::string name = absl::StrCat("volumes/dicom-ct-", listing->volumes[0].provenance.series.substr(0, 16));
    EXPECT_THAT(operation.results(), ElementsAre(name));
    const auto read = io::ReadDicom(folder);
    ASSERT_THAT(read, io::Succeeds());
    const std::vector<float> values = io::ToFloat(read->volume);
    const auto volumes = Volumes();
    const auto volume = std::find_if(volumes.begin(), volumes.end(), [&](const auto& v) { return v.name() == name; });
    ASSERT_NE(volume, volumes.end());
    const Geometry& geometry = read->volume.geometry;
    EXPECT_THAT(volume->geometry().size(), ElementsAre(geometry.size.x, geometry.size.y, geometry.size.z));
    const io::DicomProvenance& from = listing->volumes[0].provenance;
    EXPECT_EQ(volume->provenance().source(), v1::PROVENANCE_SOURCE_RETRIEVED);
    EXPECT_EQ(volume->provenance().modality(), from.modality);
    EXPECT_EQ(absl::BytesToHexString(volume->provenance().series_hash()), from.series);
    EXPECT_EQ(absl::BytesToHexString(volume->provenance().frame_of_reference_hash()), from.frame_of_reference);
    EXPECT_EQ(volume->minimum(), *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(volume->maximum(), *std::max_element(values.begin(), values.end()));
    EXPECT_TRUE(SpoolIsEmpty());
    // An import leaves nothing; series that were sent leave their files.
    if (Metric("intrawarp_dicom_spool_made_instances") == 0) {
      EXPECT_TRUE(std::filesystem::is_empty(folder_ / "spool"));
    }
  }
  // Everything that a user does with an archive, by either way of retrieval.
  void UseArchive(const std::string& ae) {
    const std::string folder = WholeSeries("ct", kSeries, 7);
    Fill(ae, folder);
    Fill(ae, WholeSeries("other", "1.2.5.2", 3));
    for (const char* remote : {"get", "move"}) {
      EXPECT_TRUE(EchoArchive(remote).ok()) << EchoArchive(remote).error_message();
      v1::FindSeriesResponse found;
      const grpc::Status status = Find(PatientQuery(remote), &found);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_EQ(found.series_size(), 2) << found.DebugString();
      std::set<std::string> uids;
      for (const v1::SeriesMatch& match : found.series()) {
        uids.insert(match.series_uid());
        EXPECT_EQ(match.study_uid(), kStudy);
        EXPECT_EQ(match.modality(), "CT");
        EXPECT_EQ(match.study_date(), "20190728");
        EXPECT_EQ(match.study_description(), "Leberresektion");
        // dcmqrscp keeps none.
        EXPECT_EQ(match.series_description(), ae == "ORTHANC" ? "Duennschicht" : "");
        EXPECT_EQ(match.patient_id() + match.patient_name(), "");
      }
      EXPECT_THAT(uids, ElementsAre(kSeries, "1.2.5.2"));
      const v1::Operation operation = Import(remote, absl::StrCat("import-", remote));
      ExpectVolumeOf(folder, operation);
      EXPECT_EQ(operation.progress().done(), 7);
      EXPECT_EQ(operation.progress().total(), 7);
    }
    EXPECT_EQ(Metric(kDone), 2);
    EXPECT_EQ(Volumes().size(), 1);  // the same images are the same volume
    v1::FindSeriesRequest named = PatientQuery("get");
    named.set_with_patient(true);
    v1::FindSeriesResponse found;
    ASSERT_TRUE(Find(named, &found).ok());
    EXPECT_EQ(found.series(0).patient_name(), "Zaunkoenig^Walpurga");
    // Another client of the archive sees the same.
    const ProcessResult scu =
        client::RunProcess({"/usr/bin/findscu", "-S", "-aet", "MOVER", "-aec", ae, "-k", "0008,0052=SERIES", "-k",
                            "0020,000d=1.2.5", "-k", "0020,000e", "127.0.0.1", std::to_string(archive_port_)});
    EXPECT_THAT(scu.out + scu.err, HasSubstr(kSeries));
    named.set_patient_id("NOBODY-HAS-THIS");
    found.Clear();
    ASSERT_TRUE(Find(named, &found).ok());
    EXPECT_EQ(found.series_size(), 0);
    EXPECT_EQ(Import("get", "absent", "1.2.5.999").error().code(), grpc::NOT_FOUND);
  }

  const int archive_port_ = dicomweb::FreePort();
  std::unique_ptr<v1::PacsService::Stub> pacs_;
  std::unique_ptr<v1::OperationService::Stub> operations_;
};

TEST_F(RetrieveTest, FromDcmqrscp) {
  StartWith(archive_port_);
  const auto archive = StartDcmqrscp();
  UseArchive("ARCHIVE");
}

TEST_F(RetrieveTest, FromOrthanc) {
  if (access("/usr/sbin/Orthanc", X_OK) != 0) GTEST_SKIP() << "Orthanc is not installed";
  StartWith(archive_port_, "ORTHANC");
  const auto archive = StartOrthanc();
  UseArchive("ORTHANC");
  archive->Signal(SIGTERM);
  archive->Wait();
}

TEST_F(RetrieveTest, TlsVerifiesTheArchive) {
  if (access("/usr/sbin/Orthanc", X_OK) != 0) GTEST_SKIP() << "Orthanc is not installed";
  const TestCertificate authority = MakeAuthority("hospital"), stranger = MakeAuthority("stranger");
  const auto files = [&](const std::string& name, const TestCertificate& certificate) {
    return std::pair(Put(name + ".key", certificate.key), Put(name + ".pem", certificate.certificate));
  };
  const auto [key, certificate] = files("server", MakeServerCertificate(authority));
  Put("ca.pem", authority.certificate);
  Put("remotes", absl::StrCat("archive get ORTHANC 127.0.0.1:", archive_port_, " tls\n"));
  StartServer({absl::StrCat("--dicom_remotes=", Path("remotes")), absl::StrCat("--dicom_tls_cert=", certificate),
               absl::StrCat("--dicom_tls_key=", key), absl::StrCat("--dicom_tls_ca=", Path("ca.pem"))});
  pacs_ = v1::PacsService::NewStub(grpc::CreateChannel(grpc_, grpc::InsecureChannelCredentials()));
  for (const bool is_known : {false, true}) {
    const auto [other_key, other] = files("archive", MakeServerCertificate(is_known ? authority : stranger));
    const auto archive = StartOrthanc(other, other_key, Path("ca.pem"));
    ASSERT_TRUE(Eventually([&] { return EchoArchive("archive").error_code() != grpc::UNAVAILABLE; }));
    EXPECT_EQ(EchoArchive("archive").error_code(), is_known ? grpc::OK : grpc::FAILED_PRECONDITION);
    archive->Signal(SIGTERM);
    archive->Wait();
  }
}

TEST_F(RetrieveTest, CompressedImagesComeAsTheArchiveHasThem) {
  if (access("/usr/sbin/Orthanc", X_OK) != 0) GTEST_SKIP() << "Orthanc is not installed";
  StartWith(archive_port_, "ORTHANC");
  const auto archive = StartOrthanc();
  int number = 10;
  for (const auto& [option, syntax] : std::vector<std::pair<std::string, E_TransferSyntax>>{
           {"-xs", EXS_JPEGProcess14SV1}, {"-xr", EXS_RLELossless}, {"-xb", EXS_BigEndianExplicit}}) {
    const std::string uid = absl::StrCat("1.2.5.", ++number), name = absl::StrCat("s", number);
    const std::string folder = WholeSeries(name, uid, 4);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      DcmFileFormat file;
      ASSERT_TRUE(file.loadFile(entry.path().c_str()).good());
      maker_.Save(file, absl::StrCat("../", name, "/", entry.path().filename().string()), syntax);
    }
    Fill("ORTHANC", folder, option);
    ExpectVolumeOf(folder, Import("get", name, uid));
    ExpectVolumeOf(folder, Import("move", name + "m", uid));
  }
  archive->Signal(SIGTERM);
  archive->Wait();
}

TEST_F(RetrieveTest, WrongNamesAreRefusedByTheirField) {
  StartWith(archive_port_);
  v1::FindSeriesResponse found;
  v1::Operation operation;
  EXPECT_EQ(EchoArchive("nowhere").error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(EchoArchive("127.0.0.1:104").error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(EchoArchive("get").error_code(), grpc::UNAVAILABLE);  // nobody listens
  EXPECT_EQ(Import("get", "dead").error().code(), grpc::UNAVAILABLE);
  v1::FindSeriesRequest all;
  all.set_remote("get");
  EXPECT_EQ(Find(all, &found).error_code(), grpc::INVALID_ARGUMENT);
  for (const char* pattern : {"*", "?*", "a\\b", "a\nb"}) {
    all.set_patient_id(pattern);
    EXPECT_EQ(Find(all, &found).error_code(), grpc::INVALID_ARGUMENT) << pattern;
  }
  all.set_patient_id("X");
  all.set_date_from("2019-07-28");
  EXPECT_EQ(Find(all, &found).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Begin("get", "bad", &operation, "1.2/../3").error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Begin("get", "", &operation).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Begin("nowhere", "id", &operation).error_code(), grpc::NOT_FOUND);
}

TEST_F(RetrieveTest, PatientsAreShownToWhomTheAdministratorAllows) {
  StartWith(archive_port_, "ARCHIVE", {}, "patients=none");
  v1::FindSeriesRequest request = PatientQuery("get");
  request.set_with_patient(true);
  v1::FindSeriesResponse found;
  EXPECT_EQ(Find(request, &found).error_code(), grpc::PERMISSION_DENIED);
}

TEST_F(RetrieveTest, AnArchiveThatDoesNotKnowUsSaysSo) {
  StartWith(archive_port_);
  const auto archive = StartDcmqrscp(/*knows_us=*/false);
  Fill("ARCHIVE", WholeSeries("ct", kSeries, 3));
  const v1::Operation refused = Import("move", "refused");
  EXPECT_EQ(refused.error().code(), grpc::FAILED_PRECONDITION) << refused.DebugString();
  EXPECT_THAT(refused.error().message(), HasSubstr("C-MOVE"));
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(RetrieveTest, AWrongAeTitleIsRefused) {
  if (access("/usr/sbin/Orthanc", X_OK) != 0) GTEST_SKIP() << "Orthanc is not installed";
  StartWith(archive_port_, "ANOTHER");
  const auto archive = StartOrthanc();
  ASSERT_TRUE(Eventually([&] { return EchoArchive("get").error_code() == grpc::FAILED_PRECONDITION; }));
  EXPECT_THAT(EchoArchive("get").error_message(), HasSubstr("rejected"));
  EXPECT_EQ(ReasonOf(EchoArchive("get")), v1::ARCHIVE_IDENTITY_REFUSED);
  EXPECT_EQ(Import("get", "wrong").error().code(), grpc::FAILED_PRECONDITION);
  archive->Signal(SIGTERM);
  archive->Wait();
}

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
  server_->Signal(SIGKILL);
  server_->Wait();
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

TEST_F(RetrieveTest, NothingOfThePatientLeavesTheServer) {
  MakeFolder("audit");
  StartWith(archive_port_, "ARCHIVE", {absl::StrCat("--audit_dir=", Path("audit"))});
  const auto archive = StartDcmqrscp();
  Fill("ARCHIVE", WholeSeries("ct", kSeries, 4));
  const std::string secret = "1.2.826.0.55667788";
  Fill("ARCHIVE", WholeSeries("gap", secret, 4));
  std::string everything;
  for (const char* remote : {"get", "move"}) {
    v1::FindSeriesRequest request = PatientQuery(remote);
    request.set_patient_name("Zaunkoenig*");
    request.set_accession_number("ACC-90210*");
    v1::FindSeriesResponse found;
    (void)Find(request, &found);
    request.clear_accession_number();
    request.set_with_patient(true);
    EXPECT_TRUE(Find(request, &found).ok());
    everything += Import(remote, absl::StrCat("a-", remote)).DebugString();
    everything += Import(remote, absl::StrCat("b-", remote), secret).DebugString();
    everything += Import(remote, absl::StrCat("c-", remote), "1.2.826.0.99887766").DebugString();
  }
  everything += Metrics() + StopServer();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "audit")) everything += Get(entry.path());
  EXPECT_TRUE(absl::StrContains(everything, "PacsService/FindSeries"));
  EXPECT_TRUE(absl::StrContains(everything, "dicom.Import"));
  everything = absl::AsciiStrToLower(everything);
  for (const char* word : {"zaunkoenig", "walpurga", "8675309", "90210", "20190728", "leberresektion", "duennschicht",
                           "55667788", "99887766"}) {
    EXPECT_FALSE(absl::StrContains(everything, word)) << word;
  }
}

TEST_F(RetrieveTest, ArchivesAreCheckedAtTheStart) {
  const auto start = [&](const std::string& remotes, std::vector<std::string> flags = {}) {
    Put("remotes", remotes);
    Put("peers", "OTHER 127.0.0.1 -\n");
    flags.insert(flags.begin(), {INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu",
                                 "--check_config", absl::StrCat("--dicom_remotes=", Path("remotes"))});
    return client::RunProcess(flags);
  };
  EXPECT_EQ(start("pacs get ARCHIVE 192.0.2.1:104 plain\n").exit_status, 0);
  EXPECT_THAT(start("").err, HasSubstr("--dicom_remotes: names no archive"));
  EXPECT_THAT(start("\npacs get ARCHIVE 192.0.2.1:104\n").err, HasSubstr("--dicom_remotes: line 2"));
  EXPECT_THAT(start("pacs move ARCHIVE 192.0.2.1:104 plain\n").err, HasSubstr("move needs --dicom_listen"));
  EXPECT_THAT(start("pacs move ARCHIVE 192.0.2.1:104 plain\n",
                    {"--dicom_listen=127.0.0.1:0", absl::StrCat("--dicom_peers=", Path("peers"))})
                  .err,
              HasSubstr("move needs a line of its AE title in --dicom_peers"));
  EXPECT_THAT(start("pacs get ARCHIVE 192.0.2.1:104 tls\n").err, HasSubstr("tls needs --dicom_tls_cert"));
  // TLS uses the same files as DIMSE.
  EXPECT_EQ(start("pacs dicomweb https://192.0.2.1/dicom-web\n").exit_status, 0);
  const std::string token = absl::StrCat("pacs dicomweb https://192.0.2.1/dicom-web token_file=", Path("token"), "\n");
  EXPECT_THAT(start(token).err, HasSubstr("--dicom_remotes: archive 1: token_file: "));
  Put("token", "two words");
  EXPECT_THAT(start(token).err, HasSubstr("token_file: must hold a bearer token"));
  Put("token", "one");
  EXPECT_EQ(start(token).exit_status, 0);
}

// The archive "web" is Orthanc by DICOMweb, behind TLS and a token; "wrong", "stranger" and "few" are the same one with
// another token, with another authority and with a limit of three instances.
class WebRetrieveTest : public RetrieveTest {
 protected:
  static constexpr char kOtherToken[] = "token-of-another";

  void SetUp() override {
    if (!dicomweb::OrthancArchive::IsInstalled()) {
      GTEST_SKIP() << "Orthanc, its DICOMweb plugin and nginx are not all installed";
    }
    web_ = std::make_unique<dicomweb::OrthancArchive>(MakeFolder("orthanc"));
    ASSERT_THAT(web_->Start(), io::Succeeds());
    const dicomweb::HttpOptions http = web_->Secure();
    const auto line = [&](const std::string& name, const std::string& authorities, const std::string& token) {
      return absl::StrCat(name, " dicomweb ", http.base_url, " ca=", authorities, " token_file=", token, " ");
    };
    Put("remotes", absl::StrCat(line("web", http.authorities_file, http.token_file), "\n",
                                line("wrong", http.authorities_file, Put("token", kOtherToken)), "patients=none\n",
                                line("stranger", Path("orthanc/other_ca.pem"), http.token_file), "\n",
                                line("few", http.authorities_file, http.token_file), "instances=3\n"));
    MakeFolder("audit");
    StartServer({absl::StrCat("--dicom_remotes=", Path("remotes")), absl::StrCat("--audit_dir=", Path("audit"))});
    const auto channel = grpc::CreateChannel(grpc_, grpc::InsecureChannelCredentials());
    pacs_ = v1::PacsService::NewStub(channel);
    operations_ = v1::OperationService::NewStub(channel);
  }
  void TearDown() override {
    if (web_ == nullptr) return;
    EXPECT_EQ(web_->Stop(), 0);
  }

  ProcessResult RunCli(std::vector<std::string> words) const {
    words.insert(words.begin(), {INTRAWARP_CLI, absl::StrCat("--server=", grpc_)});
    return client::RunProcess(words);
  }
  // By STOW-RS.
  void FillWeb(const std::string& folder) const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
    const auto archive = dicomweb::Archive::Create(web_->Secure());
    ASSERT_THAT(archive, io::Succeeds());
    dicomweb::StoredInstances stored;
    ASSERT_THAT((*archive)->Store(paths, {}, stored), io::Succeeds());
    ASSERT_THAT(dicomweb::StoreStatus(stored, static_cast<int64_t>(paths.size())), io::Succeeds());
  }
  // The server's only volume as a file, geometry and voxels; the server has none afterwards.
  std::string TakeVolume() const {
    const auto volumes = Volumes();
    EXPECT_EQ(volumes.size(), 1);
    if (volumes.empty()) return "";
    const ProcessResult got = RunCli({"volume", "get", volumes[0].name(), absl::StrCat("--out=", Path("got.nrrd"))});
    EXPECT_EQ(got.exit_status, 0) << got.err;
    EXPECT_EQ(RunCli({"volume", "delete", volumes[0].name()}).exit_status, 0);
    return Get(Path("got.nrrd"));
  }
  std::string DirectVolume(const std::string& folder) const {
    const auto read = io::ReadDicom(folder);
    EXPECT_THAT(read, io::Succeeds());
    EXPECT_THAT(io::WriteVolumeFile(Path("direct.nrrd"), read->volume), io::Succeeds());
    return Get(Path("direct.nrrd"));
  }

  std::unique_ptr<dicomweb::OrthancArchive> web_;
};

TEST_F(WebRetrieveTest, ASeriesBecomesTheVolumeThatCStoreMakes) {
  const std::string compressed = "1.2.5.2";
  std::map<std::string, std::string> folders = {{kSeries, WholeSeries("ct", kSeries, 7)},
                                                {compressed, WholeSeries("rle", compressed, 5)}};
  for (const auto& entry : std::filesystem::directory_iterator(folders[compressed])) {
    DcmFileFormat file;
    ASSERT_TRUE(file.loadFile(entry.path().c_str()).good());
    maker_.Save(file, absl::StrCat("../rle/", entry.path().filename().string()), EXS_RLELossless);
  }
  for (const auto& [uid, folder] : folders) FillWeb(folder);
  EXPECT_EQ(RunCli({"pacs", "remotes"}).out,
            "web\tdicomweb\ttls\tpatients\nwrong\tdicomweb\ttls\tno patients\n"
            "stranger\tdicomweb\ttls\tpatients\nfew\tdicomweb\ttls\tpatients\n");
  EXPECT_TRUE(EchoArchive("web").ok()) << EchoArchive("web").error_message();

  v1::FindSeriesRequest query = PatientQuery("web");
  v1::FindSeriesResponse found;
  ASSERT_TRUE(Find(query, &found).ok());
  std::map<std::string, int64_t> instances;
  for (const v1::SeriesMatch& match : found.series()) {
    instances[match.series_uid()] = match.instances();
    EXPECT_EQ(match.study_uid(), kStudy);
    EXPECT_EQ(match.modality(), "CT");
    EXPECT_EQ(match.study_date(), "20190728");
    EXPECT_EQ(match.study_description(), "Leberresektion");
    EXPECT_EQ(match.series_description(), "Duennschicht");
    EXPECT_EQ(match.patient_id() + match.patient_name(), "");
  }
  EXPECT_EQ(instances, (std::map<std::string, int64_t>{{kSeries, 7}, {compressed, 5}})) << found.DebugString();
  query.set_with_patient(true);
  ASSERT_TRUE(Find(query, &found).ok());
  EXPECT_EQ(found.series(0).patient_name(), "Zaunkoenig^Walpurga");

  for (const auto& [uid, folder] : folders) {
    SCOPED_TRACE(uid);
    const v1::Operation operation = Import("web", absl::StrCat("web-", uid), uid);
    ExpectVolumeOf(folder, operation);
    EXPECT_EQ(operation.progress().done(), instances[uid]);
    EXPECT_EQ(operation.progress().total(), instances[uid]);
    const std::string imported = TakeVolume();
    EXPECT_TRUE(imported == DirectVolume(folder));
    ASSERT_EQ(Store(folder, "SCU", {uid == compressed ? "-xr" : "-xe"}).exit_status, 0);
    ASSERT_TRUE(HasVolumes(1));
    EXPECT_TRUE(imported == TakeVolume());
  }
  EXPECT_EQ(Metric(kDone), 2);
}

TEST_F(WebRetrieveTest, AFailureSaysNothingOfTheArchiveOrThePatient) {
  const std::string uid = "1.2.826.0.55667788";
  const std::string folder = WholeSeries("ct", uid, 4);
  FillWeb(folder);
  const std::vector<std::string> secrets = {"zaunkoenig",
                                            "walpurga",
                                            "8675309",
                                            "20190728",
                                            "leberresektion",
                                            "duennschicht",
                                            "55667788",
                                            "99887766",
                                            "https",
                                            "dicom-web",
                                            kOtherToken,
                                            dicomweb::kToken,
                                            absl::StrCat(":", web_->proxy_port())};
  std::string everything;
  const auto expect_failure = [&](const std::string& remote, const std::string& series, grpc::StatusCode code,
                                  v1::ErrorReason reason, const std::string& why) {
    const v1::Operation operation = Import(remote, absl::StrCat("import-", remote, everything.size()), series);
    EXPECT_EQ(operation.state(), v1::OPERATION_STATE_FAILED);
    EXPECT_EQ(operation.error().code(), code) << operation.DebugString();
    EXPECT_EQ(ReasonOf(operation.error()), reason);
    EXPECT_THAT(operation.error().message(), HasSubstr(why));
    absl::StrAppend(&everything, operation.DebugString());
    EXPECT_TRUE(SpoolIsEmpty());
  };
  expect_failure("wrong", uid, grpc::FAILED_PRECONDITION, v1::ARCHIVE_IDENTITY_REFUSED, "HTTP 401");
  expect_failure("stranger", uid, grpc::FAILED_PRECONDITION, v1::ARCHIVE_IDENTITY_REFUSED, "tls: ");
  expect_failure("few", uid, grpc::RESOURCE_EXHAUSTED, v1::RETRIEVAL_TOO_LARGE, "too many instances");
  expect_failure("web", "1.2.826.0.99887766", grpc::NOT_FOUND, v1::RESOURCE_NOT_FOUND, "no such series");
  for (const char* remote : {"wrong", "stranger"}) {
    v1::FindSeriesResponse found;
    for (const grpc::Status& status : {EchoArchive(remote), Find(PatientQuery(remote), &found)}) {
      EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION) << status.error_message();
      absl::StrAppend(&everything, status.error_message());
    }
  }
  EXPECT_TRUE(Volumes().empty());
  const auto web_requests = [&](const char* request, const char* outcome) {
    return Metric(
        absl::StrCat("intrawarp_dicomweb_requests_total{outcome=\"", outcome, "\",request=\"", request, "\"}"));
  };
  // Two imports, two echoes and two searches were refused; two imports found what they searched for or nothing.
  EXPECT_EQ(web_requests("search", "refused"), 6);
  EXPECT_EQ(web_requests("search", "done"), 2);
  EXPECT_EQ(web_requests("retrieve", "done"), 0);
  // A token is read for each request.
  Put("token", dicomweb::kToken);
  ExpectVolumeOf(folder, Import("wrong", "renewed", uid));
  EXPECT_EQ(web_requests("retrieve", "done"), 1);
  everything += Metrics() + StopServer();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "audit")) everything += Get(entry.path());
  EXPECT_TRUE(absl::StrContains(everything, "dicom.Import"));
  everything = absl::AsciiStrToLower(everything);
  for (const std::string& secret : secrets) EXPECT_FALSE(absl::StrContains(everything, secret)) << secret;
}

}  // namespace
}  // namespace intrawarp::server
