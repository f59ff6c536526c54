// SPDX-License-Identifier: Apache-2.0
// Certificates for tests, made with OpenSSL: authorities, servers, clients, good ones and expired ones; and a client
// that speaks one version of TLS.
#ifndef INTRAWARP_TESTS_SERVER_IDENTITY_CERTIFICATES_H_
#define INTRAWARP_TESTS_SERVER_IDENTITY_CERTIFICATES_H_

#include <chrono>
#include <string>

namespace intrawarp::server {

// PEM.
struct TestCertificate {
  std::string certificate;
  std::string key;
};

struct TestSubject {
  std::string common_name = "test";
  // In OpenSSL's notation: "DNS:localhost,IP:127.0.0.1", "URI:spiffe://theatre/3". Empty: none.
  std::string alternative_names = {};
  std::chrono::hours begins{-1};  // from now
  std::chrono::hours ends{24};
};

TestCertificate MakeAuthority(const std::string& common_name);
TestCertificate MakeCertificate(const TestCertificate& authority, const TestSubject& subject);
// A certificate of 127.0.0.1 and localhost.
TestCertificate MakeServerCertificate(const TestCertificate& authority);

// Shakes hands with HOST:PORT by versions of TLS up to `max_version` (TLS1_1_VERSION): "ok", or OpenSSL's reason.
std::string Handshake(const std::string& address, int max_version);

// A folder that is deleted with the test, for the files of a server and its clients.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  // Replaces the file at once; its path.
  std::string Write(const std::string& name, const std::string& text) const;
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_IDENTITY_CERTIFICATES_H_
