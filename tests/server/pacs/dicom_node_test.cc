// SPDX-License-Identifier: Apache-2.0
// Whether the DICOM side of a server could start, without a port. The node itself is tested with a whole server
// (storage_test.cc).
#include "server/pacs/dicom_node.h"

#include <string>

#include "tests/io/io_test.h"
#include "tests/server/identity/certificates.h"

namespace intrawarp::server {
namespace {

using io::Fails;
using io::Succeeds;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class NodeOptionsTest : public io::FileTest {
 protected:
  NodeOptionsTest() {
    options_.listen = "127.0.0.1:0";
    options_.peers = Put("peers", "PACS 127.0.0.1 ann\nMOVER 127.0.0.1 ann\n");
  }
  absl::Status Check(bool has_identities = true) { return CheckNodeOptions(options_, has_identities); }
  absl::Status CheckWithPeers(const std::string& text) {
    options_.peers = Put("peers", text);
    return Check();
  }
  absl::Status CheckWithRemotes(const std::string& text) {
    options_.remotes = Put("remotes", text);
    return Check();
  }
  void GiveTls() {
    const TestCertificate authority = MakeAuthority("authority");
    const TestCertificate own = MakeServerCertificate(authority);
    options_.tls_cert = Put("cert.pem", own.certificate);
    options_.tls_key = Put("key.pem", own.key);
    options_.tls_ca = Put("ca.pem", authority.certificate);
  }

  NodeOptions options_;
};

TEST_F(NodeOptionsTest, WithoutPortAndArchivesNothingIsLookedAt) {
  options_.listen = "";
  options_.peers = Path("nowhere");
  options_.spool = Path("nowhere");
  options_.tls_ca = Path("nowhere");
  EXPECT_THAT(Check(), Succeeds());
}

TEST_F(NodeOptionsTest, ALoopbackAddressNeedsPeersAlone) {
  EXPECT_THAT(Check(), Succeeds());
  options_.peers = "";
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_peers: is needed by --dicom_listen"));
  options_.peers = Path("nowhere");
  EXPECT_THAT(Check(), Fails(absl::StatusCode::kNotFound, "--dicom_peers: "));
  EXPECT_THAT(CheckWithPeers("PACS host owner"), Fails(kInvalid, "--dicom_peers: line 1: "));
  EXPECT_THAT(CheckWithPeers("PACS 127.0.0.1 -"), Fails(kInvalid, "--dicom_peers: line 1: "));
  EXPECT_THAT(Check(/*has_identities=*/false), Succeeds());
}

TEST_F(NodeOptionsTest, AnAddressThatOthersReachNeedsCertificatesOrAWord) {
  options_.listen = "0.0.0.0:104";
  EXPECT_THAT(Check(), Fails(kInvalid, "there is no TLS"));
  options_.allow_insecure = true;
  EXPECT_THAT(Check(), Succeeds());
  options_.allow_insecure = false;
  GiveTls();
  EXPECT_THAT(Check(), Succeeds());
  options_.tls_ca = "";
  EXPECT_THAT(Check(), Fails(kInvalid, "peers need no certificate: give --dicom_tls_ca"));
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_listen=0.0.0.0:104: "));
  options_.listen = "127.0.0.1:104";
  EXPECT_THAT(Check(), Succeeds());
}

TEST_F(NodeOptionsTest, CertificateKeyAndAuthoritiesGoTogether) {
  GiveTls();
  const NodeOptions good = options_;
  options_.tls_key = "";
  EXPECT_THAT(Check(), Fails(kInvalid, "each needs the other"));
  options_ = good;
  options_.tls_cert = "";
  EXPECT_THAT(Check(), Fails(kInvalid, "each needs the other"));
  options_ = good;
  options_.tls_cert = options_.tls_key = "";
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_tls_ca: needs"));
  options_ = good;
  options_.tls_ca = Put("empty.pem", "");
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_tls_ca: is empty"));
  options_ = good;
  options_.tls_key = Put("other.pem", MakeServerCertificate(MakeAuthority("another")).key);
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_tls_"));
  options_ = good;
  options_.tls_cert = Path("nowhere");
  EXPECT_THAT(Check(), Fails(absl::StatusCode::kNotFound, "--dicom_tls_cert: "));
  options_ = good;
  options_.tls_cert = Put("text.pem", "no certificate");
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_tls_cert"));
}

TEST_F(NodeOptionsTest, ArchivesAreThoseThatCouldBeAsked) {
  EXPECT_THAT(CheckWithRemotes("main get PACS 192.0.2.1:104 plain\n"), Succeeds());
  EXPECT_THAT(CheckWithRemotes("# nothing\n\n"), Fails(kInvalid, "--dicom_remotes: names no archive"));
  EXPECT_THAT(CheckWithRemotes("main get PACS\n"), Fails(kInvalid, "--dicom_remotes: line 1: "));
  options_.remotes = Path("nowhere");
  EXPECT_THAT(Check(), Fails(absl::StatusCode::kNotFound, "--dicom_remotes: "));
  // Without a port nobody could send what a move asks for.
  EXPECT_THAT(CheckWithRemotes("main move MOVER 127.0.0.1:104 plain\n"), Succeeds());
  EXPECT_THAT(CheckWithRemotes("main move OTHER 127.0.0.1:104 plain\n"), Fails(kInvalid, "--dicom_remotes: "));
  options_.listen = "";
  EXPECT_THAT(CheckWithRemotes("main move MOVER 127.0.0.1:104 plain\n"), Fails(kInvalid, "--dicom_remotes: "));
  EXPECT_THAT(CheckWithRemotes("main get PACS 192.0.2.1:104 plain\n"), Succeeds());
  options_.peers = "";
  EXPECT_THAT(CheckWithRemotes("main get PACS 192.0.2.1:104 plain\n"), Succeeds()) << "nobody sends by himself";
}

TEST_F(NodeOptionsTest, AnArchiveWithTlsNeedsOurCertificate) {
  constexpr char kTls[] = "main get PACS 192.0.2.1:104 tls\n";
  EXPECT_THAT(CheckWithRemotes(kTls), Fails(kInvalid, "--dicom_remotes: an archive with tls needs"));
  GiveTls();
  EXPECT_THAT(Check(), Succeeds());
  options_.tls_ca = "";
  EXPECT_THAT(Check(), Fails(kInvalid, "--dicom_remotes: an archive with tls needs"));
}

TEST_F(NodeOptionsTest, ADicomwebArchivesFilesAreThere) {
  const std::string token = Put("token", "secret");
  std::filesystem::permissions(token, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THAT(CheckWithRemotes("web dicomweb https://192.0.2.1/dicom token_file=" + token + "\n"), Succeeds());
  const absl::Status missing = CheckWithRemotes(
      "main get PACS 192.0.2.1:104 plain\nweb dicomweb https://192.0.2.1/dicom token_file=" + Path("nowhere") + "\n");
  EXPECT_FALSE(missing.ok());
  EXPECT_EQ(missing.message().find("--dicom_remotes: archive 2: "), 0) << missing;
}

TEST_F(NodeOptionsTest, TheSpoolIsAFolderThatExists) {
  options_.spool = folder_.string();
  EXPECT_THAT(Check(), Succeeds());
  options_.spool = Path("nowhere");
  EXPECT_THAT(Check(), Fails(absl::StatusCode::kFailedPrecondition, "--dicom_spool: "));
  options_.spool = Put("file", "x");
  EXPECT_THAT(Check(), Fails(absl::StatusCode::kFailedPrecondition, "--dicom_spool: "));
}

}  // namespace
}  // namespace intrawarp::server
