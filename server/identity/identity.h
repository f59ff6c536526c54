// SPDX-License-Identifier: Apache-2.0
// Identity: who makes a call. Its name owns the objects that the call makes, and its roles say which methods it may
// call. Several credentials may carry one name with different roles: those of one theatre share their objects.
//
// Plain values; free functions are thread-safe.
#ifndef INTRAWARP_SERVER_IDENTITY_IDENTITY_H_
#define INTRAWARP_SERVER_IDENTITY_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::server {

// kFrame registers and navigates, kStage brings objects and takes them away, kAdmin may do everything, with the objects
// of all owners.
enum class Role { kFrame, kStage, kAdmin };
inline constexpr int kRoleCount = 3;

// A set of roles.
class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(Role role) : bits_(1u << static_cast<int>(role)) {}  // NOLINT: a role is a set of one
  static constexpr Roles All() { return Roles(Role::kFrame) | Role::kStage | Role::kAdmin; }

  constexpr bool Has(Role role) const { return (bits_ & Roles(role).bits_) != 0; }
  constexpr bool HasAnyOf(Roles other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool HasAllOf(Roles other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr Roles operator|(Roles a, Roles b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr bool operator==(Roles a, Roles b) { return a.bits_ == b.bits_; }

 private:
  uint32_t bits_ = 0;
};

// "frame", "stage", "admin", or several with commas between. INVALID_ARGUMENT for anything else, and for a role that is
// named twice.
absl::StatusOr<Roles> ParseRoles(absl::string_view text);
// The reverse; "none" for no role.
std::string RolesText(Roles roles);

struct Identity {
  // Empty: the caller has none.
  std::string name;
  Roles roles;

  bool is_admin() const { return roles.Has(Role::kAdmin); }
  // Whether an object of this owner exists for the caller.
  bool MaySee(absl::string_view owner) const { return is_admin() || owner == absl::string_view(name); }

  friend bool operator==(const Identity&, const Identity&) = default;
};

// 1 to 64 characters out of letters, digits, '.', '_', '-', '@' and '/'.
bool IsValidIdentityName(absl::string_view name);

// Who has no name and no role.
const Identity& Nobody();
// The callers of a server without identities: no name, all roles.
const Identity& Anybody();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_IDENTITY_H_
