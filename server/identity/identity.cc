// SPDX-License-Identifier: Apache-2.0
#include "server/identity/identity.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace intrawarp::server {
namespace {

constexpr std::array<const char*, kRoleCount> kRoleNames = {"frame", "stage", "admin"};
constexpr size_t kMaxName = 64;

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == '@' || c == '/'; }

}  // namespace

absl::StatusOr<Roles> ParseRoles(absl::string_view text) {
  Roles roles;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const auto name = std::find_if(kRoleNames.begin(), kRoleNames.end(), [&](const char* n) { return word == n; });
    if (name == kRoleNames.end()) return absl::InvalidArgumentError("roles: must be frame, stage or admin");
    const Roles role = static_cast<Role>(name - kRoleNames.begin());
    if (roles.HasAnyOf(role)) return absl::InvalidArgumentError(absl::StrCat("roles: ", *name, " is named twice"));
    roles = roles | role;
  }
  return roles;
}

std::string RolesText(Roles roles) {
  std::vector<std::string> names;
  for (int i = 0; i < kRoleCount; ++i) {
    if (roles.Has(static_cast<Role>(i))) names.emplace_back(kRoleNames[i]);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ",");
}

bool IsValidIdentityName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), IsNameChar);
}

const Identity& Nobody() {
  static const auto* const nobody = new Identity();
  return *nobody;
}

const Identity& Anybody() {
  static const auto* const anybody = new Identity{"", Roles::All()};
  return *anybody;
}

}  // namespace intrawarp::server
