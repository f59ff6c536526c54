// SPDX-License-Identifier: Apache-2.0
// Series imported from archives as processes: Orthanc and dcmqrscp, and Orthanc behind nginx by DICOMweb.
#include <unistd.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "intrawarp/v1/error.pb.h"
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "io/dicom/dicom.h"
#include "io/format/grid_files.h"
#include "tests/io/dicomweb/orthanc_archive.h"
#include "tests/server/identity/certificates.h"
#include "tests/server/pacs/retrieve_fixture.h"

namespace intrawarp::server {
namespace {

using client::ProcessResult;
using testing::HasSubstr;

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
