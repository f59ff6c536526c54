// SPDX-License-Identifier: Apache-2.0
// A server with TLS and identities, and channels of clients that show this or that.
#ifndef INTRAWARP_TESTS_SERVER_IDENTITY_ACCESS_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_IDENTITY_ACCESS_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "intrawarp/v1/server.grpc.pb.h"
#include "server/identity/credentials.h"
#include "server/identity/watched_file.h"
#include "tests/server/identity/certificates.h"
#include "tests/server/test_server.h"

namespace intrawarp::server {

// A client shows these.
struct Shown {
  // The authority that it trusts; empty: plain text.
  std::string trusts = {};
  TestCertificate certificate = {};
  std::string token = {};
};

class AccessTest : public testing::Test {
 protected:
  ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.device = "cpu";
    options.watchdog = WatchdogOptions();
    options.seams.steady_now = clock_.now();
    return options;
  }

  // The server reads its files until a change of them counts.
  void TakeUpFiles() {
    server_->ReloadAccess();
    clock_.Advance(WatchedFile::kSettleTime);
    server_->ReloadAccess();
  }

  AccessFiles TlsPaths() {
    AccessFiles files;
    files.tls_cert = folder_.Write("server.pem", server_certificate_.certificate);
    files.tls_key = folder_.Write("server.key", server_certificate_.key);
    return files;
  }

  // Adds a token to the tokens file, and gives it.
  std::string AddToken(const std::string& name, Roles roles) {
    const NewToken made = *MakeToken(name, roles);
    tokens_ += made.line + "\n";
    folder_.Write("tokens", tokens_);
    return made.token;
  }

  // Starts the server, which reads its files.
  void Start(const AccessFiles& files, const std::function<void(ServerOptions&)>& change = nullptr) {
    ServerOptions options = Options();
    options.access = files;
    if (change) change(options);
    server_ = StartServer(options);
  }
  void StartWithTokens(const std::function<void(ServerOptions&)>& change = nullptr) {
    AccessFiles files = TlsPaths();
    files.tokens = folder_.Write("tokens", tokens_);
    Start(files, change);
  }
  void StartWithCertificates(const std::string& identities) {
    AccessFiles files = TlsPaths();
    files.tls_client_ca = folder_.Write("clients.pem", authority_.certificate);
    files.identities = folder_.Write("identities", identities);
    Start(files);
  }

  // With a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(const Shown& shown) const {
    return NewConnection(*server_, CredentialsOf(shown));
  }
  static std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const Shown& shown) {
    if (shown.trusts.empty()) return grpc::InsecureChannelCredentials();
    const std::shared_ptr<grpc::ChannelCredentials> tls =
        grpc::SslCredentials({shown.trusts, shown.certificate.key, shown.certificate.certificate});
    if (shown.token.empty()) return tls;
    return grpc::CompositeChannelCredentials(tls, grpc::AccessTokenCredentials(shown.token));
  }
  // Who trusts the server and shows a token.
  Shown WithToken(const std::string& token) const { return {.trusts = authority_.certificate, .token = token}; }
  Shown WithCertificate(const TestCertificate& certificate) const {
    return {.trusts = authority_.certificate, .certificate = certificate};
  }

  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext call;
    call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::GetServerInfoResponse response;
    const grpc::Status status = v1::ServerService::NewStub(channel)->GetServerInfo(&call, {}, &response);
    EXPECT_EQ(status.ok(), response.has_info());
    return status;
  }
  grpc::StatusCode Code(const Shown& shown) const { return Ask(NewChannel(shown)).error_code(); }

  const TestFolder folder_;
  const TestCertificate authority_ = MakeAuthority("hospital");
  const TestCertificate server_certificate_ = MakeServerCertificate(authority_);
  std::string tokens_;
  FakeClock clock_;
  std::unique_ptr<Server> server_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_IDENTITY_ACCESS_FIXTURE_H_
