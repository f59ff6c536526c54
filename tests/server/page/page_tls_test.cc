// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_tls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/server/identity/certificates.h"

namespace intrawarp::server {
namespace {

// A folder with a server's certificate and key that are replaced, as the server reads them.
class PageTlsTest : public ::testing::Test {
 protected:
  PageTlsTest() { Replace(good_.certificate, good_.key); }

  // The change has settled when this returns.
  void Replace(const std::string& certificate, const std::string& key) {
    folder_.Write("cert", certificate);
    folder_.Write("key", key);
    for (int i = 0; i < 2; ++i) {
      now_ += WatchedFile::kSettleTime;
      ASSERT_TRUE(files_.Reload(now_).ok());
    }
    ASSERT_EQ(files_.material()->certificate_chain, certificate);
  }
  // The number of certificates that a handshake gets; -1: the handshake ends.
  int Handshake() {
    UseOnThisThread(tls_);
    gnutls_pcert_st* certificates = nullptr;
    gnutls_privkey_t key = nullptr;
    gnutls_ocsp_data_st* ocsp = nullptr;
    unsigned count = 0;
    unsigned ocsp_count = 0;
    unsigned flags = 0;
    if (RetrieveCertificate(nullptr, nullptr, &certificates, &count, &ocsp, &ocsp_count, &key, &flags) != 0) return -1;
    for (unsigned i = 0; i < count; ++i) gnutls_pcert_deinit(&certificates[i]);
    gnutls_free(certificates);
    gnutls_privkey_deinit(key);
    return static_cast<int>(count);
  }

  const TestCertificate authority_ = MakeAuthority("theatre");
  const TestCertificate good_ = MakeServerCertificate(authority_);
  const TestFolder folder_;
  TlsFiles files_{AccessFiles{folder_.Path("cert"), folder_.Path("key"), {}, {}, {}}};
  WatchedFile::Time now_ = WatchedFile::Time() + std::chrono::hours(1);
  PageTls tls_{files_};
};

TEST_F(PageTlsTest, TakesUpNewMaterial) {
  EXPECT_TRUE(tls_.Refresh().ok());
  EXPECT_EQ(Handshake(), 1);
  const TestCertificate next = MakeServerCertificate(authority_);
  Replace(next.certificate + authority_.certificate, next.key);
  EXPECT_EQ(Handshake(), 2);
  EXPECT_EQ(tls_.material(), files_.material());
}

TEST_F(PageTlsTest, MaterialThatOnlyOpenSslTakesLeavesTheOneBefore) {
  EXPECT_TRUE(tls_.Refresh().ok());
  const auto first = tls_.material();
  const TestCertificate next = MakeServerCertificate(authority_);
  std::string long_chain;
  for (int i = 0; i < 17; ++i) absl::StrAppend(&long_chain, next.certificate);
  const std::string broken_chain =
      absl::StrCat(next.certificate, "-----BEGIN CERTIFICATE-----\nMIIBbroken\n-----END CERTIFICATE-----\n");
  for (const std::string& chain : {long_chain, broken_chain}) {
    Replace(chain, next.key);
    const absl::Status status = tls_.Refresh();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find("tls_cert: "), 0u) << status;
    EXPECT_TRUE(tls_.Refresh().ok()) << "the error comes once for each change";
    EXPECT_EQ(tls_.material(), first);
    EXPECT_EQ(Handshake(), 1);
  }
  Replace(next.certificate, next.key);
  EXPECT_TRUE(tls_.Refresh().ok());
  EXPECT_EQ(tls_.material(), files_.material());
  EXPECT_EQ(Handshake(), 1);
}

TEST_F(PageTlsTest, MaterialThatCannotBeUsedAtTheBeginningIsAnError) {
  std::string chain;
  for (int i = 0; i < 17; ++i) absl::StrAppend(&chain, good_.certificate);
  Replace(chain, good_.key);
  EXPECT_EQ(tls_.Refresh().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tls_.material(), nullptr);
  EXPECT_EQ(Handshake(), -1);
}

}  // namespace
}  // namespace intrawarp::server
