// SPDX-License-Identifier: Apache-2.0
#include "client/cli/outputs.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cpp/routed_client.h"

namespace intrawarp::cli {
namespace {

absl::Status Named(const std::string& name, const absl::Status& status) {
  const std::string option = absl::StrCat("--", name);
  return absl::StrContains(status.message(), option) ? status : Annotate(status, option);
}

}  // namespace

void Outputs::Make(const std::vector<std::string>& names, const std::function<absl::Status()>& step) {
  const auto is_wanted = [this](const std::string& name) { return IsWanted(name); };
  if (!server_fault_.ok() || std::none_of(names.begin(), names.end(), is_wanted)) return;
  const absl::Status stopped = context_.CheckInterrupt();
  const absl::Status status = stopped.ok() ? context_.Retrying(step) : stopped;
  if (status.ok()) return;
  if (context_.servers().has_several() && client::IsServersFault(status)) {
    server_fault_ = status;
    return;
  }
  for (const std::string& name : names) {
    if (!IsWanted(name)) continue;
    failures_[name] = Named(name, status);
    order_.push_back(name);
  }
}

absl::Status Outputs::Finish(const std::string& advice) const {
  if (!server_fault_.ok()) return server_fault_;
  if (order_.empty()) return absl::OkStatus();
  for (size_t i = 0; i + 1 < order_.size(); ++i) {
    std::fprintf(stderr, "intrawarp: %s\n", ErrorText(failures_.at(order_[i])).c_str());
  }
  const absl::Status& last = failures_.at(order_.back());
  absl::Status status(last.code(), absl::StrCat(last.message(), advice.empty() ? "" : "; ", advice));
  last.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) { status.SetPayload(type, payload); });
  return status;
}

}  // namespace intrawarp::cli
