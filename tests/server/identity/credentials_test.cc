// SPDX-License-Identifier: Apache-2.0
// The parts of server/identity that need no server.
#include "server/identity/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "server/identity/call_limits.h"
#include "server/identity/exposure.h"
#include "server/identity/identity_source.h"
#include "server/identity/method_roles.h"
#include "server/identity/tls_files.h"
#include "server/rpc/rpc_monitor.h"
#include "tests/server/identity/certificates.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr WatchedFile::Time kBegin{};

std::string HexOf(const std::string& token) {
  return "sha256:" + absl::BytesToHexString(io::Sha256Of(token.data(), token.size()));
}

TEST(Roles, ParsesWhatItPrints) {
  for (const char* text : {"frame", "stage", "admin", "frame,stage", "frame,stage,admin"}) {
    EXPECT_EQ(RolesText(*ParseRoles(text)), text);
  }
  for (const char* text : {"", "Frame", "frame,", "frame,frame", "root", "frame stage"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseRoles(text).status())) << text;
  }
}

// A method that is added to a proto without a row here would be admin's alone, silently.
TEST(MethodRules, HaveARowForEveryMethodAndNoOther) {
  std::set<std::string> methods, rules;
  for (const RpcMethod& method : AllMethods()) methods.insert(method.full_name());
  for (const MethodRule& rule : MethodRules()) EXPECT_TRUE(rules.insert(rule.method).second) << rule.method;
  EXPECT_EQ(rules, methods);
}

TEST(MethodRules, AreAdminsForWhatHasNoRow) {
  EXPECT_FALSE(MayCall(Roles(Role::kFrame) | Role::kStage, "grpc.reflection.v1alpha.ServerReflection/Info"));
  EXPECT_TRUE(MayCall(Role::kAdmin, "grpc.reflection.v1alpha.ServerReflection/Info"));
  EXPECT_FALSE(MayCall(Roles(), "intrawarp.v1.ServerService/GetServerInfo"));
  EXPECT_TRUE(MayCall(Roles(), "grpc.health.v1.Health/Check"));
}

TEST(TokenTable, FindsATokenByItsDigest) {
  const auto table = TokenTable::Parse(absl::StrCat("# comment\n\n  or3 frame ", HexOf("a"), "\r\nor3 stage,frame ",
                                                    HexOf("b"), "\nroot admin ", HexOf("c")));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(*table->Find("a"), (Identity{"or3", Role::kFrame}));
  EXPECT_EQ(*table->Find("b"), (Identity{"or3", Roles(Role::kFrame) | Role::kStage}));
  EXPECT_EQ(*table->Find("c"), (Identity{"root", Role::kAdmin}));
  EXPECT_EQ(table->Find("d"), std::nullopt);
  EXPECT_EQ(table->Find(""), std::nullopt);
  EXPECT_EQ(table->Find(HexOf("a").substr(7)), std::nullopt) << "the digest itself is not a token";
  EXPECT_EQ(table->Find(std::string(kMaxTokenBytes + 1, 'a')), std::nullopt);
}

TEST(TokenTable, ErrorsNameTheLineAndNotItsContent) {
  const std::string good = "or3 frame " + HexOf("a");
  for (const std::string& bad : {std::string("secret"), std::string("or3 frame secret"), "or3 secret " + HexOf("b"),
                                 "se!cret frame " + HexOf("b"), std::string("or3 frame sha256:secret"),
                                 "or3 frame " + HexOf("b") + "00", good}) {
    const absl::Status status = TokenTable::Parse(good + "\n" + bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2: "));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("secret")));
  }
  EXPECT_FALSE(TokenTable::Parse(std::string(kMaxCredentialFile + 1, '\n')).ok());
  std::string many;
  for (int i = 0; i <= kMaxCredentials; ++i) absl::StrAppend(&many, "a frame ", HexOf(absl::StrCat(i)), "\n");
  EXPECT_THAT(std::string(TokenTable::Parse(many).status().message()), HasSubstr("one too many"));
}

TEST(Token, OpensTheLineThatCameWithIt) {
  const auto made = MakeToken("or3", Roles(Role::kFrame) | Role::kStage);
  ASSERT_TRUE(made.ok());
  EXPECT_GE(made->token.size(), 43u);
  EXPECT_THAT(made->line, testing::Not(HasSubstr(made->token)));
  const auto table = TokenTable::Parse(made->line);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(*table->Find(made->token), (Identity{"or3", Roles(Role::kFrame) | Role::kStage}));
  EXPECT_NE(MakeToken("or3", Role::kFrame)->token, MakeToken("or3", Role::kFrame)->token);
  EXPECT_FALSE(MakeToken("", Role::kFrame).ok());
  EXPECT_FALSE(MakeToken("or 3", Role::kFrame).ok());
  EXPECT_FALSE(MakeToken("or3", Roles()).ok());
}

TEST(CertificateTable, TakesUrisThenDnsNamesAndTheCommonNameOfACertificateWithoutThem) {
  const auto table =
      CertificateTable::Parse("a frame uri:spiffe://x/a\nb stage dns:b.local\nc admin cn:The C\nd frame cn:d");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Find({.uris = {"spiffe://x/z", "spiffe://x/a"}, .dns = {"b.local"}})->name, "a");
  EXPECT_EQ(table->Find({.uris = {}, .dns = {"z", "b.local"}})->name, "b");
  EXPECT_EQ(table->Find({.common_name = "The C"})->name, "c");
  EXPECT_EQ(table->Find({.dns = {"other"}, .common_name = "The C"}), std::nullopt);
  EXPECT_EQ(table->Find({.common_name = "the c"}), std::nullopt);
  EXPECT_EQ(table->Find({}), std::nullopt);
  EXPECT_EQ(table->Find({.dns = {"spiffe://x/a"}}), std::nullopt) << "a DNS name is no URI";
}

TEST(CertificateTable, RevokesOneCertificateOfSeveral) {
  const TestCertificate authority = MakeAuthority("ca");
  const std::string one = MakeCertificate(authority, {.common_name = "n"}).certificate;
  const std::string other = MakeCertificate(authority, {.common_name = "n"}).certificate;
  const auto table = CertificateTable::Parse(
      absl::StrCat("n frame cn:n\nrevoked sha256:", absl::BytesToHexString(CertificateDigest(one))));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Find({.common_name = "n", .pem = one}), std::nullopt);
  EXPECT_EQ(table->Find({.common_name = "n", .pem = other})->name, "n");
  EXPECT_EQ(table->Find({.common_name = "n", .pem = "no PEM"}), std::nullopt);
}

TEST(CertificateTable, RefusesWhatItDoesNotUnderstand) {
  for (const char* bad : {"a frame", "a frame x:y", "a frame dns:", "a frame dns:x\nb frame dns:x", "revoked sha256:12",
                          "revoked everything"}) {
    EXPECT_THAT(std::string(CertificateTable::Parse(bad).status().message()), HasSubstr("line ")) << bad;
  }
}

TEST(IdentitySource, TakesATokenBeforeACertificateAndNeverOverPlainText) {
  const TestFolder folder;
  AccessFiles files;
  files.tokens = folder.Write("tokens", "t frame " + HexOf("a"));
  files.identities = folder.Write("identities", "c stage cn:c");
  IdentitySource source(files);
  ASSERT_TRUE(*source.ReloadTokens(kBegin));
  ASSERT_TRUE(*source.ReloadCertificates(kBegin));
  const CertificateNames certificate = {.common_name = "c"};
  EXPECT_EQ(source.Identify({true, certificate, {}})->name, "c");
  EXPECT_EQ(source.Identify({true, certificate, {"Bearer a"}})->name, "t");
  EXPECT_EQ(source.Identify({true, std::nullopt, {"bearer a"}})->name, "t");
  for (const Credentials& wrong :
       {Credentials{true, certificate, {"Bearer b"}}, Credentials{true, certificate, {"Bearer a", "Bearer a"}},
        Credentials{true, certificate, {"Basic a"}}, Credentials{true, certificate, {""}},
        Credentials{false, std::nullopt, {"Bearer a"}}, Credentials{true, std::nullopt, {}}}) {
    EXPECT_TRUE(absl::IsUnauthenticated(source.Identify(wrong).status()));
  }
}

// The readings of a server, a second apart.
class Readings {
 public:
  // Until a change of the file counts.
  absl::StatusOr<bool> Settle(IdentitySource& source) {
    absl::StatusOr<bool> taken = false;
    for (int i = 0; i < 3 && taken.ok() && !*taken; ++i) taken = Next(source);
    return taken;
  }
  absl::StatusOr<bool> Next(IdentitySource& source) { return source.ReloadTokens(now_ += std::chrono::seconds(1)); }

 private:
  WatchedFile::Time now_ = kBegin;
};

TEST(IdentitySource, KeepsTheLastGoodFile) {
  const TestFolder folder;
  AccessFiles files;
  files.tokens = folder.Write("tokens", "t frame " + HexOf("a"));
  IdentitySource source(files);
  Readings readings;
  EXPECT_TRUE(*readings.Next(source)) << "the first reading counts at once";
  EXPECT_FALSE(*readings.Settle(source)) << "has not changed";
  for (const char* broken : {"broken", "", "\n \n"}) {
    folder.Write("tokens", broken);
    EXPECT_FALSE(readings.Settle(source).ok()) << broken;
    EXPECT_FALSE(*readings.Settle(source)) << "is told once: " << broken;
    EXPECT_EQ(source.Identify({true, std::nullopt, {"Bearer a"}})->name, "t") << broken;
  }
  ASSERT_EQ(remove(files.tokens.c_str()), 0);
  EXPECT_FALSE(readings.Next(source).ok());
  EXPECT_EQ(source.Identify({true, std::nullopt, {"Bearer a"}})->name, "t");
  folder.Write("tokens", "u frame " + HexOf("b"));
  EXPECT_TRUE(*readings.Settle(source));
  EXPECT_FALSE(source.Identify({true, std::nullopt, {"Bearer a"}}).ok());
  EXPECT_EQ(source.Identify({true, std::nullopt, {"Bearer b"}})->name, "u");
  folder.Write("tokens", "# nobody");
  EXPECT_TRUE(*readings.Settle(source));
  EXPECT_FALSE(source.Identify({true, std::nullopt, {"Bearer b"}}).ok());
}

TEST(WatchedFile, AChangeCountsOnceItHasSettled) {
  const TestFolder folder;
  WatchedFile file(folder.Write("file", "one"));
  WatchedFile::Time now = kBegin;
  const auto read = [&] { return *file.Changed(now += std::chrono::seconds(1)); };
  EXPECT_EQ(read(), "one");
  folder.Write("file", "o");
  EXPECT_EQ(read(), std::nullopt);
  EXPECT_EQ(read(), std::nullopt) << "a second apart";
  folder.Write("file", "one");
  EXPECT_EQ(read(), std::nullopt) << "as before";
  folder.Write("file", "o");
  EXPECT_EQ(read(), std::nullopt) << "the readings before do not count";
  EXPECT_EQ(read(), std::nullopt);
  folder.Write("file", "two");
  EXPECT_EQ(read(), std::nullopt) << "another content";
  EXPECT_EQ(read(), std::nullopt);
  EXPECT_EQ(read(), "two");
  EXPECT_EQ(read(), std::nullopt);
}

TEST(TlsFiles, TakeOnlyWhatFitsTogether) {
  const TestCertificate authority = MakeAuthority("ca");
  const TestCertificate server = MakeServerCertificate(authority), other = MakeServerCertificate(authority);
  const auto why = [](const std::string& certificate, const std::string& key, const std::string& ca) {
    return std::string(CheckTlsMaterial(certificate, key, ca).status().message());
  };
  EXPECT_EQ(why(server.certificate, server.key, authority.certificate), "");
  EXPECT_THAT(why("x", server.key, ""), HasSubstr("tls_cert: "));
  EXPECT_THAT(why(server.certificate, "x", ""), HasSubstr("tls_key: holds no"));
  EXPECT_THAT(why(server.certificate, other.key, ""), HasSubstr("tls_key: is not that"));
  EXPECT_THAT(why(server.certificate, server.key, "x"), HasSubstr("tls_client_ca: holds no"));
  EXPECT_THAT(why(server.certificate, server.key, other.certificate), HasSubstr("tls_client_ca: "));
}

TEST(TlsFiles, KeepTheLastGoodMaterialWhileFilesAreReplacedOneByOne) {
  const TestFolder folder;
  const TestCertificate authority = MakeAuthority("ca");
  const TestCertificate old = MakeServerCertificate(authority), fresh = MakeServerCertificate(authority);
  AccessFiles paths;
  paths.tls_cert = folder.Write("cert", old.certificate);
  paths.tls_key = folder.Write("key", old.key);
  paths.tls_client_ca = folder.Write("ca", authority.certificate);
  TlsFiles files(paths);
  EXPECT_EQ(files.material(), nullptr);
  WatchedFile::Time now = kBegin;
  const auto settle = [&] {
    EXPECT_FALSE(*files.Reload(now += std::chrono::seconds(1)));
    return files.Reload(now += WatchedFile::kSettleTime);
  };
  EXPECT_TRUE(*files.Reload(now));
  folder.Write("cert", fresh.certificate);
  EXPECT_FALSE(settle().ok());
  EXPECT_EQ(files.material()->certificate_chain, old.certificate);
  folder.Write("key", fresh.key);
  EXPECT_TRUE(*settle());
  EXPECT_EQ(files.material()->certificate_chain, fresh.certificate);
  folder.Write("ca", "");
  EXPECT_FALSE(settle().ok()) << "an empty file would switch the check of clients off";
  EXPECT_EQ(files.material()->client_ca, authority.certificate);
}

TEST(Exposure, KnowsLoopback) {
  for (const char* address : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "128.0.0.1:1", "127.evil.org:1", "host:1", ":1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(Exposure, RefusesAnOpenAddressWithoutIdentities) {
  AccessFiles tls{.tls_cert = "c", .tls_key = "k", .tls_client_ca = {}, .tokens = {}, .identities = {}};
  AccessFiles tokens = tls;
  tokens.tokens = "t";
  const auto why = [](const AccessFiles& files, const char* address, bool insecure) {
    return std::string(CheckExposure(files, address, insecure).message());
  };
  EXPECT_EQ(why({}, "127.0.0.1:1", false), "");
  EXPECT_THAT(why({}, "0.0.0.0:1", false), HasSubstr("has no TLS"));
  EXPECT_EQ(why({}, "0.0.0.0:1", true), "");
  EXPECT_THAT(why(tls, "0.0.0.0:1", false), HasSubstr("have no identity"));
  EXPECT_EQ(why(tls, "127.0.0.1:1", false), "");
  EXPECT_EQ(why(tokens, "0.0.0.0:1", false), "");
}

TEST(Exposure, RefusesFilesThatDoNotGoTogether) {
  const auto refused = [](const AccessFiles& files) {
    return absl::IsInvalidArgument(CheckExposure(files, "127.0.0.1:1", true));
  };
  AccessFiles files;
  files.tls_cert = "c";
  EXPECT_TRUE(refused(files)) << "no key";
  files = AccessFiles();
  files.tokens = "t";
  EXPECT_TRUE(refused(files)) << "tokens over plain text";
  files.tls_cert = files.tls_key = "c";
  EXPECT_FALSE(refused(files));
  files.identities = "i";
  EXPECT_TRUE(refused(files)) << "no authority";
  files.tls_client_ca = "a";
  EXPECT_FALSE(refused(files));
  files.identities = "";
  EXPECT_TRUE(refused(files)) << "an authority, and nobody that it stands for";
}

TEST(CallLimits, GiveBackThePlacesOfCallsThatEnd) {
  CallLimits limits({.connection_calls = 3, .identity_calls = 2, .identity_rate = 0});
  const CallLimits::Time now;
  CallLimits::Place a, b, c, d;
  EXPECT_EQ(limits.Enter("x", "me", now, a), CallLimits::Limit::kNone);
  EXPECT_EQ(limits.Enter("x", "me", now, b), CallLimits::Limit::kNone);
  EXPECT_EQ(limits.Enter("y", "me", now, c), CallLimits::Limit::kIdentityCalls);
  EXPECT_EQ(limits.Enter("x", "you", now, c), CallLimits::Limit::kNone);
  EXPECT_EQ(limits.Enter("x", "you", now, d), CallLimits::Limit::kConnectionCalls);
  EXPECT_EQ(limits.Enter("y", "", now, d), CallLimits::Limit::kNone);
  b = CallLimits::Place();
  EXPECT_EQ(limits.Enter("x", "me", now, b), CallLimits::Limit::kNone);
}

TEST(CallLimits, LetASecondsWorthOfCallsComeAtOnce) {
  CallLimits limits({.connection_calls = 0, .identity_calls = 0, .identity_rate = 2});
  CallLimits::Time now;
  const auto enter = [&](const char* who) {
    CallLimits::Place place;
    return limits.Enter("x", who, now, place);
  };
  EXPECT_EQ(enter("me"), CallLimits::Limit::kNone);
  EXPECT_EQ(enter("me"), CallLimits::Limit::kNone);
  EXPECT_EQ(enter("me"), CallLimits::Limit::kIdentityRate);
  EXPECT_EQ(enter("you"), CallLimits::Limit::kNone);
  now += milliseconds(500);
  EXPECT_EQ(enter("me"), CallLimits::Limit::kNone);
  EXPECT_EQ(enter("me"), CallLimits::Limit::kIdentityRate);
}

}  // namespace
}  // namespace intrawarp::server
