// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/call.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "io/file/digest.h"
#include "wire/trace_context.h"

namespace intrawarp::client {
namespace {

constexpr size_t kMaxRoutingKeyBytes = 128;

// gRPC ends the process for a value that is none of HTTP's.
std::string MetadataValue(const std::string& key) {
  const bool is_word = std::all_of(key.begin(), key.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (is_word && key.size() <= kMaxRoutingKeyBytes) return key;
  return absl::BytesToHexString(io::Sha256Of(key.data(), key.size()));
}

}  // namespace

void Cancellation::Cancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
  changed_.notify_all();
}

bool Cancellation::cancelled() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cancelled_;
}

bool Cancellation::WaitFor(std::chrono::milliseconds duration) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, std::chrono::system_clock::now() + duration, [this] { return cancelled_; });
}

void Cancellation::Register(grpc::ClientContext* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  contexts_.insert(context);
  if (cancelled_) context->TryCancel();
}

void Cancellation::Unregister(grpc::ClientContext* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  contexts_.erase(context);
}

Call::Call(const CallOptions& options, std::chrono::milliseconds default_timeout)
    : cancellation_(options.cancellation) {
  const std::chrono::milliseconds timeout = options.timeout.count() > 0 ? options.timeout : default_timeout;
  if (timeout.count() > 0) context_->set_deadline(std::chrono::system_clock::now() + timeout);
  // The transport would abort for a value with control characters.
  if (TraceIdIn(options.traceparent)) context_->AddMetadata(kTraceparentKey, options.traceparent);
  if (!options.routing_key.empty()) {
    context_->AddMetadata(kRoutingKeyMetadata, MetadataValue(options.routing_key));
  }
  if (cancellation_ != nullptr) cancellation_->Register(context_.get());
}

Call::~Call() {
  if (cancellation_ != nullptr) cancellation_->Unregister(context_.get());
}

}  // namespace intrawarp::client
