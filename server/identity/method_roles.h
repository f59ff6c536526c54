// SPDX-License-Identifier: Apache-2.0
// The roles that each method asks for. The table is the whole truth: a method without a row is admin's alone, and a
// test compares it with the protos.
#ifndef INTRAWARP_SERVER_IDENTITY_METHOD_ROLES_H_
#define INTRAWARP_SERVER_IDENTITY_METHOD_ROLES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/identity/identity.h"

namespace intrawarp::server {

struct MethodRule {
  // "intrawarp.v1.VolumeService/GetVolume"
  const char* method;
  // Besides admin, who may call every method.
  Roles roles;
  // Whoever can connect may call it, also without an identity.
  bool is_open = false;
};

absl::Span<const MethodRule> MethodRules();

// The row of a method; null when there is none.
const MethodRule* RuleOf(absl::string_view method);
// Whether these roles suffice.
bool MayCall(Roles roles, absl::string_view method);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_METHOD_ROLES_H_
