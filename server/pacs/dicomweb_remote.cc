// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dicomweb_remote.h"

#include <string>

#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

// Whether the word is an option of DICOMweb.
absl::StatusOr<bool> TakeOption(absl::string_view word, dicomweb::HttpOptions& http) {
  if (word == "plain") {
    http.allow_plain_text = true;
    return true;
  }
  const bool is_ca = absl::ConsumePrefix(&word, "ca=");
  if (!is_ca && !absl::ConsumePrefix(&word, "token_file=")) return false;
  if (word.empty()) return absl::InvalidArgumentError("ca and token_file need a path");
  (is_ca ? http.authorities_file : http.token_file) = std::string(word);
  return true;
}

}  // namespace

absl::StatusOr<dicomweb::HttpOptions> ParseDicomwebRemote(absl::Span<const absl::string_view> words,
                                                          std::vector<absl::string_view>& others) {
  if (words.empty()) return absl::InvalidArgumentError("must be URL and options");
  dicomweb::HttpOptions http;
  http.base_url = std::string(words.front());
  for (const absl::string_view word : words.subspan(1)) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool is_ours, TakeOption(word, http));
    if (!is_ours) others.push_back(word);
  }
  INTRAWARP_RETURN_IF_ERROR(dicomweb::CheckAddress(http));
  return http;
}

}  // namespace intrawarp::server
