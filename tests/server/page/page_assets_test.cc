// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_assets.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace intrawarp::server {
namespace {

// Texts that make a browser fetch or run something from elsewhere. The name space of SVG is a name.
TEST(PageAssets, NameNothingOutside) {
  for (const PageAsset& asset : PageAssets()) {
    std::string text(asset.bytes);
    const std::string name_space = "http://www.w3.org/2000/svg";
    if (const size_t at = text.find(name_space); at != std::string::npos) text.erase(at, name_space.size());
    for (const char* outside :
         {"http:", "https:", "//cdn", "@import", "url(", "eval(", "new Function", "importScripts", "serviceWorker",
          "document.cookie", "localStorage", "<script>", " style=\"", " onclick="}) {
      EXPECT_FALSE(absl::StrContains(text, outside)) << asset.name << " has " << outside;
    }
  }
}

TEST(PageAssets, AreAllThatTheyName) {
  std::set<std::string> names;
  size_t bytes = 0;
  for (const PageAsset& asset : PageAssets()) {
    names.insert(std::string(asset.name));
    bytes += asset.bytes.size();
    EXPECT_EQ(asset.etag.size(), 66u) << asset.name;
  }
  EXPECT_LT(bytes, 100u << 10);
  for (const PageAsset& asset : PageAssets()) {
    const std::string text(asset.bytes);
    for (size_t at = 0; (at = text.find("from './", at)) != std::string::npos; ++at) {
      const std::string file = text.substr(at + 8, text.find('\'', at + 8) - at - 8);
      EXPECT_EQ(names.count(file), 1u) << asset.name << " imports " << file;
    }
  }
  EXPECT_EQ(names.count("index.html"), 1u);
}

}  // namespace
}  // namespace intrawarp::server
