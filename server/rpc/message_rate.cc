// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/message_rate.h"

#include "absl/strings/str_cat.h"
#include "server/base/seams.h"
#include "server/job/admission_metrics.h"
#include "server/status/errors.h"

namespace intrawarp::server {

absl::Status CheckMessageRate(ServerContext& context, const MessageLimits::Sender& sender) {
  const MessageLimits::Limit limit = sender.Take(context.seams.steady_now());
  if (limit == MessageLimits::Limit::kNone) return absl::OkStatus();
  const char* const who = limit == MessageLimits::Limit::kConnection ? "connection" : "identity";
  const int64_t capacity = context.message_limits.capacity(limit);
  context.metrics.admission.CountRejection(v1::MESSAGE_RATE);
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat("the streams of this ", who, " bring more than ", capacity, " messages a second")),
                    v1::MESSAGE_RATE, {{"limit", who}, {"capacity", absl::StrCat(capacity)}});
}

}  // namespace intrawarp::server
