// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/control.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

constexpr size_t kMaxVolumeName = 80;

}  // namespace

std::string ArgumentOf(absl::string_view content) {
  content = absl::StripAsciiWhitespace(content);
  if (!absl::StartsWith(content, "<")) return std::string(content);
  constexpr absl::string_view kValue = " Value=\"";
  const size_t at = content.find(kValue);
  if (at == absl::string_view::npos) return {};
  const absl::string_view rest = content.substr(at + kValue.size());
  return std::string(rest.substr(0, rest.find('"')));
}

absl::StatusOr<std::string> Execute(absl::string_view word, absl::string_view argument, const std::string& status_text,
                                    FrameSession& session) {
  const std::string lower = absl::AsciiStrToLower(word);
  if (lower == "start") {
    session.Start();
    return "started";
  }
  if (lower == "stop") {
    session.Stop();
    return "stopped";
  }
  if (lower == "status") return status_text;
  if (lower == "volume") {
    if (!absl::StartsWith(argument, "volumes/") || argument.size() > kMaxVolumeName) {
      return absl::InvalidArgumentError("volume: must be volumes/ID");
    }
    session.SetVolume(std::string(argument));
    return "the volume is chosen";
  }
  if (lower == "method") {
    INTRAWARP_RETURN_IF_ERROR(session.SetMethod(std::string(argument)));
    return "the method is chosen";
  }
  return absl::NotFoundError("unknown command; known are start, stop, volume, method and status");
}

std::string ResultXml(bool is_ok, absl::string_view message) {
  const std::string escaped =
      absl::StrReplaceAll(message, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
  return absl::StrCat("<Command><Result success=\"", is_ok ? "true" : "false",
                      "\"><Parameter Name=\"Message\" Value=\"", escaped, "\"/></Result></Command>");
}

}  // namespace intrawarp::igtl
