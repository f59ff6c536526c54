// SPDX-License-Identifier: Apache-2.0
// A real archive for tests: Orthanc with its DICOMweb plugin, behind nginx, which speaks TLS and wants a bearer token.
#ifndef INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_FIXTURE_H_
#define INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_FIXTURE_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/dicom/dicom.h"
#include "io/dicom/file_meta.h"
#include "io/dicomweb/archive.h"
#include "tests/client/process.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"
#include "tests/server/identity/certificates.h"

namespace intrawarp::dicomweb {

inline constexpr char kPlugin[] = "/usr/share/orthanc/plugins/libOrthancDicomWeb.so";
inline constexpr char kToken[] = "token-of-the-theatre";
inline constexpr char kStudy[] = "1.2.826.0.1.3680043.2.1125.7.1";

inline int FreePort() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(descriptor);
  return ntohs(address.sin_port);
}

// A file for each instance.
class FilesSink final : public InstanceSink {
 public:
  explicit FilesSink(std::string folder) : folder_(std::move(folder)) { std::filesystem::create_directories(folder_); }
  absl::Status Begin() override {
    file_.open(absl::StrCat(folder_, "/", count_++), std::ios::binary);
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return absl::OkStatus();
  }
  absl::Status End() override {
    file_.close();
    return absl::OkStatus();
  }

 private:
  const std::string folder_;
  int count_ = 0;
  std::ofstream file_;
};

class OrthancTest : public io::FileTest {
 protected:
  void SetUp() override {
    for (const char* program : {"/usr/sbin/Orthanc", "/usr/sbin/nginx", kPlugin}) {
      if (access(program, R_OK) != 0) GTEST_SKIP() << "Orthanc, its DICOMweb plugin and nginx are not all installed";
    }
    orthanc_port_ = FreePort();
    dicom_port_ = FreePort();
    proxy_port_ = FreePort();
    Put("orthanc.json", absl::StrCat("{\"StorageDirectory\": \"", Path("archive"), "\", \"HttpPort\": ", orthanc_port_,
                                     ", \"DicomAet\": \"ORTHANC\", \"DicomCheckCalledAet\": true, "
                                     "\"DicomAlwaysAllowStore\": true, \"DicomPort\": ",
                                     dicom_port_,
                                     ", \"RemoteAccessAllowed\": false, \"AuthenticationEnabled\": false, "
                                     "\"Plugins\": [\"",
                                     kPlugin, "\"], \"DicomWeb\": {\"Enable\": true, \"Root\": \"/dicom-web/\"}}"));
    const server::TestCertificate authority = server::MakeAuthority("hospital");
    const server::TestCertificate certificate = server::MakeServerCertificate(authority);
    Put("ca.pem", authority.certificate);
    Put("other_ca.pem", server::MakeAuthority("another").certificate);
    Put("cert.pem", certificate.certificate);
    Put("key.pem", certificate.key);
    Put("token", kToken);
    Put("nginx.conf",
        absl::StrCat("daemon off; pid ", Path("nginx.pid"), "; error_log ", Path("nginx.log"),
                     ";\n"
                     "events {}\nhttp { access_log off; client_max_body_size 1g; client_body_temp_path ",
                     Path("b"), "; proxy_temp_path ", Path("p"), "; fastcgi_temp_path ", Path("f"),
                     "; uwsgi_temp_path ", Path("u"), "; scgi_temp_path ", Path("s"),
                     ";\nserver { listen 127.0.0.1:", proxy_port_, " ssl; ssl_certificate ", Path("cert.pem"),
                     "; ssl_certificate_key ", Path("key.pem"), ";\nlocation / { if ($http_authorization != \"Bearer ",
                     kToken, "\") { return 401; } proxy_pass http://127.0.0.1:", orthanc_port_, "; } } }\n"));
    orthanc_ = std::make_unique<client::Process>(std::vector<std::string>{"/usr/sbin/Orthanc", Path("orthanc.json")});
    nginx_ = std::make_unique<client::Process>(
        std::vector<std::string>{"/usr/sbin/nginx", "-p", folder_.string(), "-c", Path("nginx.conf")});
    for (int i = 0; i < 300; ++i) {
      if (Make(Secure())->FindSeries({}).ok()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    FAIL() << "the archive does not answer: " << Make(Secure())->FindSeries({}).status();
  }
  void TearDown() override {
    if (orthanc_ == nullptr) return;
    nginx_->Signal(SIGTERM);
    nginx_->Wait();
    orthanc_->Signal(SIGTERM);
    EXPECT_EQ(orthanc_->Wait().exit_status, 0);
  }

  HttpOptions Plain() const {
    HttpOptions options;
    options.base_url = absl::StrCat("http://127.0.0.1:", orthanc_port_, "/dicom-web");
    return options;
  }
  HttpOptions Secure() const {
    HttpOptions options;
    options.base_url = absl::StrCat("https://127.0.0.1:", proxy_port_, "/dicom-web");
    options.authorities_file = Path("ca.pem");
    options.token_file = Path("token");
    return options;
  }
  std::unique_ptr<Archive> Make(const HttpOptions& options) const {
    auto archive = Archive::Create(options);
    EXPECT_THAT(archive, io::Succeeds());
    return std::move(*archive);
  }

  static std::string SeriesUid(E_TransferSyntax syntax) { return absl::StrCat(kStudy, ".", int{syntax}); }

  // A series of one study in a folder of its own, in this syntax; its files.
  std::vector<std::string> Series(const std::string& name, int slices, E_TransferSyntax syntax) {
    std::filesystem::create_directories(Path(name));
    io::DicomMaker maker(Path(name));
    std::vector<std::string> paths;
    for (int k = 0; k < slices; ++k) {
      io::SliceSpec spec;
      spec.series = SeriesUid(syntax);
      spec.z = 2.5 * k;
      const auto file = maker.Slice(spec);
      file->getDataset()->putAndInsertString(DCM_StudyInstanceUID, kStudy);
      file->getDataset()->putAndInsertString(DCM_PatientID, "4711");
      file->getDataset()->putAndInsertString(DCM_PatientName, "Planted^Name");
      paths.push_back(maker.Save(*file, absl::StrCat("slice", k), syntax));
    }
    return paths;
  }
  // Whole files by instance.
  static std::map<std::string, std::string> FilesOf(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const auto meta = io::ReadFileMeta(entry.path());
      EXPECT_THAT(meta, io::Succeeds());
      files[meta->sop_instance] = Get(entry.path());
    }
    return files;
  }
  // The data set, which an archive keeps; the meta header may be its own.
  static std::string DatasetOf(const std::string& file) { return file.substr(io::ParseFileMeta(file)->size); }

  // Everything that the archive has of the study, in a folder.
  std::map<std::string, std::string> Fetch(const std::string& folder) const {
    const auto archive = Make(Plain());
    const auto found = archive->FindSeries({.keys = {{"StudyInstanceUID", kStudy}}});
    EXPECT_THAT(found, io::Succeeds());
    FilesSink sink(Path(folder));
    for (const FoundSeries& series : found->series) EXPECT_THAT(archive->Retrieve(series, {}, sink), io::Succeeds());
    return FilesOf(Path(folder));
  }
  void ExpectSame(const std::map<std::string, std::string>& back, const std::map<std::string, std::string>& sent) {
    ASSERT_EQ(back.size(), sent.size());
    for (const auto& [instance, file] : sent) {
      ASSERT_TRUE(back.contains(instance));
      EXPECT_TRUE(DatasetOf(back.at(instance)) == DatasetOf(file));
    }
  }

  int orthanc_port_ = 0, dicom_port_ = 0, proxy_port_ = 0;
  std::unique_ptr<client::Process> orthanc_, nginx_;
};

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_FIXTURE_H_
