// SPDX-License-Identifier: Apache-2.0
// The upload of every kind of object.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/raw_call.h"
#include "client/cpp/uuid.h"
#include "intrawarp/v1/bulk.grpc.pb.h"
#include "io/file/digest.h"

namespace intrawarp::client {
namespace {

constexpr char kUploadMethod[] = "/intrawarp.v1.BulkService/Upload";

int64_t TotalBytes(absl::Span<const absl::string_view> arrays) {
  int64_t bytes = 0;
  for (const absl::string_view array : arrays) bytes += static_cast<int64_t>(array.size());
  return bytes;
}

// The bytes [begin, begin + size) of the arrays one behind the other; `storage` holds them where they lie in several.
absl::string_view Piece(absl::Span<const absl::string_view> arrays, size_t begin, size_t size, std::string& storage) {
  storage.clear();
  for (const absl::string_view array : arrays) {
    if (begin < array.size()) {
      const absl::string_view part = array.substr(begin, size - storage.size());
      if (part.size() == size) return part;
      storage.append(part.data(), part.size());
      if (storage.size() == size) break;
    }
    begin -= std::min(begin, array.size());
  }
  return storage;
}

}  // namespace

bool ForEachChunk(absl::Span<const absl::string_view> arrays, int64_t offset, int64_t chunk_bytes,
                  const std::function<bool(int64_t offset, absl::string_view data)>& write) {
  const int64_t total = TotalBytes(arrays);
  std::string storage;
  while (offset < total) {
    const int64_t size = std::min(chunk_bytes, total - offset);
    if (!write(offset, Piece(arrays, static_cast<size_t>(offset), static_cast<size_t>(size), storage))) return false;
    offset += size;
  }
  return true;
}

absl::StatusOr<v1::UploadResponse> Client::Impl::Upload(v1::UploadHeader header, const UploadBytes& bytes,
                                                        const CallOptions& call_options) {
  INTRAWARP_ASSIGN_OR_RETURN(*header.mutable_upload_id(), RandomUuid());
  io::Sha256 hash;
  for (const absl::string_view array : bytes.arrays) hash.Update(array.data(), array.size());
  header.set_total_bytes(TotalBytes(bytes.arrays));
  header.set_sha256(hash.Finish());
  v1::UploadResponse response;
  TransferState state;
  INTRAWARP_RETURN_IF_ERROR(Resume(options.transfer_attempts, call_options, state, [&]() -> absl::Status {
    if (state.reached) {
      INTRAWARP_ASSIGN_OR_RETURN(state.arrived, CommittedBytes(header, call_options));
    }
    return SendFrom(header, bytes, state.arrived, call_options, &response, &state.reached);
  }));
  return response;
}

// A false Write means that the server has answered already, well or badly, or that the stream broke: Finish knows.
absl::Status Client::Impl::SendFrom(const v1::UploadHeader& header, const UploadBytes& bytes, int64_t offset,
                                    const CallOptions& call_options, v1::UploadResponse* response, bool* reached) {
  const std::shared_ptr<grpc::Channel> channel = bulk();
  RawCall stream(channel, kUploadMethod, call_options);
  StallWatch watch(channel, options.stall_timeout, [&stream] { stream.Abandon(); });
  const auto write = [&](grpc::ByteBuffer message) {
    const bool written = stream.Write(std::move(message));
    watch.Moved();
    return written;
  };
  v1::UploadRequest request;
  *request.mutable_header() = header;
  const bool open = write(SerializeRaw(request)) && stream.Flush();
  *reached |= open;
  if (open) {
    ForEachChunk(bytes.arrays, offset, options.chunk_bytes, [&](int64_t at, absl::string_view data) {
      const int64_t sent = at + static_cast<int64_t>(data.size());
      if (bytes.on_progress) bytes.on_progress(sent, header.total_bytes());
      return write(wire::EncodeChunk(v1::UploadRequest::kChunkFieldNumber, at, data.data(), data.size(), nullptr));
    });
  }
  stream.WritesDone();
  watch.Moved();
  grpc::ByteBuffer answer;
  const bool answered = stream.Read(&answer);
  const absl::Status finished = stream.Finish();
  if (watch.stalled()) {
    LeaveBulk(channel);
    *reached = true;
  }
  INTRAWARP_RETURN_IF_ERROR(finished);
  if (!answered) return absl::InternalError("the server ended the upload without an answer");
  return ParseRaw(answer, response);
}

// NOT_FOUND stands for 0: the upload was dropped, or it was complete and only its answer got lost; then sending the
// header again gets the answer, since uploads are idempotent.
absl::StatusOr<int64_t> Client::Impl::CommittedBytes(const v1::UploadHeader& header, const CallOptions& call_options) {
  Call call(call_options, options.unary_timeout);
  const std::shared_ptr<grpc::Channel> channel = bulk();
  StallWatch watch(channel, options.stall_timeout, [&call] { call.Cancel(); });
  v1::GetUploadStatusRequest request;
  request.set_upload_id(header.upload_id());
  v1::GetUploadStatusResponse response;
  const absl::Status status =
      FromGrpcStatus(v1::BulkService::NewStub(channel)->GetUploadStatus(call.context(), request, &response));
  if (watch.stalled()) {
    LeaveBulk(channel);
    return absl::UnavailableError("the connection has gone silent");
  }
  if (absl::IsNotFound(status)) return 0;
  INTRAWARP_RETURN_IF_ERROR(status);
  const int64_t committed = response.committed_bytes();
  if (committed >= 0 && committed <= header.total_bytes()) return committed;
  return absl::InternalError(absl::StrCat("the server committed ", committed, " of ", header.total_bytes(), " bytes"));
}

}  // namespace intrawarp::client
