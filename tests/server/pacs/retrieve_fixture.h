// SPDX-License-Identifier: Apache-2.0
// A server that imports from an archive, the archives, and the questions to both.
#ifndef INTRAWARP_TESTS_SERVER_PACS_RETRIEVE_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_PACS_RETRIEVE_FIXTURE_H_

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "io/dicom/dicom.h"
#include "tests/io/dicomweb/orthanc_archive.h"
#include "tests/server/pacs/pacs_fixture.h"
#include "tests/server/status_details.h"
#include "tests/support/free_port.h"

namespace intrawarp::server {

inline constexpr char kStudy[] = "1.2.5";
inline constexpr char kSeries[] = "1.2.5.1";
inline constexpr char kDone[] = "intrawarp_dicom_imports_total{outcome=\"done\"}";

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
    const client::ProcessResult stored =
        client::RunProcess({"/usr/bin/storescu", syntax, "-aet", "MOVER", "-aec", ae, "+sd", "127.0.0.1",
                            std::to_string(archive_port_), folder});
    ASSERT_EQ(stored.exit_status, 0) << stored.err;
  }
  std::unique_ptr<client::Process> StartDcmqrscp(bool knows_us = true) {
    Put("dcmqrscp.cfg",
        absl::StrCat(
            "NetworkTCPPort = ", archive_port_, "\nMaxPDUSize = 16384\nMaxAssociations = 8\nHostTable BEGIN\n",
            knows_us ? absl::StrCat("iw = (INTRAWARP, 127.0.0.1, ", port_, ")\n") : "",
            "mover = (MOVER, 127.0.0.1, 104)\nHostTable END\nVendorTable BEGIN\nVendorTable END\nAETable BEGIN\n",
            "ARCHIVE ", MakeFolder("archive"), " RW (10, 1024mb) ANY\nAETable END\n"));
    return std::make_unique<client::Process>(std::vector<std::string>{"/usr/bin/dcmqrscp", "-c", Path("dcmqrscp.cfg")});
  }
  // With TLS where it has a certificate; its key, and the authority of its clients, are files, too.
  std::unique_ptr<client::Process> StartOrthanc(const std::string& certificate = "", const std::string& key = "",
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
    return std::make_unique<client::Process>(std::vector<std::string>{"/usr/sbin/Orthanc", Path("orthanc.json")});
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
    EXPECT_THAT(operation.results(), testing::ElementsAre(name));
    const auto read = io::ReadDicom(folder);
    ASSERT_THAT(read, io::Succeeds());
    const std::vector<float> values = io::ToFloat(read->volume);
    const auto volumes = Volumes();
    const auto volume = std::find_if(volumes.begin(), volumes.end(), [&](const auto& v) { return v.name() == name; });
    ASSERT_NE(volume, volumes.end());
    const Geometry& geometry = read->volume.geometry;
    EXPECT_THAT(volume->geometry().size(), testing::ElementsAre(geometry.size.x, geometry.size.y, geometry.size.z));
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
      EXPECT_THAT(uids, testing::ElementsAre(kSeries, "1.2.5.2"));
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
    const client::ProcessResult scu =
        client::RunProcess({"/usr/bin/findscu", "-S", "-aet", "MOVER", "-aec", ae, "-k", "0008,0052=SERIES", "-k",
                            "0020,000d=1.2.5", "-k", "0020,000e", "127.0.0.1", std::to_string(archive_port_)});
    EXPECT_THAT(scu.out + scu.err, testing::HasSubstr(kSeries));
    named.set_patient_id("NOBODY-HAS-THIS");
    found.Clear();
    ASSERT_TRUE(Find(named, &found).ok());
    EXPECT_EQ(found.series_size(), 0);
    EXPECT_EQ(Import("get", "absent", "1.2.5.999").error().code(), grpc::NOT_FOUND);
  }

  const int archive_port_ = FreePort();
  std::unique_ptr<v1::PacsService::Stub> pacs_;
  std::unique_ptr<v1::OperationService::Stub> operations_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PACS_RETRIEVE_FIXTURE_H_
