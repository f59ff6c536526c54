// SPDX-License-Identifier: Apache-2.0
// Early return for absl::Status and absl::StatusOr.
#ifndef INTRAWARP_ENGINE_BASE_STATUS_MACROS_H_
#define INTRAWARP_ENGINE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define INTRAWARP_RETURN_IF_ERROR(expr)                    \
  do {                                                     \
    absl::Status intrawarp_status_ = (expr);               \
    if (!intrawarp_status_.ok()) return intrawarp_status_; \
  } while (false)

#define INTRAWARP_ASSIGN_OR_RETURN(lhs, expr) \
  INTRAWARP_ASSIGN_OR_RETURN_IMPL_(INTRAWARP_CONCAT_(statusor_, __LINE__), lhs, expr)
#define INTRAWARP_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                     \
  if (!tmp.ok()) return tmp.status();                    \
  lhs = std::move(tmp).value()
#define INTRAWARP_CONCAT_(a, b) INTRAWARP_CONCAT_IMPL_(a, b)
#define INTRAWARP_CONCAT_IMPL_(a, b) a##b

#endif  // INTRAWARP_ENGINE_BASE_STATUS_MACROS_H_
