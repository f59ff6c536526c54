// SPDX-License-Identifier: Apache-2.0
#include "server/restore/restore.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/base/worker_pool.h"
#include "server/bulk/staging_memory.h"
#include "server/bulk/upload_kind.h"
#include "server/context/limits.h"
#include "server/monitor/log.h"
#include "server/placement/replication.h"
#include "server/restore/upload_header.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {
namespace {

using std::chrono::system_clock;

// Payloads in host memory at once.
constexpr int kThreads = 4;

system_clock::time_point TimeOf(int64_t nanoseconds) {
  return system_clock::time_point(
      std::chrono::duration_cast<system_clock::duration>(std::chrono::nanoseconds(nanoseconds)));
}

KeptIdentity IdentityOf(const state::ObjectRow& row, const DurableObjects& durable) {
  KeptIdentity identity{row.id,       row.id_was_chosen, row.identity,   TimeOf(row.create_time),
                        std::nullopt, std::nullopt,      row.description};
  if (row.expire_time) identity.expiry = durable.ExpiryAt(*row.expire_time);
  if (!row.request_id.empty()) identity.request = RequestKey{row.request_id, row.request_fingerprint, row.owner};
  identity.owner = row.owner;
  if (row.kind == state::ObjectKind::kVolume) {
    identity.residency = std::make_shared<Residency>(KeptContent{row.header, row.payload, row.payload_bytes});
  }
  return identity;
}

// Limits of uploads do not count: what was accepted or computed once stays.
ServerLimits WithoutUploadLimits(ServerLimits limits) {
  limits.max_volume_bytes = limits.max_matrix_bytes = std::numeric_limits<int64_t>::max();
  return limits;
}

ServerContext WithLimits(const ServerContext& from, const ServerLimits& limits) {
  return {from.devices,           from.workers,      from.receivers,  from.pinned,        from.ledger,
          from.volumes,           from.matrices,     from.transforms, from.uploads,       from.sessions,
          from.metrics,           from.stream_watch, limits,          from.seams,         from.register_requests,
          from.multiply_requests, from.durable,      from.operations, from.message_limits};
}

// Stores of its own hand an object over.
struct OwnStores {
  explicit OwnStores(const ServerContext& from)
      : context{from.devices, from.workers,    from.receivers,         from.pinned,
                from.ledger,  volumes,         from.matrices,          transforms,
                from.uploads, from.sessions,   from.metrics,           from.stream_watch,
                from.limits,  from.seams,      from.register_requests, from.multiply_requests,
                from.durable, from.operations, from.message_limits} {}

  VolumeStore volumes;
  TransformStore transforms;
  ServerContext context;
};

absl::StatusOr<std::unique_ptr<UploadKind>> KindOf(const KeptContent& content, const ServerContext& context) {
  v1::UploadHeader header;
  if (!header.ParseFromString(content.header)) return absl::DataLossError("its header is damaged");
  const ServerLimits limits = WithoutUploadLimits(context.limits);
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<UploadKind> kind, ParseUploadHeader(header, WithLimits(context, limits)));
  if (kind->spec().total_bytes == content.payload_bytes) return kind;
  return absl::DataLossError("header and payload do not match");
}

// Makes the object on the device's own thread, and waits for it. `owner`: who has claimed the workspace.
absl::Status Make(DeviceContext& device, UploadKind& kind, const std::string& owner, const char* data) {
  // Outlives the waiter, who may go while set_value still runs.
  const auto made = std::make_shared<std::promise<absl::Status>>();
  const auto make = [made, &kind, data](const absl::StatusOr<const ExecContext*>& ctx) {
    StagedUpload upload(data, nullptr);
    made->set_value(ctx.ok() ? kind.Make(**ctx, upload) : ctx.status());
  };
  const std::optional<int64_t> workspace_bytes = kind.JobWorkspaceBytes();
  if (workspace_bytes) {
    Job job;
    job.party = owner;
    job.is_short = true;
    job.workspace_bytes = *workspace_bytes;
    job.run = make;
    INTRAWARP_RETURN_IF_ERROR(device.jobs.Submit(std::move(job)));
  } else {
    INTRAWARP_RETURN_IF_ERROR(device.copies.Submit(make));
  }
  return made->get_future().get();
}

// Reads the bytes, verifies them and makes the object.
absl::Status Load(DeviceContext& device, const KeptContent& content, const std::string& owner, UploadKind& kind) {
  StagingMemory memory;
  if (content.payload_bytes > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(memory, StagingMemory::Reserve(content.payload_bytes));
  }
  const absl::Span<char> bytes(memory.data(), static_cast<size_t>(content.payload_bytes));
  INTRAWARP_RETURN_IF_ERROR(device.durable.Read(content.payload, bytes));
  INTRAWARP_RETURN_IF_ERROR(kind.Validate(memory.data()));
  return Make(device, kind, owner, memory.data());
}

// An object that exceeds the limit of uploads takes all of it.
int64_t UploadingClaim(const ServerContext& context, const UploadSpec& spec) {
  return std::min(std::max(spec.resident_bytes, spec.total_bytes), context.ledger.capacity(Resource::kUploading));
}

// All that the making of an object takes.
absl::StatusOr<Grant> AdmitKept(DeviceContext& device, const UploadSpec& spec, const std::string& owner) {
  Claim claim;
  claim.device = device.index;
  claim.resident_bytes = spec.resident_bytes;
  claim.workspace_bytes = spec.workspace_bytes;
  claim.uploading_bytes = UploadingClaim(device, spec);
  claim.transforms = spec.transforms;
  claim.owner = owner;
  claim.is_short = true;
  claim.is_kept = true;
  return device.ledger.Admit(claim);
}

absl::Status RestoreObject(ServerContext& context, const state::ObjectRow& row) {
  const KeptContent content{row.header, row.payload, row.payload_bytes};
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<UploadKind> kind, KindOf(content, context));
  const UploadSpec& spec = kind->spec();
  DeviceContext& device = PlaceObject(context);
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, AdmitKept(device, spec, row.owner));
  INTRAWARP_RETURN_IF_ERROR(Load(device, content, row.owner, *kind));
  Grant reservation = grant.Split({.resident_bytes = spec.resident_bytes, .transforms = spec.transforms});
  return kind->Restore(context, std::move(reservation), IdentityOf(row, context.durable));
}

void MarkLost(ServerContext& context, const state::ObjectRow& row, const absl::Status& why) {
  const std::string name = state::ObjectName(row.kind, row.id);
  Log(Severity::kError, "object_not_restored", {{"object", name}, {"cause", why.ToString()}});
  const absl::Status damaged = ObjectDamaged(name, why.message());
  switch (row.kind) {
    case state::ObjectKind::kVolume:
      return context.volumes.MarkLost(row.id, damaged, row.owner);
    case state::ObjectKind::kSparseMatrix:
      return context.matrices.MarkLost(row.id, damaged, row.owner);
    case state::ObjectKind::kTransform:
      return context.transforms.MarkLost(row.id, damaged, row.owner);
  }
}

// The outcome for each row. Several are read and verified at once, while the device makes one.
std::vector<absl::Status> RestoreAll(ServerContext& context, const std::vector<state::ObjectRow>& rows) {
  std::vector<absl::Status> outcomes(rows.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) outcomes[i] = RestoreObject(context, rows[i]);
  };
  {
    const int threads = std::clamp(context.limits.max_queued_jobs, 1, kThreads);
    WorkerPool workers(threads);
    for (int i = 0; i < threads; ++i) workers.Submit(work);
  }
  // Alone they need less memory for work.
  for (size_t i = 0; i < rows.size(); ++i) {
    if (absl::IsResourceExhausted(outcomes[i])) outcomes[i] = RestoreObject(context, rows[i]);
  }
  return outcomes;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StoredTransform>> MakeKeptTransform(DeviceContext& device,
                                                                         const KeptContent& content,
                                                                         const std::string& description,
                                                                         const ReserveFn& reserve) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<UploadKind> kind, KindOf(content, device));
  const UploadSpec& spec = kind->spec();
  if (spec.transforms == 0) return absl::DataLossError("its header is not that of a transform");
  Claim claim;
  claim.device = device.index;
  claim.workspace_bytes = spec.workspace_bytes;
  claim.uploading_bytes = UploadingClaim(device, spec);
  INTRAWARP_ASSIGN_OR_RETURN(const Grant working, device.ledger.Admit(claim, Share::kSession));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Grant> reservation, reserve(spec.resident_bytes));
  INTRAWARP_RETURN_IF_ERROR(Load(device, content, /*owner=*/"", *kind));
  OwnStores stores(device);
  const KeptIdentity identity{"kept", true, "", {}, std::nullopt, std::nullopt, description};
  INTRAWARP_RETURN_IF_ERROR(kind->Restore(stores.context, std::move(*reservation), identity));
  return stores.transforms.FindOf("", "kept");
}

absl::StatusOr<std::shared_ptr<const StoredVolume>> MakeKeptVolume(DeviceContext& device, const StoredVolume& spooled) {
  const KeptContent& content = spooled.residency->content();
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<UploadKind> kind, KindOf(content, device));
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, AdmitKept(device, kind->spec(), spooled.owner));
  INTRAWARP_RETURN_IF_ERROR(Load(device, content, spooled.owner, *kind));
  OwnStores stores(device);
  const KeptIdentity identity{
      spooled.id, spooled.id_was_chosen, spooled.digest,   spooled.create_time, spooled.expiry, std::nullopt,
      "",         spooled.owner,         spooled.residency};
  grant.Shrink({.resident_bytes = kind->spec().resident_bytes});
  INTRAWARP_RETURN_IF_ERROR(kind->Restore(stores.context, std::move(grant), identity));
  return stores.volumes.FindOf(spooled.owner, spooled.id);
}

absl::Status RestoreObjects(ServerContext& context) {
  const auto begin = std::chrono::steady_clock::now();
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<state::ObjectRow> rows, context.durable.state().List());
  const std::vector<absl::Status> outcomes = RestoreAll(context, rows);
  int64_t restored = 0, bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (outcomes[i].ok()) {
      ++restored;
      bytes += rows[i].payload_bytes;
    } else {
      MarkLost(context, rows[i], outcomes[i]);
    }
  }
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  Log(Severity::kInfo, "restored",
      {{"objects", absl::StrCat(restored)},
       {"lost", absl::StrCat(static_cast<int64_t>(rows.size()) - restored)},
       {"bytes", absl::StrCat(bytes)},
       {"ms", absl::StrCat(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count())}});
  return absl::OkStatus();
}

}  // namespace intrawarp::server
