// SPDX-License-Identifier: Apache-2.0
// A real archive for tests: Orthanc with its DICOMweb plugin, behind nginx, which speaks TLS and wants a bearer token.
// Its files lie in a folder of the test: ca.pem (the authority of its certificate, which is for 127.0.0.1),
// other_ca.pem (another authority), token, archive/.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_ARCHIVE_H_
#define INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_ARCHIVE_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "io/dicomweb/archive.h"
#include "tests/client/process.h"
#include "tests/server/identity/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"

namespace intrawarp::dicomweb {

inline constexpr char kPlugin[] = "/usr/share/orthanc/plugins/libOrthancDicomWeb.so";
inline constexpr char kToken[] = "token-of-the-theatre";

class OrthancArchive {
 public:
  static bool IsInstalled() {
    for (const char* program : {"/usr/sbin/Orthanc", "/usr/sbin/nginx", kPlugin}) {
      if (access(program, R_OK) != 0) return false;
    }
    return true;
  }
  explicit OrthancArchive(std::string folder) : folder_(std::move(folder)) {}

  // Until it answers through nginx.
  absl::Status Start() {
    PutFiles();
    orthanc_ = std::make_unique<client::Process>(std::vector<std::string>{"/usr/sbin/Orthanc", Path("orthanc.json")});
    nginx_ = std::make_unique<client::Process>(
        std::vector<std::string>{"/usr/sbin/nginx", "-p", folder_, "-c", Path("nginx.conf")});
    absl::Status status;
    (void)Eventually([&] {
      const auto archive = Archive::Create(Secure());
      status = archive.ok() ? (*archive)->FindSeries({}).status() : archive.status();
      return status.ok() || !archive.ok();
    });
    return status;
  }
  // Orthanc's exit status.
  int Stop() {
    nginx_->Signal(SIGTERM);
    nginx_->Wait();
    orthanc_->Signal(SIGTERM);
    return orthanc_->Wait().exit_status;
  }

  HttpOptions Plain() const {
    HttpOptions options;
    options.base_url = absl::StrCat("http://127.0.0.1:", http_port_, "/dicom-web");
    return options;
  }
  HttpOptions Secure() const {
    HttpOptions options;
    options.base_url = absl::StrCat("https://127.0.0.1:", proxy_port_, "/dicom-web");
    options.authorities_file = Path("ca.pem");
    options.token_file = Path("token");
    return options;
  }
  int http_port() const { return http_port_; }
  int dicom_port() const { return dicom_port_; }
  int proxy_port() const { return proxy_port_; }

 private:
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Put(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  void PutFiles() const {
    Put("orthanc.json", absl::StrCat("{\"StorageDirectory\": \"", Path("archive"), "\", \"HttpPort\": ", http_port_,
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
                     kToken, "\") { return 401; } proxy_pass http://127.0.0.1:", http_port_, "; } } }\n"));
  }

  const std::string folder_;
  const int http_port_ = FreePort(), dicom_port_ = FreePort(), proxy_port_ = FreePort();
  std::unique_ptr<client::Process> orthanc_, nginx_;
};

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_ARCHIVE_H_
