// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_request.h"

#include <gtest/gtest.h>

#include "server/page/page_options.h"

namespace intrawarp::server {
namespace {

PageRequest With(std::map<std::string, std::string> headers) {
  PageRequest request;
  request.headers = std::move(headers);
  return request;
}

TEST(PageRequest, KnowsItsTargets) {
  EXPECT_EQ(ParseTarget("/api/state")->what, "state");
  EXPECT_EQ(ParseTarget("/api/sessions/or3/frames")->session, "or3");
  EXPECT_EQ(ParseTarget("/api/sessions/or3/planes.png")->what, "planes.png");
  for (const char* path : {"/", "", "api/state", "/api", "/api/", "/api/state/", "/api/sessions/or3", "/page.js",
                           "/api/sessions/or3/frames/x", "/api/sessions/or3/secret", "//api/state"}) {
    EXPECT_FALSE(ParseTarget(path)) << path;
  }
}

TEST(PageRequest, AnotherSiteIsNotTheOwn) {
  EXPECT_TRUE(IsOwnSite(With({{"host", "127.0.0.1:80"}}), false, false));
  EXPECT_TRUE(IsOwnSite(With({{"host", "[::1]:80"}}), false, false));
  EXPECT_TRUE(IsOwnSite(With({{"host", "localhost:80"}, {"origin", "http://localhost:80"}}), false, false));
  EXPECT_FALSE(IsOwnSite(With({{"host", "localhost:80"}, {"origin", "http://evil.example"}}), false, false));
  EXPECT_FALSE(IsOwnSite(With({{"host", "localhost:80"}, {"origin", "null"}}), false, false));
  EXPECT_FALSE(IsOwnSite(With({{"host", "localhost:80"}, {"sec-fetch-site", "cross-site"}}), false, false));
  EXPECT_FALSE(IsOwnSite(With({{"host", "localhost:80"}, {"sec-fetch-site", "same-site"}}), false, false));
  EXPECT_FALSE(IsOwnSite(With({}), false, false));
}

TEST(PageRequest, ANameThatMayMeanThisMachineIsRefusedWithoutIdentities) {
  EXPECT_FALSE(IsOwnSite(With({{"host", "rebound.example:80"}}), false, /*has_identities=*/false));
  EXPECT_TRUE(IsOwnSite(With({{"host", "page.hospital.example"}}), true, /*has_identities=*/true));
  EXPECT_FALSE(IsOwnSite(With({{"host", "page.example"}, {"origin", "http://page.example"}}), true, true));
}

TEST(PageRequest, TakesNumbersThatAreNumbers) {
  PageRequest request;
  request.query = {{"x", "1.5"}, {"y", "-2"}, {"z", "1e3"}, {"w", "nan"}, {"v", "1e300"}, {"u", "1x"}};
  EXPECT_EQ(request.Point()->z, 1000);
  for (const char* name : {"w", "v", "u", "t"}) EXPECT_FALSE(request.Number(name)) << name;
}

TEST(PageExposure, AsksForTlsAndTokensBeyondThisMachine) {
  AccessFiles none;
  EXPECT_TRUE(CheckPageExposure({}, none, false).ok());
  EXPECT_TRUE(CheckPageExposure({"127.0.0.1:0"}, none, false).ok());
  EXPECT_FALSE(CheckPageExposure({"0.0.0.0:0"}, none, false).ok());
  EXPECT_TRUE(CheckPageExposure({"0.0.0.0:0"}, none, /*allow_no_identity=*/true).ok());
  AccessFiles tokens;
  tokens.tls_cert = tokens.tls_key = tokens.tokens = "f";
  EXPECT_TRUE(CheckPageExposure({"0.0.0.0:0"}, tokens, false).ok());
  AccessFiles certificates = tokens;
  certificates.tokens = "";
  certificates.tls_client_ca = certificates.identities = "f";
  EXPECT_FALSE(CheckPageExposure({"127.0.0.1:0"}, certificates, false).ok());
}

}  // namespace
}  // namespace intrawarp::server
