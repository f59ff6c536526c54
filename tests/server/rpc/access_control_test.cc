// SPDX-License-Identifier: Apache-2.0
// Calls here have no connection: who a caller is by the certificate or the encryption of one, access_test.cc asks.
#include "server/rpc/access_control.h"

#include <gmock/gmock.h>
#include <grpcpp/test/server_context_test_spouse.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "server/status/errors.h"
#include "tests/server/identity/certificates.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kFrameMethod[] = "intrawarp.v1.RegistrationService/Navigate";
constexpr char kAdminMethod[] = "intrawarp.v1.ServerService/SetLogLevel";
const Identity kAnn{"ann", Role::kFrame};
const Identity kBob{"bob", Role::kFrame};

std::string TokenLine(const std::string& name, const std::string& roles, const std::string& token) {
  return absl::StrCat(name, " ", roles, " sha256:", absl::BytesToHexString(io::Sha256Of(token.data(), token.size())),
                      "\n");
}

class AccessControlTest : public testing::Test {
 protected:
  AccessControlTest() {
    const TestCertificate server = MakeServerCertificate(authority_);
    files_.tls_cert = folder_.Write("cert.pem", server.certificate);
    files_.tls_key = folder_.Write("key.pem", server.key);
    files_.tokens = folder_.Write("tokens", TokenLine("ann", "frame", "first"));
    seams_.steady_now = [this] { return WatchedFile::Time(now_.load()); };
  }
  std::unique_ptr<AccessControl> Make(const CallLimitOptions& limits = {}) {
    return std::make_unique<AccessControl>(files_, limits, metrics_, admission_, seams_);
  }
  std::unique_ptr<AccessControl> Loaded(const CallLimitOptions& limits = {}) {
    std::unique_ptr<AccessControl> access = Make(limits);
    const absl::Status status = access->Load();
    EXPECT_TRUE(status.ok()) << status;
    return access;
  }
  void Advance(seconds by) { now_ = now_.load() + by; }
  // Reads the files until a change has settled; whether it was taken up.
  bool ReloadSettled(AccessControl& access) {
    EXPECT_FALSE(access.Reload()) << "it has just been written";
    Advance(WatchedFile::kSettleTime);
    return access.Reload();
  }
  // The value of a series, as the page has it.
  std::string Series(const std::string& name) const {
    const std::string text = registry_.Scrape(), begin = absl::StrCat("\n", name, " ");
    const size_t at = text.find(begin);
    if (at == std::string::npos) return "none";
    return text.substr(at + begin.size(), text.find('\n', at + 1) - at - begin.size());
  }
  std::string Refused(const std::string& reason) const {
    return Series(absl::StrCat("intrawarp_callers_refused_total{reason=\"", reason, "\"}"));
  }
  std::string Rejected(const std::string& reason) const {
    return Series(absl::StrCat("intrawarp_admission_rejections_total{reason=\"", reason, "\"}"));
  }
  std::string Reloads(const std::string& file, const std::string& outcome) const {
    return Series(absl::StrCat("intrawarp_access_reloads_total{file=\"", file, "\",outcome=\"", outcome, "\"}"));
  }

  const TestFolder folder_;
  const TestCertificate authority_ = MakeAuthority("hospital");
  AccessFiles files_;
  Registry registry_;
  const RpcMetrics metrics_{registry_, {}};
  const AdmissionMetrics admission_{registry_, {"cpu"}};
  std::atomic<WatchedFile::Time::duration> now_{std::chrono::hours(1)};
  Seams seams_ = SystemSeams();
  grpc::ServerContext call_;
};

TEST_F(AccessControlTest, WithoutFilesEveryCallerIsAnybody) {
  files_ = {};
  const auto access = Loaded();
  EXPECT_EQ(*access->Identify(call_), Anybody());
  EXPECT_EQ(*access->IdentifyBearer(""), Anybody());
  EXPECT_EQ(*access->IdentifyBearer("Bearer whatever"), Anybody());
  EXPECT_NE(access->credentials(), nullptr);
  EXPECT_EQ(access->tls().material(), nullptr);
  EXPECT_EQ(Refused("not_authenticated"), "0");
}

TEST_F(AccessControlTest, AFileThatCannotBeUsedIsNamedByItsFlag) {
  const AccessFiles good = files_;
  files_.tokens = folder_.Path("none");
  EXPECT_THAT(std::string(Make()->Load().message()), StartsWith("--tokens: "));
  files_.tokens = folder_.Write("broken", "geheim");
  absl::Status status = Make()->Load();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("--tokens: "));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("geheim")));
  files_ = good;
  files_.identities = folder_.Path("broken");
  EXPECT_THAT(std::string(Make()->Load().message()), StartsWith("--identities: "));
  files_ = good;
  files_.tls_key = folder_.Write("other.pem", MakeServerCertificate(authority_).key);
  EXPECT_THAT(std::string(Make()->Load().message()), StartsWith("--tls_key: "));
}

TEST_F(AccessControlTest, ABearerIsWhoeverTheTokenNames) {
  const auto access = Loaded();
  EXPECT_EQ(*access->IdentifyBearer("Bearer first"), kAnn);
  EXPECT_EQ(Refused("not_authenticated"), "0");
  for (const char* shown : {"", "Bearer second", "first", "Basic first"}) {
    const absl::Status status = access->IdentifyBearer(shown).status();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << shown << status;
    EXPECT_EQ(ReasonOf(status), v1::NOT_AUTHENTICATED);
  }
  EXPECT_EQ(Refused("not_authenticated"), "4");
  EXPECT_THAT(std::string(access->IdentifyBearer("").status().message()), HasSubstr("has no token"));
}

TEST_F(AccessControlTest, TokensAreNotTakenOverPlainText) {
  const auto access = Loaded();
  grpc::testing::ServerContextTestSpouse spouse(&call_);
  spouse.AddClientMetadata("authorization", "Bearer first");
  const absl::Status status = access->Identify(call_).status();
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::NOT_AUTHENTICATED);
  EXPECT_THAT(std::string(status.message()), HasSubstr("plain text"));
  EXPECT_EQ(Refused("not_authenticated"), "1");
  // A page without TLS takes none either.
  files_.tls_cert = files_.tls_key = "";
  EXPECT_THAT(std::string(Loaded()->IdentifyBearer("Bearer first").status().message()), HasSubstr("plain text"));
}

TEST_F(AccessControlTest, ACallWithoutACredentialIsRefused) {
  const auto access = Loaded();
  const absl::Status status = access->Identify(call_).status();
  EXPECT_EQ(ReasonOf(status), v1::NOT_AUTHENTICATED) << status;
  EXPECT_EQ(Refused("not_authenticated"), "1");
}

TEST_F(AccessControlTest, ARoleThatDoesNotSufficeTakesNoPlace) {
  const auto access = Loaded({.connection_calls = 1, .identity_calls = 1});
  CallLimits::Place place;
  const absl::Status status = access->Admit(kAdminMethod, kAnn, call_, place);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::ROLE_MISSING);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kAdminMethod));
  EXPECT_EQ(Refused("role_missing"), "1");
  EXPECT_TRUE(access->Admit(kFrameMethod, kAnn, call_, place).ok());
  EXPECT_EQ(Refused("role_missing"), "1");
  CallLimits::Place of_admin;
  EXPECT_TRUE(absl::IsResourceExhausted(access->Admit(kAdminMethod, Identity{"root", Role::kAdmin}, call_, of_admin)));
}

TEST_F(AccessControlTest, AnIdentityHasSoManyCallsUnderWay) {
  const auto access = Loaded({.connection_calls = 0, .identity_calls = 1});
  CallLimits::Place first, second, of_other;
  ASSERT_TRUE(access->Admit(kFrameMethod, kAnn, call_, first).ok());
  const absl::Status status = access->Admit(kFrameMethod, kAnn, call_, second);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::TOO_MANY_CALLS);
  EXPECT_THAT(std::string(status.message()), StartsWith("1 calls of this identity"));
  EXPECT_THAT(ToRpcStatusProto(status).DebugString(), HasSubstr("capacity"));
  EXPECT_EQ(Rejected("too_many_calls"), "1");
  EXPECT_TRUE(access->Admit(kFrameMethod, kBob, call_, of_other).ok());
  first = CallLimits::Place();
  EXPECT_TRUE(access->Admit(kFrameMethod, kAnn, call_, second).ok());
  EXPECT_EQ(Rejected("too_many_calls"), "1");
}

TEST_F(AccessControlTest, AConnectionHasSoManyCallsWhoeverMakesThem) {
  const auto access = Loaded({.connection_calls = 2, .identity_calls = 0});
  CallLimits::Place first, second, third;
  ASSERT_TRUE(access->Admit(kFrameMethod, kAnn, call_, first).ok());
  ASSERT_TRUE(access->AdmitAnyone(call_, second).ok());
  for (const absl::Status& status :
       {access->Admit(kFrameMethod, kBob, call_, third), access->AdmitAnyone(call_, third)}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(ReasonOf(status), v1::TOO_MANY_CALLS);
    EXPECT_THAT(std::string(status.message()), StartsWith("2 calls of this connection"));
  }
  EXPECT_EQ(Rejected("too_many_calls"), "2");
  second = CallLimits::Place();
  EXPECT_TRUE(access->AdmitAnyone(call_, third).ok());
}

TEST_F(AccessControlTest, AnIdentityCallsSoOften) {
  const auto access = Loaded({.connection_calls = 0, .identity_calls = 0, .identity_rate = 2});
  const auto call = [&](const Identity& caller) {
    CallLimits::Place place;
    return access->Admit(kFrameMethod, caller, call_, place);
  };
  EXPECT_TRUE(call(kAnn).ok());
  EXPECT_TRUE(call(kAnn).ok());
  const absl::Status status = call(kAnn);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::CALL_RATE);
  EXPECT_EQ(Rejected("call_rate"), "1");
  EXPECT_TRUE(call(kBob).ok());
  CallLimits::Place place;
  EXPECT_TRUE(access->AdmitAnyone(call_, place).ok());
  Advance(seconds(1));
  EXPECT_TRUE(call(kAnn).ok());
}

TEST_F(AccessControlTest, AChangedFileCountsOnceItHasSettled) {
  const auto access = Loaded();
  EXPECT_FALSE(access->Reload()) << "nothing has changed";
  EXPECT_EQ(Reloads("tokens", "ok"), "0");
  folder_.Write("tokens", TokenLine("bob", "frame", "second"));
  EXPECT_TRUE(ReloadSettled(*access));
  EXPECT_EQ(*access->IdentifyBearer("Bearer second"), kBob);
  EXPECT_TRUE(absl::IsUnauthenticated(access->IdentifyBearer("Bearer first").status()));
  EXPECT_EQ(Reloads("tokens", "ok"), "1");
  EXPECT_EQ(Reloads("tls", "ok"), "0");
  EXPECT_FALSE(access->Reload());
}

TEST_F(AccessControlTest, ABrokenFileLeavesTheLastGoodOne) {
  const auto access = Loaded();
  folder_.Write("tokens", "geheim");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(ReloadSettled(*access));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("level=error event=not_reloaded file=tokens"));
  EXPECT_THAT(log, testing::Not(HasSubstr("geheim")));
  EXPECT_EQ(*access->IdentifyBearer("Bearer first"), kAnn);
  EXPECT_EQ(Reloads("tokens", "failed"), "1");
  EXPECT_EQ(Reloads("tokens", "ok"), "0");
  // It is told once.
  EXPECT_FALSE(access->Reload());
  EXPECT_EQ(Reloads("tokens", "failed"), "1");
}

TEST_F(AccessControlTest, ANewCertificateIsShown) {
  constexpr char kEnd[] = "intrawarp_tls_certificate_not_after_timestamp_seconds";
  const auto access = Loaded();
  const std::string before = Series(kEnd);
  EXPECT_NE(before, "none");
  const TestCertificate later =
      MakeCertificate(authority_, {.alternative_names = "IP:127.0.0.1", .ends = std::chrono::hours(48)});
  folder_.Write("cert.pem", later.certificate);
  folder_.Write("key.pem", later.key);
  EXPECT_TRUE(ReloadSettled(*access));
  EXPECT_EQ(access->tls().material()->certificate_chain, later.certificate);
  EXPECT_NE(Series(kEnd), before);
  EXPECT_EQ(Reloads("tls", "ok"), "1");
}

TEST_F(AccessControlTest, ItsThreadTellsOfAChangeAndStops) {
  const auto access = Loaded();
  // Whatever is written has settled at the next look.
  seams_.steady_now = [this] {
    Advance(WatchedFile::kSettleTime);
    return WatchedFile::Time(now_.load());
  };
  folder_.Write("tokens", TokenLine("bob", "frame", "second"));
  std::promise<void> changed;
  std::atomic<int> times{0};
  access->StartReloading([&] {
    if (++times == 1) changed.set_value();
  });
  changed.get_future().wait();
  EXPECT_EQ(*access->IdentifyBearer("Bearer second"), kBob);
  access->Stop();
  access->Stop();
  EXPECT_EQ(times, 1);
}

TEST_F(AccessControlTest, WithoutTlsThereIsNothingToReadAgain) {
  files_ = {};
  const auto access = Loaded();
  access->StartReloading([] { ADD_FAILURE(); });
  access->Stop();
  EXPECT_FALSE(access->Reload());
}

}  // namespace
}  // namespace intrawarp::server
